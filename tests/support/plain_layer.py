"""Plain reference of `MultiHeadAttention`, written head by head, in any precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead import MultiHeadAttention


@dataclass
class Plain:
    """Result of the plain computation, and the magnitudes of the terms in scores and outputs."""

    output: Tensor
    weights: Tensor
    score_terms: float
    output_terms: float


def rotate(x: Tensor, positions: Tensor, base: float, layout: str, dims: int | None = None) -> Tensor:
    """Apply rotary positions by complex numbers: each pair of columns of x `[n, key_dim]` is one number."""
    dims = x.shape[-1] if dims is None else dims
    half = dims // 2
    pairs = [(i, i + half) if layout == "half" else (2 * i, 2 * i + 1) for i in range(half)]
    columns = list(x.unbind(-1))
    for pair, (left, right) in enumerate(pairs):
        angle = positions.double() * base ** (-2 * pair / dims)
        rotation = torch.polar(torch.ones_like(angle), angle)
        value = torch.complex(columns[left].double(), columns[right].double()) * rotation
        columns[left], columns[right] = value.real.to(x.dtype), value.imag.to(x.dtype)
    return torch.stack(columns, dim=-1)


def normalize(x: Tensor, gains: Tensor) -> Tensor:
    return x / (x.pow(2).mean(dim=-1, keepdim=True) + 1e-6).sqrt() * gains


def plain(
    layer: MultiHeadAttention,
    x: Tensor,
    memory: Tensor | None = None,
    *,
    allowed: Tensor | None = None,
    bias: Tensor | None = None,
    positions: Tensor | None = None,
    without: tuple[int, ...] = (),
    state: dict[str, Tensor] | None = None,
) -> Plain:
    """Compute the layer's formula in the dtype of x. `allowed` and `bias` are [batch, heads, q_len, kv_len]."""
    state = {name: t.detach().to(x.dtype) for name, t in layer.state_dict().items()} if state is None else state
    source = x if memory is None else memory
    zero = torch.zeros((), dtype=x.dtype)
    positions = torch.arange(x.shape[1]).expand(x.shape[:2]) if positions is None else positions
    slices = layer.split == "slice"
    outputs, all_weights, largest = [], [], 1.0
    for b in range(x.shape[0]):
        joined, weights_of_heads = [], []
        for h in range(layer.heads):
            g = h // (layer.heads // layer.kv_heads)

            def projected(name: str, tensor: Tensor, head: int, dim: int, count: int) -> Tensor:
                rows = slice(head * dim, (head + 1) * dim)
                width = tensor.shape[-1] // count
                source_columns = tensor[:, head * width : (head + 1) * width] if slices else tensor
                offset = state[f"{name}.bias"][rows] if f"{name}.bias" in state else zero
                return source_columns @ state[f"{name}.weight"][rows].T + offset

            query = projected("query", x[b], h, layer.key_dim, layer.heads)
            key = projected("key", source[b], g, layer.key_dim, layer.kv_heads)
            value = projected("value", source[b], g, layer.value_dim, layer.kv_heads)
            if "query_norm.weight" in state:
                query = normalize(query, state["query_norm.weight"])
                key = normalize(key, state["key_norm.weight"])
            if layer.rope is not None:
                rope = layer.rope
                query, key = (rotate(t, positions[b], rope.base, rope.layout, rope.dims) for t in (query, key))
            scale = layer.key_dim**-0.5 if layer.scale is None else layer.scale
            scores = query @ key.T * scale
            if layer.softcap is not None:
                scores = layer.softcap * torch.tanh(scores / layer.softcap)
            if bias is not None:
                scores = scores + bias[b, h].to(x.dtype)
            if allowed is not None:
                scores = scores.masked_fill(~allowed[b, h], -torch.inf)
            if "sinks" in state:
                scores = torch.cat([scores, state["sinks"][h].expand(scores.shape[0], 1)], dim=-1)
            weights = torch.softmax(scores, dim=-1)[:, : key.shape[0]]
            largest = max(largest, float((query.abs() @ key.abs().T).detach().max()) * abs(scale))
            joined.append(weights @ value * (h not in without))
            weights_of_heads.append(weights)
        outputs.append(torch.cat(joined, dim=-1))
        all_weights.append(torch.stack(weights_of_heads))
    concat = torch.stack(outputs)
    offset = state.get("output.bias", zero)
    terms = (concat.abs() @ state["output.weight"].abs().T + offset.abs()).detach().max()
    return Plain(concat @ state["output.weight"].T + offset, torch.stack(all_weights), largest, float(terms) * largest)
