"""Tests of the Triton kernels for statistics, pooling and largest weights; without a GPU, in Triton's interpreter."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead import Causal, Dense, Padding, Prefix, Window
from clearhead.ops import dispatch
from clearhead.ops.arguments import build_call
from clearhead.ops.masks import And
from clearhead.ops.statistics import PoolSpec, StatisticsRequest
from clearhead.ops.tiled import backend as tiled
from clearhead.ops.triton import backend as triton
from clearhead.ops.triton import statistics, topk
from clearhead.weights.statistics import compute_statistics
from support.numerics import assert_matches
from support.parameters import slow_except
from support.strategies import cases
from support.triton_calls import MASKS, UNION, check_statistics


@pytest.mark.parametrize("deterministic", [False, pytest.param(True, marks=pytest.mark.slow)])
@given(case=cases((torch.float32, torch.bfloat16, torch.float16)))
@settings(max_examples=15)
def test_statistics_match_the_equation(deterministic, case):
    torch.use_deterministic_algorithms(deterministic)
    try:
        check_statistics(case)
    finally:
        torch.use_deterministic_algorithms(False)


def lazy(mask=None, *, q_len=37, kv_len=53, dtype=torch.float32, **options):
    """Return a call of several tiles, with two query heads on one key head, and its log-sum-exp."""
    generator = torch.Generator().manual_seed(4)
    batch = mask.allowed.shape[0] if isinstance(mask, Dense) else getattr(mask, "lengths", torch.zeros(1)).shape[0]
    query, key = (torch.randn(batch, heads, n, 16, generator=generator) for heads, n in ((2, q_len), (1, kv_len)))
    call = build_call(query.to(dtype), key.to(dtype), key.to(dtype), mask=mask, **options)
    return call, tiled.log_sum_exp(call)


def assert_as_exact(got, streamed, mask=None, **sizes):
    """Assert that `got` is as exact as `streamed(call, lse)` for the call that `lazy` returns."""
    naive, exact = (streamed(*lazy(mask, dtype=dtype, **sizes)) for dtype in (torch.float32, torch.float64))
    lse = lazy(mask, **sizes)[1]
    assert_matches(got, exact, naive, scale=float(lse[lse > -torch.inf].abs().max()))


@pytest.mark.slow
@given(
    mask=st.sampled_from([None, Causal(), Window(before=3) | (Causal() & Prefix(4)), Padding([40])]),
    size=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    reduce=st.sampled_from(["mean", "max"]),
    rows=st.tuples(st.integers(0, 36), st.integers(1, 37)),
    keys=st.tuples(st.integers(0, 52), st.integers(1, 53)),
)
@settings(max_examples=20)
def test_pooling_of_any_rectangle_is_exact(mask, size, reduce, rows, keys):
    call, lse = lazy(mask)
    down, across = slice(rows[0], min(rows[0] + rows[1], 37)), slice(keys[0], min(keys[0] + keys[1], 53))
    spec = PoolSpec(*size, reduce)

    def streamed(call, lse):
        return tiled.pool(call, lse, down, across, spec)

    assert_as_exact(triton.pool(call, lse, down, across, spec), streamed, mask)


def pooled(spec):
    return lambda call, lse: tiled.statistics(call, lse, StatisticsRequest(pool=spec)).pooled


@pytest.mark.parametrize("reduce", ["mean", "max"])
@pytest.mark.parametrize("mask", [None, Causal(), Window(before=3) | (Causal() & Prefix(4))], ids=repr)
def test_fused_pooling_is_exact(mask, reduce):
    """Tiles that consist of bins, and bins that consist of tiles."""
    sizes = {"q_len": 32, "kv_len": 64}
    call, lse = lazy(mask, **sizes)
    for spec in (PoolSpec(2, 4, reduce), PoolSpec(1, 1, reduce)):
        assert statistics.can_fuse_pooling(call, spec)
        found = triton.statistics(call, lse, StatisticsRequest(received=True, entropy=True, pool=spec))
        assert_as_exact(found.pooled, pooled(spec), mask, **sizes)
        assert_as_exact(
            found.entropy,
            lambda p, lse: tiled.statistics(p, lse, StatisticsRequest(entropy=True)).entropy,
            mask,
            **sizes,
        )
    alone = triton.statistics(call, lse, StatisticsRequest(pool=PoolSpec(2, 4, reduce)))
    assert "received" not in alone
    assert_as_exact(alone.pooled, pooled(PoolSpec(2, 4, reduce)), mask, **sizes)


def test_pooling_that_cannot_be_fused_is_exact():
    call, lse = lazy(Causal())
    found = triton.statistics(call, lse, StatisticsRequest(received=True, pool=PoolSpec(5, 7, "mean")))
    assert_as_exact(found.pooled, pooled(PoolSpec(5, 7, "mean")), Causal())


@pytest.mark.parametrize("count", [1, 11])
@pytest.mark.parametrize(
    "mask", slow_except({repr(mask): mask for mask in MASKS if not isinstance(mask, And)}, "None", repr(UNION))
)
def test_largest_weights_are_exact(mask, count):
    call, lse = lazy(mask)
    top = topk.top_weights(call, lse, count)
    expected = tiled.statistics(call, lse, StatisticsRequest(top=count)).top
    assert top is not None
    assert_as_exact(
        top.weights, lambda p, lse: tiled.statistics(p, lse, StatisticsRequest(top=count)).top.weights, mask
    )
    assert torch.equal(top.keys, expected.keys)


@pytest.mark.slow
def test_equal_weights_fall_back_to_the_streaming_backend():
    """More scores reach the bound than the kernel can store."""
    call, lse = lazy(kv_len=200, scale=0.0)
    assert topk.top_weights(triton._with_positive_scale(call)[0], lse, 3) is None
    top = triton.statistics(call, lse, StatisticsRequest(top=3)).top
    assert top is not None
    torch.testing.assert_close(top.weights, torch.full((1, 2, 37, 3), 1 / 200))
    assert (top.keys.sort().values.diff() > 0).all()


def test_more_largest_weights_than_the_kernel_supports():
    call, lse = lazy()
    top = triton.statistics(call, lse, StatisticsRequest(top=40)).top
    assert top is not None
    assert top.keys.shape == (1, 2, 37, 40)


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # of NumPy, in Triton's interpreter
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_peak_of_a_row_with_nan_is_nan(monkeypatch, value):
    """Torch's flash attention on CUDA returns inf as the log-sum-exp of such a row."""
    monkeypatch.setattr(dispatch, "statistics", triton.statistics)
    call, _ = lazy()
    for tensor, rows in ((call.query, [3]), (call.key, range(37))):
        changed = tensor.clone()
        changed[0, 0, 3, 2] = torch.nan
        call = replace(call, **{"query" if tensor is call.query else "key": changed})
        lse = tiled.log_sum_exp(call)
        peak = compute_statistics(call, lse.masked_fill(lse.isnan(), value), StatisticsRequest(peak=True)).peak
        assert peak[0, 0].isnan().nonzero().flatten().tolist() == [*rows]
