"""A grid of shapes and features: clearhead's automatic choice against the fastest kernel of torch that can do each.

Each case has a separate process, because FlexAttention is compiled for each shape and mask.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from clearhead import Causal, Dense, Documents, Padding, Window, attention
from clearhead.ops import dispatch
from clearhead.ops.arguments import build_call
from gpu_processes import measure_in_turn
from gpu_timing import Call, Row, error_row, forward_and_both, shortened, warm_up

WINDOW, DOCUMENTS = 1024, 8
KERNELS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}
FLEX = "FlexAttention, backend TRITON"
OURS, BY_TRITON = "ours", "ours by triton"
MAX_MASK_CELLS = 2**28  # larger masks are not written out for torch's kernels
flex: Callable[..., Tensor] = torch.compile(flex_attention, dynamic=False)  # pyright: ignore[reportAssignmentType]


@dataclass(frozen=True)
class Case:
    """Shape and feature of one comparison."""

    feature: str
    batch: int
    heads: int
    kv_heads: int
    n: int
    dim: int

    def __str__(self) -> str:
        return f"{self.feature}, batch {self.batch}, {self.heads} heads on {self.kv_heads}, width {self.dim}"

    def inputs(self) -> list[Tensor]:
        return [
            torch.randn(self.batch, heads, self.n, self.dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            for heads in (self.heads, self.kv_heads, self.kv_heads)
        ]

    def lengths(self) -> Tensor:
        """Lengths of padded texts: half to all of the keys."""
        return torch.linspace(self.n // 2, self.n, self.batch).long()

    def tensor(self) -> Tensor:
        """Return the random mask of "dense", or the bias of "bias"."""
        generator = torch.Generator("cuda").manual_seed(0)
        if self.feature == "dense":
            allowed = torch.rand(1, 1, self.n, self.n, device="cuda", generator=generator) < 0.5
            return allowed | torch.eye(self.n, device="cuda", dtype=torch.bool)
        bias = torch.randn(1, self.heads, self.n, self.n, device="cuda", generator=generator)
        return bias.bfloat16()


GRID = [
    Case("padded", 16, 16, 16, 512, 64),
    Case("plain", 8, 16, 16, 1024, 80),
    Case("bias", 2, 16, 16, 2048, 64),
    Case("dense", 2, 16, 16, 2048, 64),
    Case("window", 2, 16, 16, 4096, 96),
    Case("causal", 1, 16, 4, 4096, 192),
    Case("causal", 2, 8, 1, 4096, 256),
    Case("causal", 2, 32, 4, 4096, 128),
    Case("documents", 1, 32, 8, 8192, 128),
    Case("causal", 1, 32, 8, 32768, 128),
    Case("plain", 1, 8, 8, 131072, 64),
    Case("window", 1, 32, 8, 16384, 128),
    Case("padded", 4, 32, 8, 4096, 128),
    Case("plain", 16, 16, 16, 512, 64),
    Case("bias", 2, 16, 16, 2048, 128),
    Case("causal", 8, 32, 8, 1024, 128),
    Case("dense", 1, 16, 16, 8192, 128),
    Case("plain", 1, 24, 24, 4096, 96),
    Case("causal", 1, 16, 16, 8192, 80),
    Case("documents", 1, 16, 16, 32768, 64),
]


def compare_grid() -> Iterator[list[Row]]:
    """Yield the rows of each case. All cases compile in parallel, and are then timed one after another."""
    for case, result in measure_in_turn(GRID, prepare):
        yield [error_row(str(case), case.n, result)] if isinstance(result, str) else result


def prepare(case: Case) -> Callable[[], list[Row]]:
    """Compile and warm up everything that is timed; return the comparison."""
    torch.manual_seed(0)
    tensors = case.inputs()
    options = our_options(case)
    call = build_call(*tensors, **options)
    chosen = dispatch.choose(call)[0]
    calls: dict[str, Call] = {OURS: lambda: attention(*tensors, **options)}
    if chosen != "triton" and not dispatch.BACKENDS["triton"].unsupported_reasons(call):
        calls[BY_TRITON] = lambda: attention(*tensors, **options, backend="triton")
    for ours in calls.values():
        warm_up(ours, tensors)
    supported, failure = peers(case, tensors)
    calls |= supported
    for tensor in tensors:
        tensor.grad = None
    torch.cuda.empty_cache()  # other processes need the memory while this one waits
    return lambda: list(compare(case, chosen, calls, tensors, failure))


def compare(
    case: Case, chosen: str, calls: dict[str, Call], tensors: list[Tensor], failure: str | None
) -> Iterator[Row]:
    """Compare both passes with the fastest peer."""
    for what, times in forward_and_both(calls, tensors).items():
        ours, by_triton = times.pop(OURS), times.pop(BY_TRITON, None)
        peer = min(times, key=lambda name: times[name])
        others = [f"{name} {time:.3f} ms" for name, time in times.items() if name != peer]
        yield {
            "case": str(case),
            "n": case.n,
            "passes": what,
            "our backend": chosen,
            "ours ms": round(ours, 3),
            "ours by triton ms": "" if by_triton is None else round(by_triton, 3),
            "fastest peer": peer,
            "peer ms": round(times[peer], 3),
            "ratio": round(times[peer] / ours, 3),
            "other peers": ", ".join(others if failure is None else [*others, failure]),
        }


def our_options(case: Case) -> dict[str, Any]:
    return {
        "plain": dict,
        "causal": lambda: {"mask": Causal()},
        "window": lambda: {"mask": Window(WINDOW - 1)},
        "documents": lambda: {"mask": Causal() & Documents([case.n // DOCUMENTS] * DOCUMENTS)},
        "padded": lambda: {"mask": Padding(case.lengths())},
        "dense": lambda: {"mask": Dense(case.tensor())},
        "bias": lambda: {"bias": case.tensor()},
    }[case.feature]()


def peers(case: Case, tensors: list[Tensor]) -> tuple[dict[str, Call], str | None]:
    """Return every kernel of torch that can compute a case, warmed up, and why FlexAttention cannot."""
    calls: dict[str, Call] = {}
    failure = None
    try:
        call = flexible(case, tensors)
        warm_up(call, tensors)
        calls[FLEX] = call
    except Exception as error:  # the case has other peers
        traceback.print_exc()
        failure = f"{FLEX} failed: {shortened(error)}"
    for name, call in sdpa_calls(case, tensors).items():
        try:
            warm_up(call, tensors)
        except RuntimeError:  # this kernel cannot do it
            continue
        calls[name] = call
    if not calls:
        raise RuntimeError(failure or "no kernel of torch can compute it")
    return calls, failure


def sdpa_calls(case: Case, tensors: list[Tensor]) -> dict[str, Call]:
    query, key, value = tensors
    options = sdpa_options(case)
    if options is None:
        return {}

    def call(backend: SDPBackend) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(query, key, value, **options)

    return {name: partial(call, backend) for name, backend in KERNELS.items()}


def sdpa_options(case: Case) -> dict[str, Any] | None:
    """Return the arguments of scaled_dot_product_attention; None if the mask would be too large."""
    grouped = {"enable_gqa": case.heads != case.kv_heads}
    if case.feature in ("plain", "causal"):
        return {"is_causal": case.feature == "causal", **grouped}
    if case.n**2 > MAX_MASK_CELLS:
        return None
    return {"attn_mask": sdpa_mask(case), **grouped}


def sdpa_mask(case: Case) -> Tensor:
    if case.feature in ("dense", "bias"):
        return case.tensor()
    rows, keys = torch.arange(case.n, device="cuda")[:, None], torch.arange(case.n, device="cuda")
    if case.feature == "padded":
        return (keys < case.lengths().cuda()[:, None])[:, None, None]
    size = case.n // DOCUMENTS
    near = rows - keys < WINDOW if case.feature == "window" else rows // size == keys // size
    return ((keys <= rows) & near)[None, None]


def flexible(case: Case, tensors: list[Tensor]) -> Call:
    """Return the call of compiled FlexAttention, with its mask already built."""
    options: dict[str, Any] = {"kernel_options": {"BACKEND": "TRITON"}, "enable_gqa": case.heads != case.kv_heads}
    if case.feature == "bias":
        bias = case.tensor()[0]
        options["score_mod"] = lambda score, b, h, i, j: score + bias[h, i, j]
    elif case.feature != "plain":
        batches = case.batch if case.feature == "padded" else None
        options["block_mask"] = create_block_mask(
            allowed_keys(case), batches, None, case.n, case.n, device="cuda", _compile=True
        )
    return lambda: flex(*tensors, **options)


def allowed_keys(case: Case) -> Callable[..., Tensor]:
    """Return the mask of a case as FlexAttention takes it."""
    if case.feature == "causal":
        return lambda b, h, i, j: j <= i
    if case.feature == "window":
        return lambda b, h, i, j: (j <= i) & (i - j < WINDOW)
    if case.feature == "documents":
        size = case.n // DOCUMENTS
        return lambda b, h, i, j: (j <= i) & (i // size == j // size)
    if case.feature == "padded":
        lengths = case.lengths().cuda()
        return lambda b, h, i, j: j < lengths[b]
    dense = case.tensor()[0, 0]
    return lambda b, h, i, j: dense[i, j]
