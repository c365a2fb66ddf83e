"""Tests of scores from a paged cache by the compiled kernel, on a GPU: `pytest -m gpu tests/gpu/test_paged_scores.py`.

vLLM is not needed: the tests fill caches in its layouts.
"""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest
import torch

from clearhead.ops.triton.paged_scores import paged_scores
from clearhead.ops.triton.score_rows import softmax_in_place
from support.gpu_calls import normal, synchronization_forbidden
from support.score_rows import check_rows, random_scores
from support.vllm_caches import LAYOUTS, Requests, check_scores, empty_cache

pytestmark = pytest.mark.gpu
KV_LENS = [1, 787, 64, 331, 2003]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 101},
    "softcap": {"softcap": 2.0},
    "alibi": {"alibi": True},
    "everything": {"window": 211, "softcap": 3.0, "alibi": True},
}
BLOCKS, DIMS = (16, 32, 64, 128), (64, 80, 96, 128, 256)
# every pair of block size and width; the other parameters take turns
VARIED = [
    (dim, block, *others)
    for (dim, block), *others in zip(
        [(dim, block) for dim in DIMS for block in BLOCKS],
        cycle((1, 2, 3, 4, 5, 7, 8)),
        cycle(LAYOUTS),
        cycle([torch.bfloat16, torch.float16, torch.float32]),
        cycle(OPTIONS),
        strict=False,
    )
]


@pytest.mark.parametrize(("dim", "block", "group", "layout", "dtype", "options"), VARIED)
def test_scores_match_the_plain_formula(dim, block, group, layout, dtype, options):
    check(OPTIONS[options], dim, block, group, layout, dtype)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_layouts_and_options_match_at_a_usual_size(layout, options):
    check(OPTIONS[options], 128, 16, 4, layout, torch.bfloat16)


@pytest.mark.parametrize(("dim", "block", "group"), [(13, 16, 17), (128, 400, 5), (40, 8, 71)])
def test_unusual_sizes_match(dim, block, group):
    check(OPTIONS["window"], dim, block, group, "LBNHC", torch.bfloat16)


def check(options: dict[str, Any], dim: int, block: int, group: int, layout: str, dtype: torch.dtype) -> None:
    heads, window = 2 * group, options.get("window")
    requests = Requests.random(KV_LENS, 2, dim, block, layout=layout, dtype=dtype, device="cuda", window=window)
    query = normal(len(KV_LENS), heads, dim, dtype=dtype)
    slopes = torch.linspace(0.01, 0.5, heads, device="cuda") if options.get("alibi") else None
    check_scores(requests, query, scale=dim**-0.5, window=window, softcap=options.get("softcap"), slopes=slopes)


def test_requests_of_a_long_batch_match():
    """More programs than a grid runs at once, and requests whose last chunks have no key."""
    torch.manual_seed(0)
    lengths = torch.randint(1, 5000, (131,)).tolist()
    requests = Requests.random(lengths, 2, 64, 16, dtype=torch.bfloat16, device="cuda", spare_columns=100)
    check_scores(requests, normal(131, 10, 64, dtype=torch.bfloat16), scale=0.125)


def test_a_second_run_gives_the_same_bits_without_synchronizing():
    requests = Requests.random(KV_LENS, 2, 128, 16, dtype=torch.bfloat16, device="cuda")
    query = normal(len(KV_LENS), 8, 128, dtype=torch.bfloat16)
    arguments = (query, requests.key_blocks, requests.block_table, requests.kv_lens, None, 0.1)
    first = paged_scores(*arguments)
    with synchronization_forbidden():
        second = paged_scores(*arguments)
    assert torch.equal(first, second)


