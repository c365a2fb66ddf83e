"""Tests of gradients of statistics, weights and products of the lazy matrix."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.autograd import gradcheck

from clearhead import Causal, attention
from support.numerics import assert_matches
from support.parameters import slow_except
from support.strategies import cases
from support.weights import PROBLEMS, Problem, sample

SEGMENTS = torch.tensor([[0, 1, -1, 1, 0], [2, 2, 0, -1, 1]])
X, Y = (
    torch.linspace(-1, 2, 10, dtype=torch.float64).view(5, 2),
    torch.linspace(1, -2, 6, dtype=torch.float64).view(3, 2),
)

USES = {
    "entropy": lambda w: w.entropy(),
    "received": lambda w: w.received(),
    "distance": lambda w: w.distance(),
    "peak": lambda w: w.peak().clamp(min=-99),  # −inf without a key
    "mass": lambda w: w.mass([(0, 3), (2, 5)]),
    "mass of segments": lambda w: w.mass(SEGMENTS),
    "pool mean": lambda w: w.pool(2, 3),
    "pool max": lambda w: w.pool(2, 3, reduce="max"),
    "pool of a window": lambda w: w.pool(2, 2, window=((1, 3), (0, 4))),
    "topk": lambda w: w.topk(2).weights,
    "more keys than there are": lambda w: w.topk(7).weights,
    "above": lambda w: w.above(0.05).values,
    "diagonal": lambda w: w.diagonal(-1),
    "max over keys": lambda w: w.max(-1).values,
    "max over queries": lambda w: w.amax(-2),
    "rows": lambda w: w[1, :, 1:],
    "mean over heads": lambda w: w.mean_heads().entropy(),
    "several at once": lambda w: (lambda s: s.entropy * s.distance + s.mass.square().sum(-1) * s.received.sum())(
        w.observe(entropy=True, distance=True, received=True, spans=SEGMENTS)
    ),
    "product": lambda w: w @ X,
    "transposed product": lambda w: w.mT @ Y,
    "sum": lambda w: w.sum((1, -1)),
}


def check(function, leaves: list[torch.Tensor]) -> None:
    assert gradcheck(function, leaves, fast_mode=True, atol=1e-6)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("use", USES)
def test_gradients_match_finite_differences(small_tiles, use, name):
    problem = Problem(name)
    check(lambda *leaves: USES[use](problem.weights(*leaves)), problem.leaves)


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients_of_factors_match_finite_differences(small_tiles, name):
    problem = Problem(name)
    x, y = (torch.randn(2, 4, n, 2, dtype=torch.float64, requires_grad=True) for n in (5, 3))
    check(lambda x, *leaves: problem.weights(*leaves) @ x, [x, *problem.leaves])
    check(lambda y, *leaves: problem.weights(*leaves).mT @ y, [y, *problem.leaves])


# the test above checks the gradients of all uses in a random direction
FULLY_CHECKED = (
    "entropy",
    "distance",
    "mass of segments",
    "pool max",
    "topk",
    "above",
    "mean over heads",
    "several at once",
    "transposed product",
)


@pytest.mark.parametrize("use", slow_except({use: use for use in FULLY_CHECKED}, "entropy"))
def test_every_entry_of_the_gradient_matches_finite_differences(small_tiles, use):
    problem = Problem("sinks, window")
    assert gradcheck(lambda *leaves: USES[use](problem.weights(*leaves)), problem.leaves)


def entropy(weights: torch.Tensor) -> torch.Tensor:
    return -(weights * torch.where(weights > 0, weights, 1.0).log()).sum(dim=-1)


DENSE = {
    "entropy": (lambda w: w.entropy(), lambda a, case: entropy(a)),
    "received": (lambda w: w.received(), lambda a, case: a.sum(dim=-2)),
    "distance": (lambda w: w.distance(), lambda a, case: (a * case.distances()).sum(dim=-1)),
    "mass": (lambda w: w.mass([(0, 1)]), lambda a, case: a[..., :1]),
    "pool": (lambda w: w.pool(2, 3), lambda a, case: torch.nn.functional.adaptive_avg_pool2d(a, (2, 3))),
    "mean": (lambda w: w.mean_heads().entropy(), lambda a, case: entropy(a.mean(dim=1, keepdim=True))),
}


@pytest.mark.parametrize("use", slow_except({use: use for use in DENSE}, "entropy", "received"))
@given(case=cases((torch.float32, torch.bfloat16)))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_gradients_match_the_plain_formula_in_the_same_dtype(small_tiles, use, case):
    lazy, dense = DENSE[use]
    case = case.requiring_grad()
    weights = attention(**case.arguments, return_weights=True)[1]
    got = lazy(weights)
    cotangent = torch.randn(got.shape, generator=torch.Generator().manual_seed(0)).to(got.dtype)
    wide = case.to(torch.float64)
    leaf = wide.plain()["weights"].detach().requires_grad_()
    (reach,) = torch.autograd.grad(dense(leaf, wide), leaf, cotangent.double())
    reach = reach.abs()
    if use in ("entropy", "mean"):  # the terms of ln A + 1 cancel near A = 1/e
        reach = reach + cotangent.double().abs()[..., None]
    sizes = case.score_gradient_terms(torch.where(leaf > 0, reach, 0.0))
    names = [name for name in case.leaves if name != "value"]
    results = [
        torch.autograd.grad(result, [leaves[name] for name in names], cotangent.to(result.dtype), allow_unused=True)
        for result, leaves in (
            (got, case.leaves),
            (dense(wide.plain()["weights"], wide), wide.leaves),
            (dense(case.plain()["weights"], case), case.leaves),
        )
    ]
    for name, found, exact, naive in zip(names, *results, strict=True):
        assert_matches(found, exact, naive.nan_to_num(), scale=sizes[name])


def tensors_of(weights) -> dict[str, torch.Tensor]:
    statistics = weights.observe(entropy=True, received=True, distance=True, peak=True, spans=[(0, 3)], top=2)
    return {
        **{name: getattr(statistics, name) for name in ("entropy", "received", "distance", "peak", "mass")},
        "top": statistics.top.weights,
        "pool": weights.pool(2, 2),
        "pool max": weights.pool(2, 2, reduce="max"),
        "above": weights.above(0.2).values,
        "diagonal": weights.diagonal(),
        "sum": weights.sum(-1),
        "max": weights.max(-2).values,
        "product": weights @ torch.randn(17, 2),
        "transposed product": weights.mT @ torch.randn(13, 2),
        "mean of heads": weights.mean_heads().entropy(),
        "kl": weights.kl(weights.detach()),
        "scaled": weights.scaled(torch.rand(17)).received(),
        "dense": weights.dense(),
    }


def test_statistics_carry_gradients_but_log_sum_exp_does_not():
    weights = sample(requires_grad=True)[-1]
    assert [name for name, tensor in tensors_of(weights).items() if not tensor.requires_grad] == []
    assert not weights.lse.requires_grad
    assert weights.lse.grad_fn is None


def test_nothing_is_recorded_without_gradients():
    weights = sample(requires_grad=True)[-1]
    with torch.no_grad():
        recorded = [name for name, tensor in tensors_of(weights).items() if tensor.requires_grad or tensor.grad_fn]
    assert recorded == []
    recorded = [name for name, tensor in tensors_of(weights.detach()).items() if tensor.requires_grad or tensor.grad_fn]
    assert recorded == []
    assert not weights.detach().requires_grad


def test_integer_results_carry_no_gradient():
    weights = sample(requires_grad=True)[-1]
    for matrix in (weights, weights.mean_heads(), weights.scaled(torch.rand(17, requires_grad=True))):
        results = (matrix.argmax(-1), matrix.argmax(), matrix.max(-2).indices, matrix.topk(2).keys)
        assert not any(result.requires_grad or result.is_floating_point() for result in results)
    assert not weights.above(0.3).indices.requires_grad


def test_one_of_several_results_may_be_unused():
    problem = Problem("sinks, window")
    statistics = problem.weights().observe(entropy=True, received=True, distance=True, spans=[(0, 2)])
    alone = torch.autograd.grad(problem.weights().distance().sum(), problem.leaves)
    together = torch.autograd.grad(statistics.distance.sum(), problem.leaves)
    for grad, other in zip(alone, together, strict=True):
        torch.testing.assert_close(grad, other)


def test_thresholds_above_all_weights_give_zero_gradients():
    query, *_, weights = sample(requires_grad=True)
    weights.above(2).values.sum().backward()
    assert torch.equal(query.grad, torch.zeros_like(query))


@pytest.mark.parametrize("use", [use for use in USES if use not in ("product", "diagonal", "rows", "peak")])
def test_a_second_derivative_is_refused(use):
    problem = Problem("plain")
    gradients = torch.autograd.grad(USES[use](problem.weights()).sum(), problem.leaves, create_graph=True)
    with pytest.raises(RuntimeError, match=r"the second derivative of a function of the weights is not supported"):
        gradients[0].square().sum().backward()


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_empty_matrices_have_gradients(shape):
    query, key, _, _, weights = sample(*shape, mask=None, requires_grad=True)
    results = (weights.entropy(), weights.received(), weights.distance())
    for result in results:
        result.sum().backward(retain_graph=True)
    assert not query.grad.any()
    assert not key.grad.any()


def test_training_on_entropy_makes_attention_sharper():
    query = torch.randn(1, 2, 7, 4, requires_grad=True)
    before = None
    for _ in range(5):
        loss = attention(query, query, query, mask=Causal(), return_weights=True)[1].entropy().mean()
        assert before is None or loss < before
        before = loss.detach()
        loss.backward()
        query = (query - query.grad).detach().requires_grad_()
