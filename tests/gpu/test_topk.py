"""Tests of the top-k kernel for Hopper GPUs: `pytest -m gpu tests/gpu/test_topk.py`."""

from __future__ import annotations

import math

import pytest
import torch

from clearhead import Causal, attention
from clearhead.ops.arguments import build_call
from clearhead.ops.hopper import support, topk
from clearhead.ops.triton import topk as triton_topk
from support import hopper_gpu, random_hopper

pytestmark = hopper_gpu.MARKS
PROBLEMS_PER_SEED = 25


@pytest.fixture
def launches(monkeypatch):
    """List the kernels that are launched; the one for the largest weights also takes small calls."""
    monkeypatch.setattr(topk, "MIN_CELLS", 0)
    return hopper_gpu.list_launches(monkeypatch)


@pytest.mark.parametrize("seed", range(20))
def test_random_problems_match_float64(seed, launches):
    for index in range(PROBLEMS_PER_SEED):
        problem = random_hopper.draw(1000 * seed + index)
        try:
            random_hopper.check_top(problem)
        except AssertionError as error:
            raise AssertionError(f"{error}: {problem.describe()}") from None
    assert launches == ["topk"] * PROBLEMS_PER_SEED


@pytest.mark.parametrize("count", [1, 16, 17, 32])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 127, 128, 129, 193, 999])
@pytest.mark.parametrize("dim", support.WIDTHS)
def test_keys_are_those_of_triton(dim, n, count, launches, monkeypatch):
    tensors = [torch.randn(2, 3, n, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    call = build_call(*tensors, mask=Causal())
    _, weights = attention(*tensors, mask=Causal(), return_weights=True, backend="triton")
    found = triton_topk.top_weights(call, weights.lse, count)
    assert launches == ["topk"]
    monkeypatch.setattr(topk, "MIN_CELLS", 2**63)
    expected = triton_topk.top_weights(call, weights.lse, count)
    assert launches == ["topk"]
    assert torch.equal(found.keys, expected.keys)
    torch.testing.assert_close(found.weights, expected.weights, rtol=1e-5, atol=1e-30)


def test_equal_scores_are_left_to_another_backend(launches):
    query = torch.zeros(1, 2, 300, 128, device="cuda", dtype=torch.bfloat16)
    key = torch.randn_like(query)
    _, weights = attention(query, key, key, return_weights=True)
    top = weights.topk(16)
    assert launches == ["topk"]
    torch.testing.assert_close(top.weights, torch.full_like(top.weights, 1 / 300))
    assert (top.keys.sort().values.diff() > 0).all()


def test_infinite_scores_are_left_to_another_backend(launches):
    """Every product of the first two rows is infinite, so that every one would reach any bound that is a number."""
    query = torch.randn(1, 1, 999, 128, device="cuda", dtype=torch.bfloat16).abs()
    query[:, :, :2] = 3e38
    call = build_call(query, query[:, :, 2:] + 1, query[:, :, 2:])
    assert topk.top_weights(call, torch.zeros(1, 1, 999, device="cuda"), 8) is None
    assert launches == ["topk"]


def test_rows_that_do_not_exist_have_no_candidates(launches):
    """Queries beyond the last are 0, so that all of their products are equal."""
    query = torch.randn(1, 1, 65, 64, device="cuda", dtype=torch.float16)
    call = build_call(query, query, query)
    assert topk.top_weights(call, torch.zeros(1, 1, 65, device="cuda"), 8) is not None


def test_nan_in_a_masked_key_does_not_reach_rows_that_may_not_attend_to_it(launches):
    query, key = (torch.randn(1, 2, 300, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    key[:, :, 200:] = math.nan
    call = build_call(query, key, key, mask=Causal())
    top = topk.top_weights(call, torch.full((1, 2, 300), 6.0, device="cuda"), 16)
    assert top is not None
    assert top.weights.isfinite().all()
    assert (top.keys < 200).all()


def test_results_have_the_same_bits_every_time(launches):
    query = torch.randn(1, 4, 3000, 128, device="cuda", dtype=torch.bfloat16)
    _, weights = attention(query, query, query, mask=Causal(), return_weights=True)
    first, second = weights.topk(16), weights.topk(16)
    assert launches.count("topk") == 2
    assert torch.equal(first.keys, second.keys)
    assert torch.equal(first.weights, second.weights)
