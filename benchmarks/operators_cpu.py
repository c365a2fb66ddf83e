"""Benchmark of products, divergences and statistics with gradients on this CPU, against the dense formulas in torch.

Times are the shortest of interleaved rounds in the same run; the ratio is peer / ours, or ours / peer for products,
which are compared with plain SDPA.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from clearhead import AttentionWeights, attention
from measuring import RESULTS, interleaved, write

HEADS, DIM, WIDTH = 12, 64, 64
Row = dict[str, object]


def inputs(n: int, dim: int = DIM, grad: bool = True) -> tuple[Tensor, Tensor]:
    query, key = (torch.randn(1, HEADS, n, dim, requires_grad=grad) for _ in range(2))
    return query, key


def weights_of(query: Tensor, key: Tensor) -> AttentionWeights:
    return attention(query, key, key.detach(), return_weights=True)[1]


def dense(query: Tensor, key: Tensor) -> Tensor:
    return torch.softmax(query @ key.mT * query.shape[3] ** -0.5, dim=-1)


def row(case: str, n: int, ours: float, peer: str, theirs: float, ratio: float, target: str) -> Row:
    return {
        "case": case, "n": n, "ours s": round(ours, 4), "peer": peer, "peer s": round(theirs, 4),
        "ratio": round(ratio, 3), "target": target,
    }  # fmt: skip


def products(n: int, rounds: int) -> Iterator[Row]:
    query, key = inputs(n, grad=False)
    weights = weights_of(query, key)
    right, left = torch.randn(n, WIDTH), torch.randn(1, HEADS, n, WIDTH)
    times = interleaved(
        {
            "SDPA": lambda: scaled_dot_product_attention(query, key, key),
            "weights @ x": lambda: weights @ right,
            "weights.mT @ y": lambda: weights.mT @ left,
        },
        rounds,
    )
    for case, target in (("weights @ x", "≤ 1.15"), ("weights.mT @ y", "≤ 1.6")):
        ratio = times[case] / times["SDPA"]
        yield row(case, n, times[case], "SDPA: ours / peer", times["SDPA"], ratio, target)


def with_gradients(n: int, rounds: int) -> Iterator[Row]:
    """Compare losses of the matrix, forward and backward, with the dense formulas.

    Both start from queries and keys. Ours also has log-sum-exp, which the forward pass of a layer computes anyway.
    """
    teacher, student = inputs(n, grad=False), inputs(n, 32)
    teacher_weights, student_weights = weights_of(*teacher), weights_of(*student)

    def stepped(loss: Callable[[], Tensor]) -> Callable[[], None]:
        def step() -> None:
            for tensor in student:
                tensor.grad = None
            loss().backward()

        return step

    def dense_kl() -> Tensor:
        target, logits = dense(*teacher), student[0] @ student[1].mT * 32**-0.5
        return (target * (target.log() - torch.log_softmax(logits, dim=-1))).sum(dim=-1).mean()

    def dense_entropy() -> Tensor:
        weights = dense(*student)
        return -(weights * weights.log()).sum(dim=-1).mean()

    cases = {
        "kl, forward and backward": (lambda: teacher_weights.kl(student_weights).mean(), dense_kl, "≥ 4"),
        "entropy, forward and backward": (lambda: student_weights.entropy().mean(), dense_entropy, ""),
    }
    for case, (ours, peer, target) in cases.items():
        times = interleaved({"ours": stepped(ours), "dense": stepped(peer)}, rounds)
        ratio = times["dense"] / times["ours"]
        yield row(case, n, times["ours"], "the dense formula", times["dense"], ratio, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for operators-cpu.json and .md")
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = [*products(arguments.n, 3 * arguments.rounds), *with_gradients(arguments.n, arguments.rounds)]
    title = f"Products and losses of the matrix on the CPU: {HEADS} heads of {DIM}, float32"
    write("operators-cpu", title, rows, arguments.output)


if __name__ == "__main__":
    main()
