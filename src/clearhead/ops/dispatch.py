"""Backends: which of them can do a problem, and which of those is the fastest."""

from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.checks import describe
from clearhead.ops import reference, sdpa
from clearhead.ops.call import AttentionCall
from clearhead.ops.tiled import attention as streaming
from clearhead.ops.triton import backend as triton_backend


class Backend(Protocol):
    """What a backend module offers."""

    def unsupported_reasons(self, problem: AttentionCall) -> list[str]:
        """Why it cannot; empty if it can."""
        ...

    def attend(
        self, problem: AttentionCall, with_lse: bool
    ) -> tuple[Float[Tensor, "batch heads q_len value_dim"], Float[Tensor, "batch heads q_len"] | None]:
        """Output and log-sum-exp; the latter may be None unless `with_lse`."""
        ...


BACKENDS: dict[str, Backend] = {
    "sdpa": sdpa,
    "triton": triton_backend,
    "streaming": streaming,
    "reference": reference,
}

# Fastest first, up to a number of matrix cells (batch · heads · q_len · kv_len). The CPU rows are measured by
# benchmarks/choice.py, where `triton` only runs in its interpreter; the CUDA rows follow benchmarks/gpu.py: flash
# attention starts a few queries sooner, ours reads a long cache faster.
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


# On CUDA the gradients of `sdpa` differ in their last bits from run to run.
REPRODUCIBLE = ("triton", "streaming", "reference", "sdpa")


def choose(problem: AttentionCall, backend: str = "auto") -> tuple[str, Backend]:
    """The named backend, or with "auto" the fastest of those that can; a refusal is an error with its reasons."""
    if not isinstance(backend, str):
        raise TypeError(f"backend is {describe(backend)}; expected 'auto' or one of {', '.join(map(repr, BACKENDS))}")
    if backend == "auto":
        for name in ranked(problem):
            if not BACKENDS[name].unsupported_reasons(problem):
                return name, BACKENDS[name]
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; expected 'auto' or one of {', '.join(map(repr, BACKENDS))}")
    reasons = BACKENDS[backend].unsupported_reasons(problem)
    if reasons:
        raise ValueError(f"backend {backend!r} cannot do this: {'; '.join(reasons)}")
    return backend, BACKENDS[backend]


def ranked(problem: AttentionCall) -> tuple[str, ...]:
    """All backends, fastest first for a problem of this size and device."""
    device = problem.query.device.type
    if device == "cuda" and torch.are_deterministic_algorithms_enabled() and problem.trains():
        return REPRODUCIBLE
    few = device == "cuda" and problem.query.shape[2] <= sdpa.DECODING
    table = MEASURED.get("cuda, few queries" if few else device, MEASURED["cpu"])
    if torch.compiler.is_compiling():
        return table[-1][1]  # a graph for sizes to come should not depend on the size at hand
    batch, heads, q_len, kv_len = problem.shape
    cells = batch * heads * q_len * kv_len
    for limit, order in table:
        if cells <= limit:
            return order
    raise AssertionError("the last limit is infinite")


def explain_choice(problem: AttentionCall) -> dict[str, list[str]]:
    """Each backend, in the order "auto" tries them, with its reasons for refusing; an empty list where it can."""
    return {name: BACKENDS[name].unsupported_reasons(problem) for name in ranked(problem)}