def test_cuda_graph_replays_with_new_lengths():
    """Servers capture decoding steps; the graph reads the lengths and the block table when it is replayed."""
    requests = Requests.random(KV_LENS, 2, 128, 16, dtype=torch.bfloat16, device="cuda")
    query = normal(len(KV_LENS), 8, 128, dtype=torch.bfloat16)
    lengths = requests.kv_lens.clone()
    arguments = (query, requests.key_blocks, requests.block_table, lengths, None, 0.1)
    paged_scores(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = paged_scores(*arguments)
    lengths.sub_(1).clamp_(min=1)
    graph.replay()
    assert torch.equal(captured, paged_scores(*arguments))


def test_cache_of_more_than_two_to_the_31_elements_is_supported():
    """The last blocks of a cache of 2.3 · 10⁹ elements, which 32-bit offsets do not reach."""
    blocks, kv_heads, block, dim = 70_001, 8, 16, 128
    cache = torch.empty((blocks, kv_heads, block, 2 * dim), dtype=torch.bfloat16, device="cuda")
    assert cache.numel() > 2**31
    small = empty_cache(3, kv_heads, block, 2 * dim, "LBHNC", dtype=torch.bfloat16, device="cuda")
    small.copy_(normal(*small.shape, dtype=torch.bfloat16))
    cache[-3:] = small
    query, lengths = normal(1, 32, dim, dtype=torch.bfloat16), torch.tensor([41], device="cuda")
    table = torch.tensor([[2, 0, 1]], device="cuda", dtype=torch.int32)
    got = paged_scores(query, cache[..., :dim], table + blocks - 3, lengths, None, 0.1)
    assert torch.equal(got, paged_scores(query, small[..., :dim], table, lengths, None, 0.1))


def test_scores_of_more_than_two_to_the_31_elements_are_supported():
    """The last request of 33 × 64 × 2²⁰ scores."""
    columns = 2**16
    requests = Requests.random([787], 8, 64, 16, dtype=torch.bfloat16, device="cuda")
    query = normal(1, 64, 64, dtype=torch.bfloat16)
    used = requests.block_table.shape[1]
    table = torch.zeros(33, columns, dtype=torch.int32, device="cuda")
    table[-1, :used] = requests.block_table
    lengths = torch.zeros(33, dtype=torch.int64, device="cuda")
    lengths[-1] = 787
    got = paged_scores(query.expand(33, -1, -1), requests.key_blocks, table, lengths, None, 0.1)
    assert got.numel() > 2**31
    expected = paged_scores(query, requests.key_blocks, requests.block_table, requests.kv_lens, None, 0.1)
    assert torch.equal(got[-1:, :, : used * 16], expected)
    assert (got[-1, :, used * 16 :] == -torch.inf).all()
    assert (got[0] == -torch.inf).all()


@pytest.mark.parametrize("sinks", [None, torch.linspace(-1, 30, 6)], ids=["no sinks", "sinks"])
@pytest.mark.parametrize("factor", [1.0, 1000.0])
def test_softmax_in_place_matches_the_plain_formula(factor, sinks):
    kv_lens = [0, 1, 787, 2048, 9001]
    scores = random_scores(kv_lens, 6, 9008, factor, device="cuda")
    scores[:, 0, :300] = -torch.inf
    check_rows(scores, torch.tensor(kv_lens, device="cuda"), None if sinks is None else sinks.cuda())


def test_softmax_of_more_than_two_to_the_31_scores_is_supported():
    scores = torch.zeros(33, 64, 2**20, device="cuda")
    scores[-1, -1, 5] = 1.0
    last = scores[-1:, -1:, :1009].clone()
    rows = softmax_in_place(scores, torch.tensor([0] * 32 + [1009], device="cuda"))
    expected = softmax_in_place(last, torch.tensor([1009], device="cuda"))
    assert torch.equal(scores[-1:, -1:, :1009], last)
    assert all(torch.equal(got[-1:, -1:], wanted) for got, wanted in zip(rows, expected, strict=True))
    assert (rows.lse[:-1] == -torch.inf).all()
    assert not scores[:-1].any()
