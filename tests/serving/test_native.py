"""Tests of the compiled functions: their absence, and the numbers that they read."""

import pytest
import torch

from clearhead.serving.native import Tile, native_kernel, tile_tensor
from support.paged_caches import fill, served_layer


def decode_tiles(kv_lens):
    """Return the tiles of requests with one query each."""
    return tile_tensor([Tile(index, 1, kv_len, index, index) for index, kv_len in enumerate(kv_lens)])


def test_missing_compilers_are_logged_once(monkeypatch, caplog):
    monkeypatch.setenv("CXX", "/missing/c++")
    native_kernel.cache_clear()
    try:
        assert [native_kernel() for _ in range(2)] == [None, None]
    finally:
        native_kernel.cache_clear()
    (record,) = caplog.records
    assert "No such file or directory: '/missing/c++'" in record.message
    assert record.message.endswith("attention is computed by slower functions")


def test_other_dtypes_are_not_supported():
    kernel = native_kernel()
    assert kernel is not None
    single = fill(served_layer(), [(1, 5)])
    double = fill(served_layer(), [(1, 5)], dtype=torch.float64)
    assert kernel.supports(single.query, single.cache)
    assert not kernel.supports(double.query, single.cache)
    assert not kernel.supports(single.query, double.cache)


def test_queries_may_be_part_of_a_larger_tensor():
    """Models split one tensor into queries, keys and values."""
    kernel = native_kernel()
    assert kernel is not None
    batch = fill(served_layer(), [(1, 5), (1, 9)])
    joined = torch.cat([batch.query, torch.full_like(batch.query, torch.nan)], dim=1)
    views = [joined[:, : batch.query.shape[1]], batch.query.repeat_interleave(2, dim=2)[:, :, ::2]]
    results = [torch.empty(2, 6) for _ in range(3)]
    for query, lse in zip([batch.query, *views], results, strict=True):
        kernel.run(
            batch.layer, query, batch.cache, batch.block_table.long(), decode_tiles([5, 9]), {"lse": lse}
        )  # fmt: skip
    assert torch.equal(results[1], results[0])
    assert torch.equal(results[2], results[0])


@pytest.mark.parametrize("bits", [0x0000, 0x0001, 0x03FF, 0x0400, 0x3C00, 0x7BFF, 0x7C00, 0x8001, 0xC000, 0xFC00])
def test_all_kinds_of_half_precision_numbers_are_read(bits):
    """The peak of one key with one dimension is the product of query and key."""
    kernel = native_kernel()
    assert kernel is not None
    layer = served_layer(heads=1, kv_heads=1)
    batch = fill(layer, [(1, 1)], key_dim=1, dtype=torch.float16)
    number = torch.tensor([bits], dtype=torch.int32).to(torch.int16).view(torch.float16)
    query, peak = number.view(1, 1, 1), torch.empty(1, 1)
    batch.cache.key_blocks[batch.block_table[0, 0], 0, 0, 0] = 1.0
    kernel.run(layer, query, batch.cache, batch.block_table.long(), decode_tiles([1]), {"peak": peak})
    assert peak.item() == pytest.approx(number.float().item() * layer.scale)


def test_shapes_and_blocks_out_of_range_raise():
    kernel = native_kernel()
    assert kernel is not None
    batch = fill(served_layer(), [(1, 5), (1, 9)])
    table, lse = batch.block_table.long(), {"lse": torch.empty(2, 6)}
    with pytest.raises(ValueError, match="query has 6 heads of 5 dims, and the cache 2 heads of 6; expected"):
        kernel.run(batch.layer, batch.query[..., :5], batch.cache, table, decode_tiles([5, 9]), lse)
    wrong = table.clone()
    wrong[1, 2] = len(batch.cache.key_blocks)
    negative = table.clone()
    negative[0, 0] = -1
    calls = [(wrong, [5, 9]), (negative, [5, 9]), (table, [5, 100]), (table, [5, 9, 9]), (table[:1], [5, 9])]
    for each, lengths in calls:
        with pytest.raises(IndexError, match="out of range"):
            kernel.run(batch.layer, batch.query, batch.cache, each, decode_tiles(lengths), lse)
