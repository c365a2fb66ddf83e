"""Tests of scores from a paged cache, in Triton's interpreter, against the plain formula on contiguous keys."""

import pytest
import torch

from clearhead.ops.triton.paged_scores import TILE_BYTES, paged_scores, tile_of
from support.parameters import slow_except
from support.triton_calls import random
from support.vllm_caches import LAYOUTS, Requests, check_scores

KV_LENS, HEADS, KV_HEADS, DIM = [1, 37, 71], 6, 2, 5
SLOPES = torch.linspace(0.1, 1, HEADS)
OPTIONS = {
    "bfloat16": {"dtype": torch.bfloat16},
    "float16, window": {"dtype": torch.float16, "window": 29},
    "window, softcap and alibi": {"window": 7, "softcap": 1.5, "slopes": SLOPES, "scale": 0.7},
    "negative scale": {"scale": -0.5},
    "transposed query": {"transposed": True},
} | {f"layout {name}": {"layout": name, "window": 7} for name in LAYOUTS}
CORE = ("bfloat16", "window, softcap and alibi", "layout BLNHC")


@pytest.fixture(autouse=True)
def small_key_tiles(monkeypatch):
    """Set tiles so small that a request has several."""
    monkeypatch.setattr("clearhead.ops.triton.paged_scores.MAX_KEYS", 16)


@pytest.mark.parametrize("options", slow_except(OPTIONS, *CORE))
@pytest.mark.parametrize(
    "block", [4, pytest.param(16, marks=pytest.mark.slow), pytest.param(32, marks=pytest.mark.slow)]
)
def test_scores_match_contiguous_keys(options, block):
    """Slots outside the keys are NaN, so that reading them would fail."""
    options = {"dtype": torch.float32, "scale": DIM**-0.5, "window": None, "layout": "LBHNC", **options}
    dtype, layout, window = options.pop("dtype"), options.pop("layout"), options["window"]
    requests = Requests.random(KV_LENS, KV_HEADS, DIM, block, layout=layout, dtype=dtype, window=window)
    query = random(len(KV_LENS), HEADS, DIM, dtype=dtype, seed=3)
    if options.pop("transposed", False):
        query = query.mT.contiguous().mT
    check_scores(requests, query, **options)


def test_several_chunks_and_a_wide_group(monkeypatch):
    """A group of more than 16 heads needs a larger tile of queries; a program with one tile needs many chunks."""
    monkeypatch.setattr("clearhead.ops.triton.paged_scores.MIN_TILES_PER_PROGRAM", 1)
    requests = Requests.random([37, 130], 1, DIM, 4, dtype=torch.float32)
    check_scores(requests, random(2, 17, DIM), scale=1.0)


def test_request_without_keys_has_no_scores():
    requests = Requests.random([0, 3], KV_HEADS, DIM, 4, dtype=torch.float32)
    check_scores(requests, random(2, HEADS, DIM), scale=1.0)


@pytest.mark.parametrize(("rows", "columns"), [(0, 3), (2, 0)])
def test_no_request_or_no_block_gives_an_empty_result(rows, columns):
    table, lengths = torch.zeros(rows, columns, dtype=torch.int32), torch.zeros(rows, dtype=torch.int64)
    scores = paged_scores(random(rows, HEADS, DIM), random(7, KV_HEADS, 4, DIM), table, lengths, None, 1.0)
    assert scores.shape == (rows, HEADS, columns * 4)
    assert scores.dtype == torch.float32


def test_other_dtype_and_indivisible_heads_are_refused():
    table, lengths = torch.zeros(2, 3, dtype=torch.int32), torch.zeros(2, dtype=torch.int64)
    keys = random(7, KV_HEADS, 4, DIM)
    with pytest.raises(ValueError, match=r"key_blocks have dtype torch.float32; expected that of query, torch.float16"):
        paged_scores(random(2, HEADS, DIM, dtype=torch.float16), keys, table, lengths, None, 1.0)
    with pytest.raises(ValueError, match="key_blocks have 2 heads; expected a divisor of query's 5"):
        paged_scores(random(2, 5, DIM), keys, table, lengths, None, 1.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("width", [16, 64, 128, 256])
def test_tiles_keep_stages_small(monkeypatch, dtype, width):
    monkeypatch.setattr("clearhead.ops.triton.paged_scores.MAX_KEYS", 128)
    tile = tile_of(8, width, dtype)
    assert 16 <= tile.keys <= 128
    assert tile.keys * width * dtype.itemsize <= TILE_BYTES
