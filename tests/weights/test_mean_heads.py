"""Tests of the lazy mean over heads."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.nn.functional import adaptive_avg_pool2d, adaptive_max_pool2d

from clearhead import attention
from support.numerics import assert_matches, poisoned
from support.strategies import cases
from support.weights import PROBLEMS, Problem, assert_same, both_forms, sample


def entropy(weights: torch.Tensor) -> torch.Tensor:
    return -(weights * torch.where(weights > 0, weights, 1.0).log()).sum(dim=-1)


@given(case=cases((torch.float32, torch.float64, torch.bfloat16)))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_statistics_match_extended_precision(small_tiles, case):
    exact, naive = case.exact()["weights"].mean(axis=1, keepdims=True), case.statistics()["weights"].mean(1, True)
    logs = case.terms + np.log(2 + case.shape[3])
    for weights in both_forms(case):
        with poisoned():
            mean = weights.mean_heads()
            dense, received, entropies = mean.dense(), mean.received(), mean.entropy()
        assert_matches(dense, exact, naive, scale=logs)
        received_exact = exact.sum(axis=-2)
        assert_matches(received, received_exact, naive.sum(-2), scale=logs * max(1.0, float(received_exact.max())))
        exact_entropy = -(exact * np.log(np.where(exact > 0, exact, 1))).sum(axis=-1)
        assert_matches(entropies, exact_entropy, entropy(naive), scale=logs * max(1.0, float(exact_entropy.max())))


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_everything_is_that_of_the_dense_mean(small_tiles, name, groups):
    problem = Problem(name)
    mean = problem.weights().mean_heads(groups=groups)
    exact = problem.dense().unflatten(1, (groups, -1)).mean(dim=2)
    x = torch.randn(2, groups, 5, 3, dtype=torch.float64, requires_grad=True)
    y = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert mean.shape == exact.shape
    top = mean.topk(2)
    for got, expected in (
        (mean.dense(), exact),
        (mean[1, 0, 1:, ::2], exact[1, 0, 1:, ::2]),
        (mean[:, -1, 2], exact[:, -1, 2]),
        (mean.mT[0, 0, 1:3], exact.mT[0, 0, 1:3]),
        (mean.entropy(), entropy(exact)),
        (mean.received(), exact.sum(-2)),
        (mean.mass([(0, 4), (1, 3)]), torch.stack([exact[..., :4].sum(-1), exact[..., 1:3].sum(-1)], -1)),
        (top.weights, torch.where(top.keys >= 0, exact.gather(-1, top.keys.clamp(min=0)), 0.0)),
        (mean.pool(2, 3), adaptive_avg_pool2d(exact, (2, 3))),
        (mean.sum((0, -1)), exact.sum((0, -1))),
        (mean @ x, exact @ x),
        (mean.mT @ y, exact.mT @ y),
    ):
        assert_same(got, expected, [*problem.leaves, x, y])
    torch.testing.assert_close(top.weights, exact.topk(2).values)
    torch.testing.assert_close(mean.pool(2, 3, reduce="max"), adaptive_max_pool2d(exact, (2, 3)))
    torch.testing.assert_close(mean.amax(-2), exact.amax(-2))


def test_observe_returns_the_results_of_the_methods():
    mean = sample()[-1].mean_heads()
    options = {"entropy": True, "received": True, "distance": True, "spans": {"a": (0, 3)}, "top": 2, "pool": (2, 3)}
    statistics = mean.observe(**options, reduce="max")
    assert list(statistics) == ["entropy", "received", "distance", "mass", "top", "pooled"]
    assert torch.equal(statistics.entropy, mean.entropy())
    assert torch.equal(statistics.distance, mean.distance())
    assert torch.equal(statistics.mass, mean.mass([(0, 3)]))
    assert torch.equal(statistics.top.keys, mean.topk(2).keys)
    assert torch.equal(statistics.pooled, mean.pool(2, 3, reduce="max"))
    with pytest.raises(ValueError, match=r"peak is True; expected False, because a mean over heads has no scores"):
        mean.observe(peak=True)


def test_gradients_follow_the_matrix():
    weights = sample(requires_grad=True)[-1]
    assert weights.mean_heads().requires_grad
    assert not weights.mean_heads().detach().entropy().requires_grad
    with torch.no_grad():
        assert weights.mean_heads().entropy().grad_fn is None
    assert repr(weights.mean_heads(3)).startswith("MeanHeads(3 of AttentionWeights(")


@pytest.mark.parametrize("lengths", [(0, 5), (5, 0)])
def test_empty_matrices(lengths):
    q_len, kv_len = lengths
    mean = sample(*lengths, mask=None)[-1].mean_heads()
    assert mean.dense().shape == (2, 1, q_len, kv_len)
    assert torch.equal(mean.entropy(), torch.zeros(2, 1, q_len))
    assert torch.equal(mean.received(), torch.zeros(2, 1, kv_len))
    assert torch.equal(mean.pool(2, 3, reduce="max"), torch.zeros(2, 1, 2, 3))
    assert mean.topk(2).keys.shape == (2, 1, q_len, 2)


def test_means_of_scaled_and_hidden_matrices(small_tiles):
    problem = Problem("bias, dense mask")
    factors = torch.tensor([0.5, 0, 2, 1, 3], dtype=torch.float64, requires_grad=True)
    mean, exact = problem.weights().scaled(factors).mean_heads(), (problem.dense() * factors).mean(1, keepdim=True)
    assert_same(mean.dense(), exact, [*problem.leaves, factors])
    assert_same(mean.topk(2).weights, exact.topk(2).values, [*problem.leaves, factors])
    assert_same(mean @ torch.ones(5, dtype=torch.float64), exact.sum(-1), [*problem.leaves, factors])
    with pytest.raises(ValueError, match=r"entropy is not defined for scaled rows"):
        mean.entropy()
    hidden = problem.weights().hiding(2).mean_heads().dense()
    exact = problem.dense().detach().mean(1, keepdim=True) * torch.tensor([1, 1, 0, 1, 1])
    torch.testing.assert_close(hidden, exact)


@pytest.mark.parametrize(
    ("groups", "error", "message"),
    [
        (4, ValueError, r"groups is 4; expected a divisor of the number of heads, 6"),
        (0, ValueError, r"groups is 0; expected a whole number of at least 1"),
        (1.5, TypeError, r"groups is 1.5; expected a whole number"),
    ],
)
def test_wrong_groups_are_refused(groups, error, message):
    with pytest.raises(error, match=message):
        sample()[-1].mean_heads(groups=groups)


def test_wrong_arguments_are_refused():
    x = torch.randn(2, 6, 5, 4)
    mean = attention(x, x, x, return_weights=True)[1].mean_heads(2)
    with pytest.raises(ValueError, match=r"the right factor has shape \(2, 6, 5, 1\); .*heads = 2 or 1, kv_len = 5"):
        _ = mean @ torch.randn(2, 6, 5, 1)
    with pytest.raises(ValueError, match=r"more than the limit of 3"):
        mean.dense(limit=3)
    with pytest.raises(IndexError, match=r"index 2 is out of range for heads of size 2"):
        mean[0, 2]
