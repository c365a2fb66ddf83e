"""Tests of the weights above a threshold."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from clearhead import attention
from support.numerics import assert_matches
from support.strategies import cases
from support.weights import PROBLEMS, Problem, assert_same, both_forms, sample


@given(case=cases((torch.float32, torch.float64, torch.bfloat16)))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_values_match_extended_precision(small_tiles, case):
    exact, naive = case.exact()["weights"], case.statistics()["weights"]
    for weights in both_forms(case):
        indices, values = weights.above(0.1)
        cells = tuple(indices)
        assert (values >= 0.0999).all()
        assert len(torch.unique(indices, dim=1).T) == len(values)
        truth = exact[tuple(part.numpy() for part in cells)]
        assert_matches(values, truth, naive[cells], scale=case.terms + np.log(2 + case.shape[3]))
        rest = naive.clone()
        rest[cells] = 0
        assert (rest <= 0.1001).all()  # none is missing


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("threshold", [0, 0.15, 1])
def test_cells_are_in_row_major_order(small_tiles, name, threshold):
    problem = Problem(name)
    indices, values = problem.weights().above(threshold)
    dense = problem.dense()
    if threshold != 1:  # weights of 1 may differ by rounding
        assert torch.equal(indices, (dense > threshold).nonzero().mT)
    assert indices.shape == (4, len(values))
    assert_same(values, dense[tuple(indices)], problem.leaves)


def test_weights_equal_to_the_threshold_are_left_out():
    x = torch.zeros(1, 1, 1, 2)
    weights = attention(x, x, x, return_weights=True)[1]  # one weight of exactly 1
    assert weights.above(1).values.numel() == 0
    assert weights.above(0.999).values.numel() == 1


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda w: w.above(0, limit=10), ValueError, r"^[\d,]+ weights are above 0, more than the limit of 10; raise"),
        (lambda w: w.above(-0.1), ValueError, r"threshold is -0.1; expected at least 0"),
        (lambda w: w.above(float("nan")), ValueError, r"threshold is nan; expected a finite number"),
        (lambda w: w.above("0.1"), TypeError, r"threshold is '0.1'; expected a finite number"),
        (lambda w: w.above(0.1, limit=-1), ValueError, r"limit is -1; expected a whole number of at least 0"),
        (lambda w: w.above(0.1, limit=1.5), TypeError, r"limit is 1.5; expected a whole number"),
    ],
)
def test_wrong_arguments_are_refused(use, error, message):
    with pytest.raises(error, match=message):
        use(sample()[-1])


def test_the_error_counts_all_weights_above(small_tiles):
    weights = sample()[-1]
    count = int((weights.dense() > 0.05).sum())
    with pytest.raises(ValueError, match=rf"^{count:,} weights are above 0.05, more than the limit of {count - 1:,};"):
        weights.above(0.05, limit=count - 1)
    assert weights.above(0.05, limit=count).values.numel() == count


@pytest.mark.parametrize("lengths", [(0, 5), (5, 0)])
def test_empty_matrices_have_no_weights_above(lengths):
    assert sample(*lengths, mask=None)[-1].above(0).indices.shape == (4, 0)
