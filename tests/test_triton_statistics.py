"""Statistics, maps and largest weights by our own kernels, in Triton's interpreter where there is no GPU."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead import Causal, Dense, Padding, Prefix, Window, attention
from clearhead.kernels import pooling, streaming, triton_backend, triton_observe, triton_topk
from clearhead.kernels.operation import Inputs
from clearhead.kernels.pooling import Map
from clearhead.kernels.sweep import sweep
from clearhead.masks import And
from clearhead.posing import pose
from harness import assert_matches
from strategies import cases
from test_triton import MASKS


@pytest.mark.parametrize("deterministic", [False, True])
@given(case=cases((torch.float32, torch.bfloat16, torch.float16)))
@settings(max_examples=30)
def test_triton_statistics(deterministic, case):
    exact, naive = case.exact(), case.statistics()
    logs = case.terms + np.log(2 + case.shape[3])
    problem = pose(**case.arguments)
    lse = attention(**case.arguments, return_weights=True, backend="streaming")[1].lse
    torch.use_deterministic_algorithms(deterministic)
    try:
        seen = triton_backend.observe(problem, lse, entropy=True, received=True, distance=True)
    finally:
        torch.use_deterministic_algorithms(False)
    for name in ("entropy", "received", "distance"):
        size = max(1.0, float(np.abs(exact[name]).max()))
        assert_matches(getattr(seen, name), exact[name], naive[name], scale=logs * size)


def lazy(mask=None, *, q_len=37, kv_len=53, **options):
    """A problem of several tiles, two heads that read one, and its log-sum-exp."""
    generator = torch.Generator().manual_seed(4)
    batch = mask.allowed.shape[0] if isinstance(mask, Dense) else getattr(mask, "lengths", torch.zeros(1)).shape[0]
    query, key = (torch.randn(batch, heads, n, 16, generator=generator) for heads, n in ((2, q_len), (1, kv_len)))
    problem = pose(query, key, key, mask=mask, **options)
    return problem, streaming.log_sum_exp(problem)


@given(
    mask=st.sampled_from([None, Causal(), Window(before=3) | (Causal() & Prefix(4)), Padding([40])]),
    size=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    reduce=st.sampled_from(["mean", "max"]),
    rows=st.tuples(st.integers(0, 36), st.integers(1, 37)),
    keys=st.tuples(st.integers(0, 52), st.integers(1, 53)),
)
@settings(max_examples=20)
def test_any_rectangle(mask, size, reduce, rows, keys):
    problem, lse = lazy(mask)
    down, across = slice(rows[0], min(rows[0] + rows[1], 37)), slice(keys[0], min(keys[0] + keys[1], 53))
    picture = Map(*size, reduce)
    expected = pooling.pool(streaming.scoring(problem).window(down, across), lse[..., down], picture)
    torch.testing.assert_close(triton_backend.pool(problem, lse, down, across, picture), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reduce", ["mean", "max"])
@pytest.mark.parametrize("mask", [None, Causal(), Window(before=3) | (Causal() & Prefix(4))], ids=repr)
def test_a_map_with_the_statistics(mask, reduce):
    """Bins that tiles are made of, and bins that are made of tiles."""
    problem, lse = lazy(mask, q_len=32, kv_len=64)
    for picture in (Map(2, 4, reduce), Map(1, 1, reduce)):
        assert triton_observe.map_fits(Inputs.of(problem, problem.key), picture)
        seen = triton_backend.observe(problem, lse, received=True, entropy=True, picture=picture)
        expected = pooling.pool(streaming.scoring(problem), lse, picture)
        torch.testing.assert_close(seen.pooled, expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(seen.entropy, sweep(streaming.scoring(problem), lse, entropy=True).entropy)
    alone = triton_backend.observe(problem, lse, picture=Map(2, 4, reduce))
    assert alone.received is None
    torch.testing.assert_close(alone.pooled, pooling.pool(streaming.scoring(problem), lse, Map(2, 4, reduce)))


def test_a_map_whose_bins_do_not_fit_comes_alone():
    problem, lse = lazy(Causal())
    seen = triton_backend.observe(problem, lse, received=True, picture=Map(5, 7, "mean"))
    torch.testing.assert_close(seen.pooled, pooling.pool(streaming.scoring(problem), lse, Map(5, 7, "mean")))


@pytest.mark.parametrize("count", [1, 11])
@pytest.mark.parametrize("mask", [mask for mask in MASKS if not isinstance(mask, And)], ids=repr)
def test_largest_weights(mask, count):
    problem, lse = lazy(mask)
    top = triton_topk.top_weights(Inputs.of(problem, problem.key), lse, count)
    expected = sweep(streaming.scoring(problem), lse, top=count).top
    assert top is not None
    torch.testing.assert_close(top.weights, expected.weights, rtol=1e-4, atol=1e-6)
    assert torch.equal(top.keys, expected.keys)


def test_largest_of_weights_that_are_all_equal():
    """No room for all that reach the bound: another way is taken."""
    problem, lse = lazy(kv_len=200, scale=0.0)
    assert triton_topk.top_weights(triton_backend._inputs(problem), lse, 3) is None
    top = triton_backend.observe(problem, lse, top=3).top
    assert top is not None
    torch.testing.assert_close(top.weights, torch.full((1, 2, 37, 3), 1 / 200))
    assert (top.keys.sort().values.diff() > 0).all()


def test_more_largest_weights_than_the_kernel_takes():
    problem, lse = lazy()
    top = triton_backend.observe(problem, lse, top=40).top
    assert top is not None
    assert top.keys.shape == (1, 2, 37, 40)
