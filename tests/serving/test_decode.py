"""Tests of attention rows in decoding."""

import pytest
import torch

from clearhead.serving.decode import DecodeRows, _rows_by_triton, decode_rows
from clearhead.serving.native import native_kernel
from clearhead.serving.native_decode import NativeDecode
from clearhead.serving.statistics import StatisticsWanted
from support.interpreter import language_patched_once_per_launch
from support.numerics import assert_lse_matches, assert_matches, poisoned
from support.paged_caches import LAYOUTS, Batch, fill, served_layer

OPTIONS = {
    "plain": {},
    "one group": {"heads": 3, "kv_heads": 3},
    "wide group": {"heads": 5, "kv_heads": 1},
    "softcap": {"softcap": 1.3},
    "window": {"window": 5},
    "ALiBi": {"slopes": torch.tensor([0.5, 0.25, 0.11, 0.03, 0.7, 0.9])},
    "sinks": {"sinks": torch.tensor([0.3, -2.0, 4.0, 0.0, 1.0, -torch.inf])},
    "all": {"softcap": 2.3, "window": 7, "slopes": torch.rand(6), "sinks": torch.randn(6)},
}
LENGTHS = [1, 4, 13, 7, 2]


def native_rows(layer, query, cache, block_table, kv_lens) -> DecodeRows:
    """Return the rows by the compiled functions."""
    kernel = native_kernel()
    assert kernel is not None
    assert kernel.supports(query, cache)
    spans = {"middle": (1, 3)}
    plan = NativeDecode(
        kernel, kv_lens.tolist(), [spans] * len(kv_lens), StatisticsWanted(peak=True, distance=True, top=1)
    )
    received = torch.ones(len(query), layer.kv_heads, layer.group, block_table.shape[1], cache.block_size)
    lse, rows, mass, weights = plan.run(layer, query, cache, block_table.long(), received)
    assert mass is not None
    assert weights is not None
    offsets = (kv_lens[:, None, None] - 1 - torch.arange(weights.shape[2])).clamp(min=0)
    torch.testing.assert_close(rows["distance"], (weights * offsets).sum(-1))
    torch.testing.assert_close(rows["sink"], weights[..., 0])
    torch.testing.assert_close(mass[0], weights[..., 1:3].sum(-1))
    torch.testing.assert_close(received.flatten(3).flatten(1, 2), weights + 1)
    return DecodeRows(lse, rows["entropy"], rows["peak"], weights.view(received.shape))


FUNCTIONS = pytest.mark.parametrize("function", [decode_rows, native_rows])


def check(batch: Batch, rows: DecodeRows) -> None:
    layer, block = batch.layer, batch.cache.block_size
    for request, case in enumerate(batch.cases):
        exact, naive, kv_len = case.exact(), case.statistics(), case.shape[3]
        lse, entropy, peak = (t[request][None, :, None] for t in (rows.lse, rows.entropy, rows.peak))
        weights = rows.weights[request]
        assert weights.shape == (layer.kv_heads, layer.group, batch.block_table.shape[1], block)
        weights = weights.reshape(1, layer.heads, 1, -1)
        assert_lse_matches(lse, exact["lse"], naive["lse"], scale=case.terms)
        assert_matches(weights[..., :kv_len], exact["weights"], naive["weights"], scale=case.terms)
        assert (weights[..., kv_len:] == 0).all()
        assert (weights[..., :kv_len][~case.allowed] == 0).all()
        assert_matches(entropy, exact["entropy"], naive["entropy"], scale=case.terms)
        peaks = case.to(torch.float32).plain()["scores"].detach().amax(-1)
        assert_matches(peak, exact["scores"].max(-1), peaks, scale=case.terms)


@FUNCTIONS
@pytest.mark.parametrize(
    ("layout", "name"), [*(("hnd", name) for name in OPTIONS), *((layout, "all") for layout in LAYOUTS[1:])]
)
def test_rows_match_the_formula(layout, name, function):
    batch = fill(served_layer(**OPTIONS[name]), [(1, kv_len) for kv_len in LENGTHS], layout=layout)
    with poisoned():
        check(batch, function(batch.layer, batch.query, batch.cache, batch.block_table, batch.kv_lens))


@pytest.mark.parametrize("name", ["plain", "all", pytest.param("wide group", marks=pytest.mark.slow)])
def test_rows_by_triton_match_the_formula(name):
    """The path of GPUs, in Triton's interpreter."""
    batch = fill(served_layer(**OPTIONS[name]), [(1, kv_len) for kv_len in LENGTHS], layout="nhd")
    with language_patched_once_per_launch(), poisoned():
        check(batch, _rows_by_triton(batch.layer, batch.query, batch.cache, batch.block_table, batch.kv_lens))


@FUNCTIONS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rows_are_exact(dtype, function):
    batch = fill(served_layer(), [(1, kv_len) for kv_len in LENGTHS], layout="transposed", dtype=dtype)
    check(batch, function(batch.layer, batch.query, batch.cache, batch.block_table, batch.kv_lens))


@FUNCTIONS
def test_large_scores_do_not_overflow(function):
    batch = fill(served_layer(), [(1, kv_len) for kv_len in LENGTHS])
    query = batch.query * 1e3
    for case, row in zip(batch.cases, query, strict=True):
        case.query = row[None, :, None]
    check(batch, function(batch.layer, query, batch.cache, batch.block_table, batch.kv_lens))


@FUNCTIONS
def test_table_may_have_any_ids_outside_the_keys(function):
    batch = fill(served_layer(window=5), [(1, kv_len) for kv_len in LENGTHS], spare=3)
    table = batch.block_table.clone()
    for row, kv_len in zip(table, LENGTHS, strict=True):
        row[: max(0, kv_len - 5) // 4], row[-(-kv_len // 4) :] = 2**30, -(2**30)
    check(batch, function(batch.layer, batch.query, batch.cache, table, batch.kv_lens))


@FUNCTIONS
def test_row_without_keys_is_empty(function):
    batch = fill(served_layer(), [(1, 5), (1, 3)])
    rows = function(batch.layer, batch.query, batch.cache, batch.block_table, torch.tensor([0, 3]))
    assert (rows.lse[0] == -torch.inf).all()
    assert (rows.peak[0] == -torch.inf).all()
    assert (rows.entropy[0] == 0).all()
    assert (rows.weights[0] == 0).all()
    assert rows.lse[1].isfinite().all()


@pytest.mark.parametrize(("block", "key_dim", "lengths"), [(16, 24, [3, 50, 33]), (128, 64, [130, 1, 256, 300])])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_native_rows_of_usual_sizes_match_the_formula(layout, block, key_dim, lengths):
    layer, options = served_layer(heads=14, window=97), {"block": block, "key_dim": key_dim, "dtype": torch.bfloat16}
    batch = fill(layer, [(1, kv_len) for kv_len in lengths], layout=layout, **options)
    with poisoned():
        check(batch, native_rows(layer, batch.query, batch.cache, batch.block_table, batch.kv_lens))
