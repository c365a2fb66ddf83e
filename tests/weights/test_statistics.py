"""Tests of statistics of the lazy matrix against extended precision, and of pooling."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.functional import adaptive_avg_pool2d, adaptive_max_pool2d

from clearhead import Causal, attention
from support.numerics import Case, assert_lse_matches, assert_matches, poisoned
from support.strategies import cases
from support.weights import both_forms, sample

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@given(case=cases(DTYPES))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cells_and_statistics_match_extended_precision(small_tiles, case):
    exact, naive = case.exact(), case.statistics()
    logs = case.terms + np.log(2 + case.shape[3])  # bound of the log weights, whose rounding error limits the precision
    for weights in both_forms(case, "streaming"):
        with poisoned():
            statistics = weights.observe(entropy=True, received=True, distance=True, top=3)
            dense = weights.dense()
        assert_matches(dense, exact["weights"], naive["weights"], scale=logs)
        for name in ("entropy", "received", "distance"):  # sums of weights, each with the error of its log weight
            size = max(1.0, float(np.abs(exact[name]).max()))
            assert_matches(getattr(statistics, name), exact[name], naive[name], scale=logs * size)
        for alone, together in zip(
            (weights.entropy(), weights.received(), weights.distance()),
            (statistics.entropy, statistics.received, statistics.distance),
            strict=True,
        ):
            assert torch.equal(alone, together)
        check_top(statistics.top, case, dense)


def test_observe_pools_in_the_same_pass():
    x = torch.randn(1, 2, 13, 4)
    weights = attention(x, x, x, mask=Causal(), return_weights=True)[1]
    statistics = weights.observe(entropy=True, pool=(3, 5), reduce="max")
    assert torch.equal(statistics.pooled, weights.pool(3, 5, reduce="max"))
    assert list(statistics) == ["entropy", "pooled"]
    with pytest.raises(AttributeError, match=r"received was not requested; call observe\(received=True\)"):
        _ = statistics.received
    empty = attention(x[:, :, :0], x, x, return_weights=True)[1]
    assert torch.equal(empty.observe(pool=(2, 2)).pooled, torch.zeros(1, 2, 2, 2))


def check_top(top, case: Case, dense: torch.Tensor) -> None:
    counts = case.allowed.sum(dim=-1)
    assert torch.equal((top.keys >= 0).sum(dim=-1), counts.clamp(max=3))
    assert (top.weights[top.keys < 0] == 0).all()
    weights_of_keys = dense.gather(-1, top.keys.clamp(min=0)) * (top.keys >= 0) if dense.shape[-1] else top.weights
    torch.testing.assert_close(top.weights, weights_of_keys, rtol=1e-5, atol=1e-6)
    if dense.shape[-1] >= 3:
        torch.testing.assert_close(top.weights, dense.topk(3, dim=-1).values, rtol=1e-5, atol=1e-6)


@given(case=cases(), offset=st.integers(-4, 4))
def test_diagonals_match_extended_precision(case, offset):
    exact, naive = case.exact()["weights"], case.statistics()["weights"]
    rows = np.arange(case.shape[2])

    def along(matrix, zeros):
        result = zeros
        for b, start in enumerate(case.starts):
            keys = start + rows + offset
            valid = (keys >= 0) & (keys < case.shape[3])
            result[b][:, rows[valid]] = matrix[b][:, rows[valid], keys[valid]]
        return result

    shape = case.shape[:3]
    for weights in both_forms(case):
        assert_matches(
            weights.diagonal(offset),
            along(exact, np.zeros(shape, np.longdouble)),
            along(naive, torch.zeros(shape)),
            scale=case.terms,
        )


@given(
    case=cases(),
    size=st.tuples(st.integers(1, 19), st.integers(1, 19)),
    reduce=st.sampled_from(["mean", "max"]),
    corners=st.tuples(*[st.floats(0, 1)] * 4),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pool_is_adaptive_pooling_of_any_rectangle(small_tiles, case, size, reduce, corners):
    q_len, kv_len = case.shape[2:]
    (row, row_end), (key, key_end) = (
        sorted((int(a * (length - 1)), int(b * (length - 1))))
        for a, b, length in ((*corners[:2], q_len), (*corners[2:], kv_len))
    )
    window = ((row, row_end + 1), (key, key_end + 1))
    function = adaptive_avg_pool2d if reduce == "mean" else adaptive_max_pool2d
    for weights in both_forms(case):
        dense = weights.dense()
        torch.testing.assert_close(weights.pool(*size, reduce=reduce), function(dense, size))
        part = dense[..., slice(*window[0]), slice(*window[1])]
        torch.testing.assert_close(weights.pool(*size, reduce=reduce, window=window), function(part, size))


@given(case=cases(DTYPES))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_peak_is_the_largest_score(small_tiles, case):
    exact = case.exact()["scores"].max(axis=-1)
    naive = case.to(case.statistics_dtype).plain()["scores"].detach().amax(dim=-1)
    for weights in both_forms(case):
        assert_lse_matches(weights.peak(), exact, naive, scale=case.terms)


def test_observe_takes_a_range_of_queries():
    weights = sample()[-1]
    last = weights.observe(queries=slice(-3, None), received=True, entropy=True, peak=True)
    torch.testing.assert_close(last.received, weights.dense()[:, :, -3:].sum(dim=-2))
    torch.testing.assert_close(last.entropy, weights.entropy()[..., -3:])
    torch.testing.assert_close(last.peak, weights.peak()[..., -3:])
    with pytest.raises(TypeError, match=r"q_len is 3; expected a slice"):
        weights.observe(queries=3, received=True)


def test_statistics_are_not_renormalized_by_a_sinks_share():
    x = torch.zeros(1, 1, 2, 3)
    _, weights = attention(x, x, x, sinks=torch.zeros(1), return_weights=True)  # three equal logits, one dropped
    torch.testing.assert_close(weights.dense(), torch.full((1, 1, 2, 2), 1 / 3))
    torch.testing.assert_close(weights.entropy(), torch.full((1, 1, 2), 2 / 3 * np.log(3), dtype=torch.float32))
    torch.testing.assert_close(weights.received(), torch.full((1, 1, 2), 2 / 3))


class TestIdentities:
    """Statistics computed in a second way, in float64."""

    def weights(self, **options):
        inputs = [torch.randn(1, 2, 40, 5, dtype=torch.float64) for _ in range(3)]
        return inputs, attention(*inputs, return_weights=True, **options)[1]

    def test_entropy_from_one_more_call_whose_values_are_the_keys(self):
        (query, key, _), weights = self.weights(mask=Causal())
        mean_key = attention(query, key, key, mask=Causal())
        mean_score = (query * mean_key).sum(dim=-1) / 5**0.5
        torch.testing.assert_close(weights.entropy(), weights.lse - mean_score)

    def test_received_from_queries_and_keys_swapped(self):
        (query, key, value), weights = self.weights()
        _, swapped = attention(key, query, value, bias=-weights.lse[:, :, None], return_weights=True)
        torch.testing.assert_close(weights.received(), swapped.lse.exp())

    def test_causal_distance_from_the_mean_key_position(self):
        (query, key, _), weights = self.weights(mask=Causal())
        positions = torch.arange(40, dtype=torch.float64)
        mean_position = attention(query, key, positions[:, None].expand(1, 2, 40, 1), mask=Causal()).squeeze(-1)
        torch.testing.assert_close(weights.distance(), positions - mean_position)


def test_topk_pads_if_k_exceeds_the_number_of_keys():
    weights = sample()[-1]
    top = weights.topk(20)
    assert top.weights.shape == top.keys.shape == (2, 6, 13, 20)
    assert (top.keys[..., 17:] == -1).all()
    assert (top.weights[..., 17:] == 0).all()
    torch.testing.assert_close(top.weights.sum(dim=-1), torch.ones(2, 6, 13))


def test_pooling_an_empty_matrix_returns_zeros():
    _, weights = attention(
        torch.randn(1, 2, 3, 4), torch.randn(1, 2, 0, 4), torch.randn(1, 2, 0, 4), return_weights=True
    )
    assert torch.equal(weights.pool(2, 5), torch.zeros(1, 2, 2, 5))
