"""Our kernels on one GPU against torch's fused ones and compiled FlexAttention: bf16, random data, same run.

32 heads of 128, one text; medians. A peer that cannot do a case, or not in memory, is left out of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from triton.testing import do_bench

from clearhead import Causal, Documents, Window, attention
from clearhead.masks import Mask
from measuring import RESULTS, write

HEADS, DIM = 32, 128
WINDOW, DOCUMENTS = 4096, 8
flex = torch.compile(flex_attention, dynamic=False)
Call = Callable[[], Tensor]
Row = dict[str, object]


def milliseconds(call: Callable[[], object]) -> float:
    return float(do_bench(call, warmup=30, rep=150, return_mode="median"))  # pyright: ignore[reportArgumentType]


def forward_and_both(call: Call, tensors: list[Tensor]) -> tuple[float, float]:
    """The forward pass alone, and both passes."""
    gradient = torch.randn_like(tensors[0])

    def both() -> None:
        for tensor in tensors:
            tensor.grad = None
        call().backward(gradient)

    with torch.no_grad():
        alone = milliseconds(call)
    return alone, milliseconds(both)


def row(case: str, n: int, ours: float, peer: str, theirs: float, target: str) -> Row:
    return {
        "case": case,
        "n": n,
        "ours ms": round(ours, 3),
        "peer": peer,
        "peer ms": round(theirs, 3),
        "peer / ours": round(theirs / ours, 2),
        "target": target,
    }


def inputs(n: int) -> list[Tensor]:
    shape = (1, HEADS, n, DIM)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]


def plain(n: int, causal: bool) -> Iterator[Row]:
    """Our own kernel against cuDNN, which "auto" takes for these."""
    tensors = query, key, value = inputs(n)
    mask = Causal() if causal else None
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        theirs = forward_and_both(lambda: scaled_dot_product_attention(query, key, value, is_causal=causal), tensors)
    ours = forward_and_both(lambda: attention(*tensors, mask=mask, backend="triton"), tensors)
    name = "causal" if causal else "plain"
    for what, mine, other in zip(("forward", "forward and backward"), ours, theirs, strict=True):
        yield row(f"{name}, {what}, triton", n, mine, "cuDNN", other, "")


def masked(n: int, name: str, mask: Mask, allowed: Callable[..., Tensor]) -> Iterator[Row]:
    tensors = inputs(n)
    block_mask = create_block_mask(allowed, None, None, n, n, device="cuda", _compile=True)
    theirs = forward_and_both(lambda: flex(*tensors, block_mask=block_mask), tensors)  # pyright: ignore
    ours = forward_and_both(lambda: attention(*tensors, mask=mask), tensors)
    for what, mine, other in zip(("forward", "forward and backward"), ours, theirs, strict=True):
        yield row(f"{name}, {what}", n, mine, "compiled FlexAttention", other, "≥ 1.0")


def statistics(n: int, causal: bool) -> Iterator[Row]:
    """Output, entropy, column sums and distance against the plain forward pass."""
    query, key, value = (tensor.detach() for tensor in inputs(n))
    with torch.no_grad(), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        theirs = milliseconds(lambda: scaled_dot_product_attention(query, key, value, is_causal=causal))

    def observed() -> None:
        _, weights = attention(query, key, value, mask=Causal() if causal else None, return_weights=True)
        weights.observe(entropy=True, received=True, distance=True)

    with torch.no_grad():
        ours = milliseconds(observed)
    name = f"{'causal' if causal else 'plain'}, output + entropy + received + distance"
    yield row(name, n, ours, "cuDNN, output alone", theirs, "≥ 0.56")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder for gpu.json and gpu.md")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows: list[Row] = []
    for n in (8192, 32768):
        size = n // DOCUMENTS
        for causal in (False, True):
            rows += [*plain(n, causal), *statistics(n, causal)]
        rows += masked(n, "causal window of 4,096", Window(WINDOW - 1), lambda b, h, i, j: (j <= i) & (i - j < WINDOW))
        documents = Causal() & Documents([size] * DOCUMENTS)
        rows += masked(
            n, "eight causal documents", documents, lambda b, h, i, j, size=size: (j <= i) & (i // size == j // size)
        )
    write("gpu", "One GPU, bf16, 32 heads of 128", rows, arguments.output)


if __name__ == "__main__":
    main()
