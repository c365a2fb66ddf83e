"""Benchmark of heads wider than 128 on a GPU: cuDNN, flash attention and the Triton kernels, in the same run.

The widths that `_suits_cudnn` in clearhead/ops/sdpa.py allows follow from the first table. The second table has the
time of the backward pass with an expanded gradient, as in `output.sum().backward()`.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from clearhead import Causal, attention
from gpu_timing import Call, forward_and_both, fused, inputs, milliseconds
from measuring import RESULTS, write

HEADS = 8
WIDTHS = (144, 160, 192, 256)
LENGTHS = (512, 2048, 8192)


def wide(width: int, n: int, causal: bool) -> list[dict[str, object]]:
    tensors = inputs(n, heads=HEADS, dim=width)
    calls: dict[str, Call] = {
        "cudnn": fused(SDPBackend.CUDNN_ATTENTION, tensors, causal),
        "flash": fused(SDPBackend.FLASH_ATTENTION, tensors, causal),
        "triton": partial(attention, *tensors, mask=Causal() if causal else None, backend="triton"),
        "auto": partial(attention, *tensors, mask=Causal() if causal else None),
    }
    for name in [name for name, call in calls.items() if not runs(call)]:
        del calls[name]
    found = []
    for passes, times in forward_and_both(calls, tensors).items():
        best = min(own for name, own in times.items() if name != "auto")
        facts = {"width": width, "n": n, "causal": causal, "passes": passes}
        found.append(
            {
                **facts,
                **{name: f"{own:.3f}" for name, own in times.items()},
                "best / auto": f"{best / times['auto']:.2f}",
            }
        )
    return found


def runs(call: Call) -> bool:
    try:
        call().sum().backward()
    except RuntimeError as error:
        print(str(error).splitlines()[0])
        return False
    return True


def expanded_gradient(n: int, width: int) -> list[dict[str, object]]:
    tensors = inputs(n, dim=width)
    dense = torch.ones_like(tensors[0])
    expanded = torch.ones((), dtype=dense.dtype, device="cuda").expand_as(dense)

    def backward(output: Tensor, gradient: Tensor) -> None:
        torch.autograd.grad(output, tensors, gradient, retain_graph=True)

    found = []
    for name in ("triton", "sdpa"):
        output = attention(*tensors, mask=Causal(), backend=name)
        times = milliseconds(
            {"dense": partial(backward, output, dense), "expanded": partial(backward, output, expanded)}
        )
        shown = {key: f"{own:.3f}" for key, own in times.items()}
        ratio = f"{times['expanded'] / times['dense']:.2f}"
        found.append({"backend": name, "width": width, "n": n, **shown, "expanded / dense": ratio})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = [row for width in WIDTHS for n in LENGTHS for causal in (False, True) for row in wide(width, n, causal)]
    write("gpu-wide", f"Wide heads: {HEADS} heads, batch 1, bf16; milliseconds", rows, arguments.output)
    rows = [row for n in (2048, 8192) for width in (64, 128) for row in expanded_gradient(n, width)]
    title = "Backward pass by the gradient's layout: 32 heads, batch 1, causal, bf16; milliseconds"
    write("gpu-gradients", title, rows, arguments.output)


if __name__ == "__main__":
    main()
