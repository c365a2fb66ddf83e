"""Choice of the fastest backend that supports a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.checks import describe
from clearhead.ops import reference, sdpa
from clearhead.ops._precision import uses_tf32
from clearhead.ops.call import AttentionCall
from clearhead.ops.gradients import CellGradient, Gradients
from clearhead.ops.hopper.forward import is_faster_than_cudnn
from clearhead.ops.sdpa import Reason
from clearhead.ops.statistics import AttentionStatistics, PoolSpec, StatisticsRequest
from clearhead.ops.tiled import backend as tiled
from clearhead.ops.triton import backend as triton

Task = Literal["output", "statistics"]


class Backend(Protocol):
    """Functions that a backend module provides."""

    def unsupported_reasons(self, call: AttentionCall, task: Task = "output") -> Sequence[Reason]:
        """Return why the backend cannot take a call; empty if it can. `str` gives the text of a reason."""
        ...

    def attend(
        self, call: AttentionCall, with_lse: bool
    ) -> tuple[Float[Tensor, "batch heads q_len value_dim"], Float[Tensor, "batch heads q_len"] | None]:
        """Return output and log-sum-exp. Without `with_lse`, log-sum-exp may be None."""
        ...


class StatisticsBackend(Backend, Protocol):
    """Functions of a backend module that also computes statistics."""

    def statistics(
        self, call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], request: StatisticsRequest
    ) -> AttentionStatistics:
        """Return the statistics requested."""
        ...

    def transposed_product(
        self,
        call: AttentionCall,
        lse: Float[Tensor, "batch heads q_len"],
        rows: Float[Tensor, "batch heads q_len width"],
    ) -> Float[Tensor, "batch heads kv_len width"]:
        """Return Aᵀ · rows for each head, without gradients."""
        ...

    def score_gradients(
        self, call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], gradient: CellGradient, need_bias: bool
    ) -> Gradients:
        """Return the gradients of everything that the scores depend on, from the gradient of the weights."""
        ...

    def pool(
        self, call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], rows: slice, keys: slice, spec: PoolSpec
    ) -> Float[Tensor, "batch heads rows cols"]:
        """Return the weights of some rows and keys, pooled into bins."""
        ...


BACKENDS: dict[str, Backend] = {"sdpa": sdpa, "triton": triton, "streaming": tiled, "reference": reference}
STATISTICS_BACKENDS: dict[str, StatisticsBackend] = {"triton": triton, "streaming": tiled}

# Backends, fastest first, up to a number of matrix cells (batch · heads · q_len · kv_len). The CPU rows were measured
# with benchmarks/choice.py; on the CPU, `triton` runs only in its interpreter. The CUDA rows follow benchmarks/gpu.py.
# For few queries, flash attention has the lower launch overhead, but `triton` reads a long KV cache faster.
MEASURED: dict[str, list[tuple[float, tuple[str, ...]]]] = {
    "cpu": [
        (2**17, ("sdpa", "reference", "streaming", "triton")),
        (float("inf"), ("sdpa", "streaming", "reference", "triton")),
    ],
    "cuda": [(float("inf"), ("sdpa", "triton", "streaming", "reference"))],
    "cuda, few queries": [
        (2**23, ("sdpa", "triton", "streaming", "reference")),
        (float("inf"), ("triton", "sdpa", "streaming", "reference")),
    ],
}
# if `is_faster_than_cudnn`
LONG_ON_HOPPER = ("triton", "sdpa", "streaming", "reference")
# On CUDA the gradients of `sdpa` differ in their last bits from run to run.
REPRODUCIBLE = ("triton", "streaming", "reference", "sdpa")
STATISTICS = {"cuda": ("triton", "streaming", "reference", "sdpa"), "cpu": ("streaming", "triton", "reference", "sdpa")}


def choose(call: AttentionCall, backend: str = "auto", task: Task = "output") -> tuple[str, Backend]:
    """Return the named backend, or for "auto" the fastest backend that supports the call.

    Raises:
        ValueError: the named backend does not exist, or does not support the call; the message lists the reasons.
    """
    if not isinstance(backend, str):
        raise TypeError(f"backend is {describe(backend)}; expected 'auto' or one of {', '.join(map(repr, BACKENDS))}")
    if backend == "auto":
        for name in ranked(call, task):
            if not BACKENDS[name].unsupported_reasons(call, task):
                return name, BACKENDS[name]
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; expected 'auto' or one of {', '.join(map(repr, BACKENDS))}")
    reasons = BACKENDS[backend].unsupported_reasons(call, task)
    if reasons:
        raise ValueError(f"backend {backend!r} does not support this call: {'; '.join(map(str, reasons))}")
    return backend, BACKENDS[backend]


def ranked(call: AttentionCall, task: Task = "output") -> tuple[str, ...]:
    """Return all backends, fastest first for a call of this size and device."""
    device = call.query.device.type
    if task == "statistics":
        return STATISTICS.get(device, STATISTICS["cpu"])
    if device == "cuda" and torch.are_deterministic_algorithms_enabled() and call.requires_grad():
        return REPRODUCIBLE
    few = device == "cuda" and call.query.shape[2] <= sdpa.MAX_DECODING_QUERIES
    table = MEASURED.get("cuda, few queries" if few else device, MEASURED["cpu"])
    if torch.compiler.is_compiling():
        return table[-1][1]  # the graph may run with other sizes, so the choice must not depend on this one
    if device == "cuda" and not few and triton.INSTALLED and is_faster_than_cudnn(call):
        return LONG_ON_HOPPER
    batch, heads, q_len, kv_len = call.shape
    cells = batch * heads * q_len * kv_len
    for limit, order in table:
        if cells <= limit:
            return order
    raise AssertionError("the last limit is infinite")


def explain_choice(call: AttentionCall, task: Task = "output") -> dict[str, list[str]]:
    """Return why each backend cannot take a call, in the order "auto" tries them; an empty list if it can."""
    return {name: list(map(str, BACKENDS[name].unsupported_reasons(call, task))) for name in ranked(call, task)}


def statistics(
    call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], request: StatisticsRequest
) -> AttentionStatistics:
    """Return the statistics requested, from the fastest backend that computes them."""
    return STATISTICS_BACKENDS[choose(call, task="statistics")[0]].statistics(call, lse, request)


def pool(
    call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], rows: slice, keys: slice, spec: PoolSpec
) -> Float[Tensor, "batch heads rows cols"]:
    """Return the weights of some rows and keys, pooled into bins, from the fastest backend that computes them."""
    return STATISTICS_BACKENDS[choose(call, task="statistics")[0]].pool(call, lse, rows, keys, spec)


def transposed_product(
    call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], rows: Float[Tensor, "batch heads q_len width"]
) -> Float[Tensor, "batch heads kv_len width"]:
    """Return Aᵀ · rows for each head without gradients, from the fastest backend that computes it."""
    return STATISTICS_BACKENDS[choose(call, task="statistics")[0]].transposed_product(call, lse, rows)


def score_gradients(
    call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], gradient: CellGradient, need_bias: bool
) -> Gradients:
    """Return the gradients of everything that the scores depend on, from the fastest backend that computes them."""
    return STATISTICS_BACKENDS[choose(call, task="statistics")[0]].score_gradients(call, lse, gradient, need_bias)


def uses_triton(call: AttentionCall) -> bool:
    """Return whether statistics of a call are computed by Triton kernels."""
    return choose(call, task="statistics")[0] == "triton"


def differs_in_tf32(call: AttentionCall) -> bool:
    """Return whether torch would round scores in TF32 while the kernel that computed lse did not.

    In that case, weights computed by torch would not sum to 1. Pooling with one cell per bin gives exact weights.
    """
    if torch.compiler.is_compiling() or call.query.dtype != torch.float32 or call.query.device.type != "cuda":
        return False  # torch.compile cannot trace the TF32 setting
    return uses_tf32() and uses_triton(call)
