"""Comparisons of a backend with the plain equation in extended precision."""

import math

import torch

from clearhead import attention
from support.numerics import Case, assert_lse_matches, assert_matches, poisoned

BACKENDS = ("reference", "streaming")
DENSE = torch.rand((2, 1, 7, 11), generator=torch.Generator().manual_seed(1)) < 0.5


def random_inputs(dtype: torch.dtype = torch.float64, **options):
    """Return query, key and value: 2 sequences, 6 query heads, 3 key heads, 7 queries, 11 keys, widths 5 and 13."""
    generator = torch.Generator().manual_seed(2)
    shapes = ((2, 6, 7, 5), (2, 3, 11, 5), (2, 3, 11, 13))
    return tuple(torch.randn(shape, generator=generator, dtype=dtype, **options) for shape in shapes)


def check_forward(case: Case, backend: str) -> None:
    """Assert that outputs and log-sum-exps are accurate, and that rows without keys are 0."""
    with poisoned():
        output, weights = attention(**case.arguments, return_weights=True, backend=backend)
    exact, naive = case.exact(), case.statistics()
    values = float(case.value.abs().amax()) if case.value.numel() else 0.0
    assert_matches(output, exact["output"], case.plain()["output"], scale=values * max(1.0, case.terms))
    assert_lse_matches(weights.lse, exact["lse"], naive["lse"], scale=case.terms + math.log(case.shape[3]))
    empty = ~case.allowed.any(dim=-1)
    assert (output[empty] == 0).all()


def check_gradients(case: Case, backend: str) -> None:
    """Assert that the gradients of all inputs are accurate."""
    leaves = case.requiring_grad()
    output = attention(**leaves.arguments, backend=backend)
    cotangent = torch.randn(output.shape, dtype=torch.float64)

    def gradients(case: Case, output: torch.Tensor) -> dict[str, torch.Tensor]:
        leaves = list(case.leaves.values())
        computed = torch.autograd.grad(output, leaves, cotangent.to(output.dtype), allow_unused=True)
        return dict(zip(case.leaves, computed, strict=True))

    naive, exact = leaves.to(case.query.dtype), leaves.to(torch.float64)
    got, plain, truth = (
        gradients(leaves, output),
        gradients(naive, naive.plain()["output"]),
        gradients(exact, exact.plain()["output"]),
    )
    terms = exact.gradient_terms(cotangent)
    for name, gradient in got.items():
        if gradient is None:
            assert truth[name] is None or not truth[name].abs().max(), f"no gradient of {name}"
        else:
            assert_matches(gradient, truth[name], plain[name], scale=terms[name])
