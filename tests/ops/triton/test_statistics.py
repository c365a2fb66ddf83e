"""Statistics, maps and largest weights by our own kernels, in Triton's interpreter where there is no GPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead import Causal, Dense, Padding, Prefix, Window
from clearhead.ops.arguments import build_call
from clearhead.ops.masks import And
from clearhead.ops.statistics import PoolSpec, StatisticsRequest
from clearhead.ops.tiled import backend as tiled
from clearhead.ops.triton import backend as triton
from clearhead.ops.triton import statistics, topk
from support.numerics import assert_matches
from support.strategies import cases
from support.triton_calls import MASKS, check_statistics


@pytest.mark.parametrize("deterministic", [False, True])
@given(case=cases((torch.float32, torch.bfloat16, torch.float16)))
@settings(max_examples=30)
def test_triton_statistics(deterministic, case):
    torch.use_deterministic_algorithms(deterministic)
    try:
        check_statistics(case)
    finally:
        torch.use_deterministic_algorithms(False)


def lazy(mask=None, *, q_len=37, kv_len=53, dtype=torch.float32, **options):
    """A call of several tiles, two heads that read one, and its log-sum-exp."""
    generator = torch.Generator().manual_seed(4)
    batch = mask.allowed.shape[0] if isinstance(mask, Dense) else getattr(mask, "lengths", torch.zeros(1)).shape[0]
    query, key = (torch.randn(batch, heads, n, 16, generator=generator) for heads, n in ((2, q_len), (1, kv_len)))
    call = build_call(query.to(dtype), key.to(dtype), key.to(dtype), mask=mask, **options)
    return call, tiled.log_sum_exp(call)


def assert_as_exact(got, streamed, mask=None, **sizes):
    """Assert that `got` is as exact as `streamed(call, lse)`, both of the call that `lazy` makes."""
    naive, exact = (streamed(*lazy(mask, dtype=dtype, **sizes)) for dtype in (torch.float32, torch.float64))
    lse = lazy(mask, **sizes)[1]
    assert_matches(got, exact, naive, scale=float(lse[lse > -torch.inf].abs().max()))


@given(
    mask=st.sampled_from([None, Causal(), Window(before=3) | (Causal() & Prefix(4)), Padding([40])]),
    size=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    reduce=st.sampled_from(["mean", "max"]),
    rows=st.tuples(st.integers(0, 36), st.integers(1, 37)),
    keys=st.tuples(st.integers(0, 52), st.integers(1, 53)),
)
@settings(max_examples=20)
def test_any_rectangle(mask, size, reduce, rows, keys):
    call, lse = lazy(mask)
    down, across = slice(rows[0], min(rows[0] + rows[1], 37)), slice(keys[0], min(keys[0] + keys[1], 53))
    picture = PoolSpec(*size, reduce)

    def streamed(call, lse):
        return tiled.pool(call, lse, down, across, picture)

    assert_as_exact(triton.pool(call, lse, down, across, picture), streamed, mask)


def pooled(picture):
    return lambda call, lse: tiled.statistics(call, lse, StatisticsRequest(pool=picture)).pooled


@pytest.mark.parametrize("reduce", ["mean", "max"])
@pytest.mark.parametrize("mask", [None, Causal(), Window(before=3) | (Causal() & Prefix(4))], ids=repr)
def test_a_map_with_the_statistics(mask, reduce):
    """Bins that tiles are made of, and bins that are made of tiles."""
    sizes = {"q_len": 32, "kv_len": 64}
    call, lse = lazy(mask, **sizes)
    for picture in (PoolSpec(2, 4, reduce), PoolSpec(1, 1, reduce)):
        assert statistics.can_fuse_pooling(call, picture)
        seen = triton.statistics(call, lse, StatisticsRequest(received=True, entropy=True, pool=picture))
        assert_as_exact(seen.pooled, pooled(picture), mask, **sizes)
        assert_as_exact(
            seen.entropy,
            lambda p, lse: tiled.statistics(p, lse, StatisticsRequest(entropy=True)).entropy,
            mask,
            **sizes,
        )
    alone = triton.statistics(call, lse, StatisticsRequest(pool=PoolSpec(2, 4, reduce)))
    assert "received" not in alone
    assert_as_exact(alone.pooled, pooled(PoolSpec(2, 4, reduce)), mask, **sizes)


def test_a_map_whose_bins_do_not_fit_comes_alone():
    call, lse = lazy(Causal())
    seen = triton.statistics(call, lse, StatisticsRequest(received=True, pool=PoolSpec(5, 7, "mean")))
    assert_as_exact(seen.pooled, pooled(PoolSpec(5, 7, "mean")), Causal())


@pytest.mark.parametrize("count", [1, 11])
@pytest.mark.parametrize("mask", [mask for mask in MASKS if not isinstance(mask, And)], ids=repr)
def test_largest_weights(mask, count):
    call, lse = lazy(mask)
    top = topk.top_weights(call, lse, count)
    expected = tiled.statistics(call, lse, StatisticsRequest(top=count)).top
    assert top is not None
    assert_as_exact(
        top.weights, lambda p, lse: tiled.statistics(p, lse, StatisticsRequest(top=count)).top.weights, mask
    )
    assert torch.equal(top.keys, expected.keys)


def test_largest_of_weights_that_are_all_equal():
    """No room for all that reach the bound: another way is taken."""
    call, lse = lazy(kv_len=200, scale=0.0)
    assert topk.top_weights(triton._with_positive_scale(call)[0], lse, 3) is None
    top = triton.statistics(call, lse, StatisticsRequest(top=3)).top
    assert top is not None
    torch.testing.assert_close(top.weights, torch.full((1, 2, 37, 3), 1 / 200))
    assert (top.keys.sort().values.diff() > 0).all()


def test_more_largest_weights_than_the_kernel_takes():
    call, lse = lazy()
    top = triton.statistics(call, lse, StatisticsRequest(top=40)).top
    assert top is not None
    assert top.keys.shape == (1, 2, 37, 40)
