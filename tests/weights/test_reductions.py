"""Tests of torch's reductions of the lazy matrix."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from clearhead import AttentionWeights, Causal, attention
from clearhead.ops.arguments import build_call
from support.numerics import assert_matches, poisoned
from support.strategies import cases
from support.weights import PROBLEMS, Problem, assert_same, both_forms, sample

DIMS = [None, -1, 2, 1, 0, (2, 3), (1, -1), (0, 1, 2), (), (0, 1, 2, 3)]


@given(case=cases((torch.float32, torch.float64, torch.bfloat16)))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_reductions_match_extended_precision(small_tiles, case):
    exact, naive = case.exact()["weights"], case.statistics()["weights"]
    logs = case.terms + np.log(2 + case.shape[3])
    for weights in both_forms(case):
        for name, axis in (("sum", -1), ("sum", -2), ("mean", -1), ("mean", -2), ("amax", -1), ("amax", -2)):
            with poisoned():
                got = getattr(weights, name)(axis)
            truth = {"sum": np.sum, "mean": np.mean, "amax": np.max}[name](exact, axis=axis)
            assert_matches(got, truth, getattr(naive, name)(axis), scale=logs * max(1.0, float(np.abs(truth).max())))


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("reduce", ["sum", "mean", "amax"])
def test_dims_and_gradients_are_those_of_torch(small_tiles, reduce, keepdim, name):
    problem = Problem(name)
    weights, dense = problem.weights(), problem.dense()
    dims = DIMS if reduce != "amax" or "empty" not in name else [-1, 2]  # torch splits the gradient of equal maxima
    for dim in dims:
        if reduce == "amax" and dim is None:
            continue
        assert_same(getattr(weights, reduce)(dim, keepdim), getattr(dense, reduce)(dim, keepdim), problem.leaves)


@pytest.mark.parametrize("name", PROBLEMS)
def test_max_and_argmax_are_those_of_torch(small_tiles, name):
    problem = Problem(name)
    weights, dense = problem.weights(), problem.dense()
    for dim in (-1, -2, 1, 0):
        for keepdim in (False, True):
            got, exact = weights.max(dim, keepdim), dense.max(dim, keepdim)
            assert_same(got.values, exact.values, problem.leaves)
            for indices in (got.indices, weights.argmax(dim, keepdim)):  # equal weights may differ by rounding
                cells = dense.gather(dim, indices if keepdim else indices.unsqueeze(dim))
                torch.testing.assert_close(cells, dense.amax(dim, keepdim=True))
            assert not got.indices.requires_grad
    torch.testing.assert_close(dense.flatten()[weights.argmax()], dense.max())
    assert weights.argmax(keepdim=True).shape == (1, 1, 1, 1)
    torch.testing.assert_close(weights.max(), dense.max())


def test_argmax_of_an_empty_row_is_zero_and_its_peak_minus_infinity():
    x = torch.randn(1, 2, 3, 4)
    weights = attention(x, x, x, mask=Causal(), query_start=-2, return_weights=True)[1]
    assert (weights.argmax(-1)[..., :2] == 0).all()
    assert (weights.max(-1).values[..., :2] == 0).all()
    assert (weights.peak()[..., :2] == -torch.inf).all()
    assert torch.equal(weights.peak()[..., 2], weights.scores[0, :, 2, 0][None])


@pytest.mark.parametrize("n", [7, 300])
def test_the_first_of_equal_weights_is_the_largest(n):
    x = torch.zeros(1, 2, n, 4)
    weights = attention(x, x, x, return_weights=True)[1]
    for matrix in (weights, weights.mean_heads()):
        assert matrix.argmax() == 0
        assert not matrix.argmax(-1).any()
        assert not matrix.argmax(-2).any()


def test_torch_functions_are_streamed():
    x = torch.randn(1, 2, 9, 4)
    weights = attention(x, x, x, return_weights=True)[1]
    dense, weights.dense = weights.dense(), None  # a call of dense() raises
    torch.testing.assert_close(torch.sum(weights, -1), dense.sum(-1))
    torch.testing.assert_close(torch.sum(input=weights, dim=(1, 2)), dense.sum((1, 2)))
    torch.testing.assert_close(torch.mean(weights, dim=-2, keepdim=True), dense.mean(-2, keepdim=True))
    torch.testing.assert_close(torch.amax(weights, -1), dense.amax(-1))
    torch.testing.assert_close(torch.max(weights, -1).values, dense.max(-1).values)
    torch.testing.assert_close(torch.max(weights), dense.max())
    assert torch.equal(torch.argmax(weights, -1), dense.argmax(-1))
    torch.testing.assert_close(torch.matmul(weights, x), dense @ x)
    torch.testing.assert_close(weights.matmul(x[0, 0]), dense @ x[0, 0])


def test_other_arguments_of_torch_reduce_the_dense_matrix():
    weights = sample()[-1]
    dense = weights.dense()
    assert torch.equal(weights.sum(axis=1), dense.sum(axis=1))
    assert weights.sum(-1, dtype=torch.float64).dtype == torch.float64
    assert torch.equal(weights.max(dense + 1), dense + 1)
    assert torch.equal(torch.max(weights, weights), dense)
    assert torch.equal(weights.sum(np.int64(0)), dense.sum(0))


def test_the_gradient_of_a_maximum_over_several_axes_reaches_the_largest_weight():
    problem = Problem("empty rows")
    weights, dense = problem.weights(), problem.dense()
    assert_same(weights.amax((2, 3)), dense.amax((2, 3)), problem.leaves)
    assert_same(weights.amax(()), dense.amax(()), problem.leaves)


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda w: w.sum(4), IndexError, r"dim is 4; expected an axis from −4 to 3 of \[batch, heads, q_len, kv_len\]"),
        (lambda w: w.mean((1, -5)), IndexError, r"dim is -5; expected an axis from −4 to 3"),
        (lambda w: w.amax((1, -3)), ValueError, r"dim is \(1, -3\); expected each axis once"),
        (lambda w: w.sum("keys"), TypeError, r"dim is 'keys'; expected an axis, several axes or None"),
        (lambda w: w.sum(True), TypeError, r"dim is True; expected an axis"),
        (lambda w: w.max(4), ValueError, r"dim is 4; expected a whole number of at least -4 and at most 3"),
        (lambda w: w.argmax((1, 2)), TypeError, r"dim is \(1, 2\); expected a whole number"),
        (lambda w: w.sum(-1, 2), TypeError, r"keepdim is 2; expected True or False"),
    ],
)
def test_wrong_dims_are_refused(use, error, message):
    with pytest.raises(error, match=message):
        use(sample()[-1])


def test_maxima_over_an_empty_axis_are_refused():
    for lengths, axis in (((0, 5), 2), ((5, 0), 3)):
        weights = sample(*lengths, mask=None)[-1]
        with pytest.raises(IndexError, match=rf"axis {axis} has size 0; expected a maximum over at least one weight"):
            weights.max(axis)
        assert weights.sum() == 0
        assert weights.mean().isnan()
        assert weights.amax(5 - axis).numel() == 0


def test_a_sum_over_heads_above_the_limit_is_refused_and_names_other_ways():
    x = torch.zeros(1, 2, 2**14, 1)
    weights = AttentionWeights(build_call(x, x, x), torch.zeros(x.shape[:3]))  # without computing attention
    for reduce in ("sum", "mean", "amax", "max"):
        with pytest.raises(ValueError, match=r"more than the limit .*\.part\(\) or fewer rows, \.pool\(\)"):
            getattr(weights, reduce)(1)
