"""Products, statistics and divergences of the matrix, and their gradients, against cuDNN's attention.

Log-sum-exp is computed once, outside of what is timed, because the forward pass of a layer computes it anyway.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from clearhead import AttentionWeights, attention
from gpu_timing import DIM, HEADS, Row, both_passes, error_row, fused, inputs, milliseconds, row, shortened, timed

LENGTHS = (8192, 32768)
DENSE_LENGTH = 8192  # a matrix of 32 heads takes 8.6 GB in float32
ONCE_LENGTH = 131072  # timed once
COMPILED_LENGTH = 2048
WIDTH, SPANS = 128, 8
WITH_GRADIENT = "≤ 2"
Step = Callable[[], object]


# -- steps: each function builds its inputs of n tokens, and returns what is timed -----------------------------------


def weights_of(tensors: list[Tensor]) -> AttentionWeights:
    return attention(*tensors, return_weights=True)[1]


def mass(weights: AttentionWeights) -> Tensor:
    """Return the attention on 8 spans of equal length."""
    size = weights.shape[3] // SPANS
    return weights.mass([(start * size, (start + 1) * size) for start in range(SPANS)])


def product(n: int) -> Step:
    weights = weights_of(inputs(n, grad=False))
    right = torch.randn(n, WIDTH, device="cuda", dtype=torch.bfloat16)
    return lambda: weights @ right


def transposed_product(n: int) -> Step:
    weights = weights_of(inputs(n, grad=False))
    left = torch.randn(1, HEADS, n, WIDTH, device="cuda", dtype=torch.bfloat16)
    return lambda: weights.mT @ left


def mass_alone(n: int) -> Step:
    weights = weights_of(inputs(n, grad=False))
    return lambda: mass(weights)


def step(loss: Callable[[], Tensor], tensors: list[Tensor]) -> Step:
    """Return a step that computes a loss and its gradients."""

    def both() -> None:
        for tensor in tensors:
            tensor.grad = None
        loss().backward()

    return both


def with_gradient(statistic: Callable[[AttentionWeights], Tensor], n: int) -> Step:
    """Return a step whose loss is the sum of a statistic times random factors."""
    tensors = inputs(n)
    weights = weights_of(tensors)
    with torch.no_grad():
        factors = torch.randn_like(statistic(weights))
    return step(lambda: (statistic(weights) * factors).sum(), tensors[:2])


def indexer(n: int) -> Step:
    """Return a step that trains one head to attend as the mean of all heads of a teacher."""
    teacher, tensors = weights_of(inputs(n, grad=False)), inputs(n, heads=1)
    student = weights_of(tensors)
    return step(lambda: teacher.mean_heads().kl(student).mean(), tensors[:2])


def distillation(n: int) -> Step:
    """Return a step that trains each head to attend as the same head of a teacher."""
    teacher, tensors = weights_of(inputs(n, grad=False)), inputs(n)
    student = weights_of(tensors)
    return step(lambda: teacher.kl(student).mean(), tensors[:2])


def cudnn(n: int, backward: bool) -> Step:
    tensors = inputs(n, grad=backward)
    call = fused(SDPBackend.CUDNN_ATTENTION, tensors, causal=False)
    return functools.partial(both_passes, call, tensors, torch.randn_like(tensors[0])) if backward else call


# -- dense formulas: products in bf16, softmax in float32 ------------------------------------------------------------


def dense_logs(query: Tensor, key: Tensor) -> Tensor:
    return torch.log_softmax((query @ key.mT).float() * DIM**-0.5, dim=-1)


def dense_entropy(n: int) -> Step:
    query, key, _ = inputs(n)
    factors = torch.randn(1, HEADS, n, device="cuda")

    def loss() -> Tensor:
        logs = dense_logs(query, key)
        return -((logs.exp() * logs).sum(dim=-1) * factors).sum()

    return step(loss, [query, key])


def dense_kl(n: int, mean: bool) -> Step:
    """Return the step of `indexer` if `mean`, otherwise that of `distillation`."""
    teacher = inputs(n, grad=False)[:2]
    student = inputs(n, heads=1 if mean else HEADS)[:2]

    def loss() -> Tensor:
        target = dense_logs(*teacher).exp_()
        if mean:
            target = target.mean(dim=1, keepdim=True)
        return (target * (target.log() - dense_logs(*student))).sum(dim=-1).mean()

    return step(loss, student)


# -- comparisons -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operator:
    """A computation, and what it is compared with."""

    make: Callable[[int], Step]
    backward: bool = True  # whether cuDNN's time includes the backward pass
    dense: Callable[[int], Step] | None = None
    target: str = "reported"


OPERATORS = {
    "weights @ x": Operator(product, backward=False),
    "weights.mT @ y": Operator(transposed_product, backward=False),
    "mass of 8 spans": Operator(mass_alone, backward=False),
    "entropy with gradient": Operator(
        functools.partial(with_gradient, AttentionWeights.entropy), dense=dense_entropy, target=WITH_GRADIENT
    ),
    "mass of 8 spans with gradient": Operator(functools.partial(with_gradient, mass), target=WITH_GRADIENT),
    "received with gradient": Operator(
        functools.partial(with_gradient, AttentionWeights.received), target=WITH_GRADIENT
    ),
    "kl with gradient, indexer": Operator(indexer, dense=functools.partial(dense_kl, mean=True)),
    "kl with gradient, distillation": Operator(distillation, dense=functools.partial(dense_kl, mean=False)),
}
ONCE = ("mass of 8 spans", "entropy with gradient", "mass of 8 spans with gradient", "kl with gradient, indexer")


def compare_operators() -> Iterator[list[Row]]:
    """Yield the rows of each computation, or the row of its error."""
    for n in LENGTHS:
        for name in OPERATORS:
            yield guarded(compare, name, n)
    for name in ONCE:
        yield guarded(compare_once, name, ONCE_LENGTH)


def guarded(comparison: Callable[[str, int], Iterator[Row]], name: str, n: int) -> list[Row]:
    """Return the rows of a comparison up to an error, and a row with the error."""
    rows: list[Row] = []
    try:
        for result in comparison(name, n):
            rows.append(result)
    except Exception as error:
        traceback.print_exc()
        rows.append(error_row(name, n, shortened(error)))
    return rows


def compare(name: str, n: int) -> Iterator[Row]:
    operator = OPERATORS[name]
    times = milliseconds({"ours": operator.make(n), "cuDNN": cudnn(n, operator.backward)})
    ours, theirs = times["ours"], times["cuDNN"]
    yield row(name, n, ours, cudnn_name(operator.backward), theirs, operator.target, ours / theirs)
    if operator.dense is not None and n == DENSE_LENGTH:
        torch.cuda.empty_cache()
        dense = milliseconds({"": operator.dense(n)})[""]
        yield row(name, n, ours, "the dense formula", dense, "reported")


def compare_once(name: str, n: int) -> Iterator[Row]:
    """Time one call, without warming up, and measure the memory that it takes in addition to its inputs."""
    operator = OPERATORS[name]
    theirs, ours = cudnn_once(n, operator.backward), operator.make(n)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    taken = timed(ours)
    extra = (torch.cuda.max_memory_allocated() - held) / 2**20
    case = f"{name}, once ({extra:.0f} MiB)"
    yield row(case, n, taken, cudnn_name(operator.backward), theirs, "reported", taken / theirs)


@functools.cache
def cudnn_once(n: int, backward: bool) -> float:
    """Return the time of one forward pass, or of one forward and backward pass."""
    call = cudnn(n, backward)
    call()  # cuDNN plans for every new shape
    return timed(call)


def cudnn_name(backward: bool) -> str:
    return f"cuDNN, {'forward + backward' if backward else 'forward'}: ours / peer"


def compile_operator(name: str) -> None:
    """Compile the kernels of a computation into the on-disk cache."""
    try:
        OPERATORS[name].make(COMPILED_LENGTH)()
        torch.cuda.synchronize()
    except Exception:  # the comparison reports it, and the others go on
        traceback.print_exc()
