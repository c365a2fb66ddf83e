"""Tests of the statistics kernel for Hopper GPUs: `pytest -m gpu tests/gpu/test_sweep.py`."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, adaptive_max_pool2d

from clearhead import Causal, Documents, Window, attention
from clearhead.ops.arguments import build_call
from clearhead.ops.hopper import support, sweep
from clearhead.ops.statistics import PoolSpec, StatisticsRequest
from clearhead.ops.triton.statistics import compute_statistics
from support import hopper_gpu, random_hopper
from support.random_checks import compare

pytestmark = [
    *hopper_gpu.MARKS,
    # of torch.special.entr, if several processes create the folder at the same time
    pytest.mark.filterwarnings("ignore:Specified kernel cache directory could not be created"),
]
PROBLEMS_PER_SEED = 25
EVERYTHING = StatisticsRequest(entropy=True, received=True, distance=True)


@pytest.fixture
def launches(monkeypatch):
    """List the launches of the kernel, which also takes small calls."""
    monkeypatch.setattr(sweep, "MIN_CELLS", 0)
    return hopper_gpu.list_launches(monkeypatch)


@pytest.mark.parametrize("seed", range(20))
def test_random_problems_match_float64(seed, launches):
    for index in range(PROBLEMS_PER_SEED):
        problem = random_hopper.draw(1000 * seed + index)
        try:
            random_hopper.check_statistics(problem)
        except AssertionError as error:
            raise AssertionError(f"{error}: {problem.describe()}") from None
    assert len(launches) == PROBLEMS_PER_SEED


@pytest.mark.parametrize("reduce", ["mean", "max"])
@pytest.mark.parametrize("bins", [(16, 16), (32, 64), (64, 128), (256, 256), (1024, 16), (16, 512)])
@pytest.mark.parametrize("mask", [None, Causal(), Window(300, 17), Causal() & Documents([500, 1000, 548])])
@pytest.mark.parametrize("processors", [1, 132])
def test_heatmaps_match_float64(processors, mask, bins, reduce, launches, monkeypatch):
    monkeypatch.setattr(support, "processor_count", lambda device: processors)
    tensors = [torch.randn(2, heads, 2048, 128, device="cuda", dtype=torch.bfloat16) for heads in (3, 3, 3)]
    call = build_call(*tensors, mask=mask)
    exact, single = (weights_of(call, dtype) for dtype in (torch.float64, torch.float32))
    lse = logsumexp_of(call)
    spec = PoolSpec(2048 // bins[0], 2048 // bins[1], reduce)
    found = compute_statistics(call, lse, replace(EVERYTHING, pool=spec))
    pooled = {"mean": adaptive_avg_pool2d, "max": adaptive_max_pool2d}[reduce]
    compare("heatmap", found.pooled, pooled(exact, spec[:2]), pooled(single, spec[:2]), 30.0)
    compare("received", found.received, exact.sum(dim=-2), single.sum(dim=-2), 30.0, terms=1.0)
    assert len(launches) == 1


def scores_of(call, dtype: torch.dtype) -> Tensor:
    scores = call.query.to(dtype) @ call.key.to(dtype).mT * call.scale
    if call.mask is None:
        return scores
    return torch.where(call.lower().allowed(2048, torch.arange(2048, device="cuda")), scores, -math.inf)


def weights_of(call, dtype: torch.dtype) -> Tensor:
    return scores_of(call, dtype).softmax(dim=-1)


def logsumexp_of(call) -> Tensor:
    return scores_of(call, torch.float64).logsumexp(dim=-1).float()


def test_observe_launches_the_kernel_and_deterministic_mode_does_not(launches):
    query = torch.randn(1, 4, 999, 128, device="cuda", dtype=torch.bfloat16)
    _, weights = attention(query, query, query, mask=Causal(), return_weights=True)
    fast = weights.observe(entropy=True, received=True, distance=True)
    assert len(launches) == 1
    torch.use_deterministic_algorithms(True)
    try:
        same = [weights.observe(entropy=True, received=True, distance=True) for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(launches) == 1
    for name in ("entropy", "received", "distance"):
        assert torch.equal(getattr(same[0], name), getattr(same[1], name))
        torch.testing.assert_close(getattr(fast, name), getattr(same[0], name), rtol=1e-4, atol=1e-3)


def test_kernel_runs_in_a_cuda_graph(launches):
    query = torch.randn(1, 4, 640, 64, device="cuda", dtype=torch.float16)
    call = build_call(query, query, query, mask=Causal())
    positions = torch.arange(640, device="cuda")
    scores = (query.double() @ query.double().mT * call.scale).masked_fill(positions > positions[:, None], -math.inf)
    lse, request = scores.logsumexp(dim=-1).float(), replace(EVERYTHING, pool=PoolSpec(10, 20, "mean"))
    compute_statistics(call, lse, request)  # compiles and loads
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = compute_statistics(call, lse, request)
    for _ in range(3):
        graph.replay()
    assert len(launches) == 2
    torch.testing.assert_close(found.received.double(), scores.softmax(dim=-1).sum(dim=-2), rtol=1e-4, atol=1e-4)


def test_nan_in_a_masked_key_does_not_reach_rows_that_may_not_attend_to_it(launches):
    query, key = (torch.randn(1, 2, 300, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    key[:, :, 200:] = math.nan
    call = build_call(query, key, key, mask=Causal())
    lse = torch.full((1, 2, 300), 6.0, device="cuda")
    found = compute_statistics(call, lse, EVERYTHING)
    assert len(launches) == 1
    for rows in (found.entropy, found.distance):
        assert rows[..., :200].isfinite().all()
        assert rows[..., 200:].isnan().all()


@pytest.mark.parametrize("seed", range(20, 30))
def test_random_problems_in_several_parts_match_float64(seed, launches, monkeypatch):
    monkeypatch.setattr(sweep, "MIN_TILES", 2)
    for index in range(PROBLEMS_PER_SEED):
        random_hopper.check_statistics(random_hopper.draw(1000 * seed + index))
    assert len(launches) == PROBLEMS_PER_SEED
