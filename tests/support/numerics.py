"""Numerics harness: one comparison rule, the plain equation in any precision, and brute-force masks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearhead import ALiBi
from clearhead.ops.masks import And, Causal, Dense, Documents, Mask, Or, Padding, Prefix, Window

Truth = np.ndarray  # extended precision, so that float64 results can be compared too


def assert_matches(got: Tensor, exact: Truth | Tensor, naive: Tensor, *, scale: float = 0.0) -> None:
    """Assert that the worst error is at most twice that of the plain formula in the same dtype, plus two ulps.

    The ulps are those of the largest number in the result, or of `scale` if it is larger. `scale` is the size of the
    terms of a formula whose result may be much smaller: a dot product near 0, or the entropy of a row with one key.
    """
    exact = _truth(exact)
    assert got.shape == exact.shape, f"shape {tuple(got.shape)}, expected {exact.shape}"
    assert got.dtype == naive.dtype, f"dtype {got.dtype}, expected {naive.dtype}"
    assert got.isfinite().all(), "not finite"
    if not got.numel():
        return
    largest = max(float(np.abs(exact).max()), scale)
    allowed = 2 * np.abs(_truth(naive) - exact).max() + 2 * torch.finfo(got.dtype).eps * largest
    worst = np.abs(_truth(got) - exact).max()
    assert worst <= allowed, f"{worst:.2e} > {allowed:.2e}"


def assert_lse_matches(got: Tensor, exact: Truth, naive: Tensor, *, scale: float) -> None:
    """Assert that empty rows are exactly −inf, and that the other rows match."""
    empty = np.isneginf(exact)
    assert np.array_equal(np.isneginf(_truth(got)), empty)
    filled = torch.from_numpy(~empty)
    assert_matches(got[filled], exact[~empty], naive[filled], scale=scale)


def _truth(values: Truth | Tensor) -> Truth:
    if isinstance(values, Tensor):
        values = values.detach().double().numpy()
    return values.astype(np.longdouble)


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Fill new buffers with NaN, so that cells that are never written fail the test."""
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        assert torch.empty(3).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = fill


def brute_force(mask: Mask | None, shape: tuple[int, int, int, int], starts: list[int]) -> Tensor:
    """Return `[batch, heads, q_len, kv_len]`, computed cell by cell from each mask's definition, without key ranges."""
    batch, _, q_len, kv_len = shape
    if isinstance(mask, Dense):
        return mask.allowed.expand(shape).clone()
    if isinstance(mask, And):
        return brute_force(mask.left, shape, starts) & brute_force(mask.right, shape, starts)
    if isinstance(mask, Or):
        return brute_force(mask.left, shape, starts) | brute_force(mask.right, shape, starts)
    allowed = torch.zeros((batch, 1, q_len, kv_len), dtype=torch.bool)
    for b in range(batch):
        for i in range(q_len):
            for j in range(kv_len):
                allowed[b, 0, i, j] = _may(mask, b, starts[b] + i, j, kv_len)
    return allowed.expand(shape).clone()


def _may(mask: Mask | None, b: int, position: int, key: int, kv_len: int) -> bool:
    match mask:
        case None:
            return True
        case Causal():
            return key <= position
        case Window(before=before, after=after):
            return position - before <= key <= position + after
        case Padding(lengths=lengths, side="right"):
            return key < int(lengths[b])
        case Padding(lengths=lengths):
            return key >= kv_len - int(lengths[b])
        case Prefix(length=length):
            return key < length
        case Documents(lengths=lengths):
            document_lengths = (lengths[b] if lengths.ndim == 2 else lengths).tolist()
            documents = [index for index, length in enumerate(document_lengths) for _ in range(length)]

            def document(token: int) -> int | None:
                return documents[token] if 0 <= token < len(documents) else None

            return document(position) is not None and document(position) == document(key)
    raise AssertionError(mask)


