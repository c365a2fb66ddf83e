"""Output projections W_O of a recorded model, and the norms of its values after them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.recording.output_projection import OutputProjection
from clearhead.recording.recording import Stack
from clearhead.watching._projections import find_names, projections_of
from clearhead.weights.matrix import AttentionWeights

_MAX_DIFFERENCE = 0.05  # relative to the norm; rounding to bfloat16 stays below it
# parts of attention modules that act before the weights: norms of queries and keys, positions, biases of scores
_BEFORE_WEIGHTS = (
    "q_norm",
    "k_norm",
    "q_layernorm",
    "k_layernorm",
    "query_norm",
    "key_norm",
    "norm_q",
    "norm_k",
    "rotary_emb",
)
_PARAMETERS = {
    "in_proj_weight",
    "in_proj_bias",
    "q_proj_weight",
    "k_proj_weight",
    "v_proj_weight",
    "bias_k",
    "bias_v",
    "sinks",
}


def find_projection(model: nn.Module, name: str) -> OutputProjection | None:
    """Return the output projection of an attention module; None if it is not a plain linear layer of all heads."""
    try:
        projections = projections_of(model, name)
    except ValueError:
        return None
    return OutputProjection(projections.output.weight.detach(), projections.heads)


def plain_projection(module: nn.Module) -> OutputProjection | None:
    """Return the output projection of a module that has no other parts, such as a gate, after the weights."""
    names = find_names(module, "")
    if names is None or not {*module._parameters} <= _PARAMETERS:
        return None
    known = {*names.inputs, *_BEFORE_WEIGHTS, names.output.partition(".")[0]}
    others = [child for name, child in module.named_children() if name not in known]
    has_parameters = any(next(child.parameters(), None) is not None for child in others)
    return None if has_parameters else find_projection(module, "")


def with_projections(stack: Stack, projections: Sequence[OutputProjection | None]) -> Stack:
    """Return a stack with its output projections and value norms; unchanged if it has no values or one is unknown."""
    known = [projection for projection in projections if projection is not None]
    if len(known) != len(stack.layers) or not stack.has_values:
        return stack
    norms = []
    for weights, projection in zip(stack.layers, known, strict=True):
        value = weights.value
        if value is None or (projection.heads, projection.value_dim) != (weights.shape[1], value.shape[3]):
            return stack
        norms.append(projection.value_norms(value))
    finite = all(bool(layer.isfinite().all()) for layer in norms)  # values in float16 may overflow
    return replace(stack, value_norms=tuple(norms) if finite else None, output_projections=tuple(known))


class ProjectionInputs:
    """Last row of the input of each output projection, kept while a model runs.

    Some models change the output of the heads before the projection, with a gate or a norm. Their heads do not add
    A·V·W_O to the residual stream.
    """

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self._model = model
        self._rows: dict[str, list[Tensor]] = {name: [] for name in names}

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the inputs of the calls in this thread within a `with` block."""
        thread = threading.get_ident()

        def keep(rows: list[Tensor], module: nn.Module, inputs: tuple) -> None:
            if threading.get_ident() == thread and inputs:
                rows.append(inputs[0].detach().flatten(0, -2)[-1].clone())

        with ExitStack() as stack:
            for name, rows in self._rows.items():
                names = find_names(self._model, name)
                if names is not None:
                    output = self._model.get_submodule(names.output)
                    stack.callback(output.register_forward_pre_hook(partial(keep, rows)).remove)
            yield

    def projections(self, name: str, layers: Sequence[AttentionWeights]) -> list[OutputProjection | None]:
        """Return the projection of each call of a module; None where its input was not the output of the heads."""
        projection, rows = find_projection(self._model, name), self._rows[name]
        if projection is None or len(rows) != len(layers):
            return [None] * len(layers)
        is_plain = [_is_output(row, weights) for row, weights in zip(rows, layers, strict=True)]
        return [projection if plain else None for plain in is_plain]


def _is_output(row: Float[Tensor, " heads_value_dim"], weights: AttentionWeights) -> bool:
    """Return whether a row is the output of all heads for the last query."""
    value = weights.value
    if value is None or row.numel() != weights.shape[1] * value.shape[3]:
        return False
    _, kv_heads, kv_len, _ = value.shape
    attention = weights[0, :, weights.shape[2] - 1].view(kv_heads, -1, kv_len)
    expected = (attention @ value[0].to(attention.dtype)).flatten()
    difference = torch.linalg.vector_norm(row.to(expected) - expected)
    return bool(difference <= _MAX_DIFFERENCE * torch.linalg.vector_norm(expected))
