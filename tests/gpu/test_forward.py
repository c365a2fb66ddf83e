"""Tests of the forward kernel for Hopper GPUs: `pytest -m gpu tests/gpu/test_forward.py`."""

from __future__ import annotations

import math

import pytest
import torch

from clearhead import Causal, Documents, Window, attention
from clearhead.ops.arguments import build_call
from clearhead.ops.hopper import forward, support
from clearhead.ops.triton import forward as triton_forward
from support import hopper_gpu, random_hopper

pytestmark = hopper_gpu.MARKS
PROBLEMS_PER_SEED = 25


@pytest.fixture
def launches(monkeypatch):
    """List the kernels that are launched; they also take small calls."""
    monkeypatch.setattr(forward, "MIN_CELLS", {})
    return hopper_gpu.list_launches(monkeypatch)


def random_tensors(*shape: int, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    return [torch.randn(shape, device="cuda", dtype=dtype) for _ in range(3)]


@pytest.mark.parametrize("seed", range(20))
def test_random_problems_match_float64(seed, launches):
    for index in range(PROBLEMS_PER_SEED):
        problem = random_hopper.draw(1000 * seed + index)
        try:
            random_hopper.check_output(problem)
        except AssertionError as error:
            raise AssertionError(f"{error}: {problem.describe()}") from None
    assert launches == ["forward"] * PROBLEMS_PER_SEED


@pytest.mark.parametrize("n", [1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 257])
@pytest.mark.parametrize("dim", support.WIDTHS)
def test_lengths_around_tiles_match_triton(n, dim, launches):
    call = build_call(*random_tensors(2, 3, n, dim), mask=Causal())
    output, lse = forward.forward(call)
    expected, expected_lse = triton_forward.forward(call)
    torch.testing.assert_close(output, expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-5, atol=1e-5)
    assert launches == ["forward"]


@pytest.mark.parametrize("mask", [Window(100, 0), Causal() & Documents([300, 400, 324])])
def test_attention_and_its_gradients_run_with_the_kernel(mask, launches):
    tensors = [tensor.requires_grad_() for tensor in random_tensors(1, 4, 1024, 128)]
    output = attention(*tensors, mask=mask)
    assert launches == ["forward"]
    cotangent = torch.randn_like(output)
    gradients = torch.autograd.grad(output, tensors, cotangent)
    doubles = [tensor.detach().double().requires_grad_() for tensor in tensors]
    exact_output = attention(*doubles, mask=mask, backend="reference")
    exact = torch.autograd.grad(exact_output, doubles, cotangent.double())
    plain = attention(*tensors, mask=mask, backend="reference")
    for got, truth, naive in zip(
        (output, *gradients),
        (exact_output, *exact),
        (plain, *torch.autograd.grad(plain, tensors, cotangent)),
        strict=True,
    ):
        allowed = 2 * (naive.double() - truth).abs().max() + 2**-8 * truth.abs().max()
        assert (got.double() - truth).abs().max() <= allowed


def test_output_is_the_same_bits_every_time(launches):
    call = build_call(*random_tensors(2, 8, 3000, 128), mask=Causal() & Documents([1111, 1889]))
    output, lse = forward.forward(call)
    for _ in range(20):
        again, lse_again = forward.forward(call)
        assert torch.equal(output, again)
        assert torch.equal(lse, lse_again)


def test_every_element_of_the_output_is_written(launches, monkeypatch):
    poisoned = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *args, **options: poisoned(*args, **options).fill_(math.nan))
    call = build_call(*random_tensors(2, 3, 333, 64), mask=Window(20, 0))
    output, lse = forward.forward(call)
    assert output.isfinite().all()
    assert lse.isfinite().all()


def test_rows_without_a_key_are_zero(launches):
    query, key, value = random_tensors(1, 2, 300, 128)
    call = build_call(query, key[:, :, :100], value[:, :, :100], mask=Causal())
    output, lse = forward.forward(call)
    assert not output[:, :, :200].any()
    assert (lse[:, :, :200] == -math.inf).all()
    assert lse[:, :, 200:].isfinite().all()


def test_nan_in_a_masked_key_does_not_reach_rows_that_may_not_attend_to_it(launches):
    query, key, value = random_tensors(1, 2, 300, 128)
    key[:, :, 200:] = math.nan
    output, lse = forward.forward(build_call(query, key, value, mask=Causal()))
    assert output[:, :, :200].isfinite().all()
    assert lse[:, :, :200].isfinite().all()
    assert output[:, :, 200:].isnan().all()


@pytest.mark.parametrize("factor", [1, 10, 60, 300])
@pytest.mark.parametrize("mask", [None, Causal(), Window(300, 0)])
@pytest.mark.parametrize("dtype", list(support.DTYPES))
def test_products_that_exceed_those_of_the_first_tile_match_float64(dtype, mask, factor, launches):
    """A factor of 60 exceeds 2^64, and one of 300 what floats hold."""
    query, key, value = random_tensors(2, 3, 1000, 128, dtype=dtype)
    key[:, :, :500] *= 0.01
    query *= factor
    output, lse = forward.forward(build_call(query, key, value, mask=mask))
    exact, weights = attention(
        query.double(), key.double(), value.double(), mask=mask, return_weights=True, backend="reference"
    )
    naive = attention(query, key, value, mask=mask, backend="reference")
    allowed = 2 * (naive.double() - exact).abs().max() + torch.finfo(dtype).eps * exact.abs().max()
    assert (output.double() - exact).abs().max() <= allowed
    assert (lse.double() - weights.lse).abs().max() <= 8 * torch.finfo(torch.float32).eps * weights.lse.abs().max()
    assert launches == ["forward"]


def test_blocks_that_do_not_overflow_keep_their_bits(launches):
    query, key, value = random_tensors(1, 2, 1024, 128)
    mask = Documents([512, 512])
    expected, _ = forward.forward(build_call(query, key, value, mask=mask))
    query[:, :, 512:] *= 300
    output, _ = forward.forward(build_call(query, key, value, mask=mask))
    assert torch.equal(output[:, :, :512], expected[:, :, :512])
    assert output.isfinite().all()


@pytest.mark.parametrize("dtype", list(support.DTYPES))
def test_kernel_runs_in_a_cuda_graph(dtype, launches):
    query, key, value = random_tensors(1, 4, 640, 64, dtype=dtype)
    key[:, :, 128:] *= 16  # in bfloat16, blocks of queries are repeated
    call = build_call(query, key, value, mask=Window(300, 0))
    expected, _ = forward.forward(call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output, _ = forward.forward(call)
    for _ in range(3):
        graph.replay()
    assert launches == ["forward"] * 2
    assert torch.equal(output, expected)


def test_long_calls_run_with_the_kernel_unless_they_need_gradients(launches, monkeypatch):
    monkeypatch.setattr(support, "processor_count", lambda device: 8)  # as many as blocks of queries
    query, key, value = random_tensors(1, 2, 512, 128)
    attention(query, key, value, mask=Causal())
    attention(query, key, value)
    assert launches == ["forward"] * 2
    attention(query.requires_grad_(), key, value, mask=Causal())
    attention(query, key, value)
    assert launches == ["forward"] * 2