@dataclass
class Case:
    """One attention call and its expected results."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask | None = None
    bias: Tensor | ALiBi | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    query_start: int | Tensor | None = None
    allowed: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.allowed = brute_force(self.mask, self.shape, self.starts)
        if isinstance(self.bias, Tensor):
            self.allowed &= self.bias.detach() > -torch.inf

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (*self.query.shape[:3], self.key.shape[2])

    @property
    def group(self) -> int:
        return self.query.shape[1] // self.key.shape[1]

    @property
    def terms(self) -> float:
        """Largest sum of absolute values of the terms of a score."""
        query, key = (t.detach().double().abs() for t in (self.query, self.key))
        products = query @ key.repeat_interleave(self.group, dim=1).mT
        scale = self.query.shape[3] ** -0.5 if self.scale is None else self.scale
        largest = [float(t.amax()) if t.numel() else 0.0 for t in (products * abs(scale), *self._added())]
        return sum(largest)

    def _added(self) -> list[Tensor]:
        if isinstance(self.bias, ALiBi):
            return [self.bias.slopes.detach().abs()[:, None, None] * self.distances()]
        return [] if self.bias is None else [self.bias.detach().abs().nan_to_num(posinf=0.0)]

    @property
    def starts(self) -> list[int]:
        batch, _, q_len, kv_len = self.shape
        if isinstance(self.query_start, Tensor):
            return self.query_start.tolist()
        return [kv_len - q_len if self.query_start is None else self.query_start] * batch

    @property
    def statistics_dtype(self) -> torch.dtype:
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32

    @property
    def arguments(self) -> dict[str, Any]:
        names = ("query", "key", "value", "mask", "bias", "scale", "softcap", "sinks", "query_start")
        return {name: getattr(self, name) for name in names}

    @property
    def leaves(self) -> dict[str, Tensor]:
        """Tensors that require gradients, by name."""
        bias = self.bias.slopes if isinstance(self.bias, ALiBi) else self.bias
        tensors = {"query": self.query, "key": self.key, "value": self.value, "bias": bias, "sinks": self.sinks}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None and tensor.requires_grad}

    def requiring_grad(self) -> Case:
        """Return a copy whose tensors are new leaves."""

        def leaf(tensor: Tensor) -> Tensor:
            return tensor.detach().clone().requires_grad_()

        bias = self.bias
        bias = ALiBi(leaf(bias.slopes)) if isinstance(bias, ALiBi) else None if bias is None else leaf(bias)
        sinks = None if self.sinks is None else leaf(self.sinks)
        inputs = (leaf(self.query), leaf(self.key), leaf(self.value))
        return Case(*inputs, self.mask, bias, self.scale, self.softcap, sinks, self.query_start)

    def to(self, dtype: torch.dtype) -> Case:
        """Return a copy in another dtype whose tensors are new leaves."""
        bias = self.bias
        bias = ALiBi(bias.slopes.detach().to(dtype)) if isinstance(bias, ALiBi) else bias
        bias = bias.detach().to(dtype) if isinstance(bias, Tensor) else bias
        sinks = None if self.sinks is None else self.sinks.detach().to(dtype)
        inputs = (t.detach().to(dtype) for t in (self.query, self.key, self.value))
        return Case(*inputs, self.mask, bias, self.scale, self.softcap, sinks, self.query_start).requiring_grad()

    def distances(self) -> Tensor:
        batch, _, q_len, kv_len = self.shape
        positions = torch.tensor(self.starts).view(batch, 1, 1, 1) + torch.arange(q_len)[:, None]
        return (positions - torch.arange(kv_len)).abs()

    def plain(self) -> dict[str, Tensor]:
        """Compute output, weights and scores by the plain equation in the inputs' dtype. Differentiable."""
        key, value = (t.repeat_interleave(self.group, dim=1) for t in (self.key, self.value))
        scale = self.query.shape[3] ** -0.5 if self.scale is None else self.scale
        logits = self._finish((self.query @ key.mT) * scale)
        if self.sinks is not None:
            sink = self.sinks.to(logits.dtype)[:, None, None].expand(*logits.shape[:-1], 1)
            logits = torch.cat([logits, sink], dim=-1)
        some = (logits > -torch.inf).any(dim=-1, keepdim=True)  # softmax of an empty row would be nan
        weights = torch.softmax(torch.where(some, logits, 0.0), dim=-1) * some
        weights = weights[..., : self.shape[3]]
        return {"output": weights @ value, "weights": weights, "scores": logits[..., : self.shape[3]]}

    def gradient_terms(self, cotangent: Tensor) -> dict[str, float]:
        """Return the magnitude of the terms of each gradient of the output."""
        with torch.no_grad():
            value = self.value.double().abs().repeat_interleave(self.group, dim=1)
            weights = self.to(torch.float64).plain()["weights"]
            values = weights.mT @ cotangent.abs()
            sizes = {"value": float(values.amax()) * max(1.0, self.terms) if values.numel() else 0.0}
            return sizes | self.score_gradient_terms(cotangent.abs() @ value.mT)

    def score_gradient_terms(self, reach: Tensor) -> dict[str, float]:
        """Return the magnitude of the terms of each gradient, from the absolute gradient of every weight.

        The gradient of a score is a difference, which may cancel to 0. The relative error of a weight is
        proportional to its logarithm, since weights are exponentials.
        """
        with torch.no_grad():
            query, key = (t.double().abs() for t in (self.query, self.key))
            key = key.repeat_interleave(self.group, dim=1)
            weights = self.to(torch.float64).plain()["weights"]
            mean = (weights * reach).sum(dim=-1, keepdim=True)
            scores = weights * (reach + mean)
            scale = abs(self.query.shape[3] ** -0.5 if self.scale is None else self.scale)
            bias = scores
            if isinstance(self.bias, ALiBi):
                bias = (scores * self.distances()).sum(dim=(0, 2, 3))
            elif self.bias is not None:
                bias = scores.sum_to_size(self.bias.shape)
            sizes = {
                "query": scores @ key * scale,
                "key": scores.mT @ query * scale,
                "bias": bias,
                "sinks": mean.sum(dim=(0, 2, 3)),
            }
            logs = max(1.0, self.terms)
            return {name: float(t.amax()) * logs if t.numel() else 0.0 for name, t in sizes.items()}

    def statistics(self) -> dict[str, Tensor]:
        """Compute the statistics by the plain formula, in their dtype."""
        plain = self.to(self.statistics_dtype)
        with torch.no_grad():
            computed = plain.plain()
            weights, scores = computed["weights"], computed["scores"]
            sink = [] if plain.sinks is None else [plain.sinks[:, None, None].expand(*scores.shape[:-1], 1)]
            return {
                "weights": weights,
                "lse": torch.logsumexp(torch.cat([scores, *sink], dim=-1), dim=-1),
                "entropy": torch.special.entr(weights).sum(dim=-1),
                "received": weights.sum(dim=-2),
                "distance": (weights * plain.distances()).sum(dim=-1),
            }

    def _finish(self, logits: Tensor) -> Tensor:
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        if isinstance(self.bias, ALiBi):
            logits = logits - (self.bias.slopes[:, None, None] * self.distances()).to(logits.dtype)
        elif self.bias is not None:
            logits = logits + self.bias.to(logits.dtype)
        return torch.where(self.allowed, logits, -torch.inf)

    def exact(self) -> dict[str, Truth]:
        """Compute all results in extended precision with numpy."""
        query, key, value = (_truth(t) for t in (self.query, self.key, self.value))
        key, value = (np.repeat(t, self.group, axis=1) for t in (key, value))
        scale = 1 / np.sqrt(np.longdouble(query.shape[3])) if self.scale is None else np.longdouble(self.scale)
        logits = np.einsum("bhqd,bhkd->bhqk", query, key) * scale
        if self.softcap is not None:
            logits = self.softcap * np.tanh(logits / self.softcap)
        if isinstance(self.bias, ALiBi):
            logits = logits - _truth(self.bias.slopes)[:, None, None] * _truth(self.distances())
        elif self.bias is not None:
            logits = logits + _truth(self.bias)
        logits = np.where(self.allowed.numpy(), logits, -np.inf)
        sinks = np.full(self.shape[1], -np.inf) if self.sinks is None else _truth(self.sinks)
        everything = np.concatenate([logits, np.broadcast_to(sinks[:, None, None], (*logits.shape[:3], 1))], axis=-1)
        peak = everything.max(axis=-1, keepdims=True)
        peak = np.where(np.isneginf(peak), 0, peak)
        with np.errstate(divide="ignore"):
            lse = np.log(np.exp(everything - peak).sum(axis=-1)) + peak[..., 0]
        weights = np.exp(logits - np.where(np.isneginf(lse), 0, lse)[..., None])
        logs = np.log(np.where(weights > 0, weights, 1))
        return {
            "output": weights @ value,
            "scores": logits,
            "weights": weights,
            "lse": lse,
            "entropy": -(weights * logs).sum(axis=-1),
            "received": weights.sum(axis=-2),
            "distance": (weights * _truth(self.distances())).sum(axis=-1),
        }
