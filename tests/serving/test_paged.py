"""Tests of reading paged caches."""

import pytest
import torch

from clearhead.serving.paged import PagedCache
from support.paged_caches import LAYOUTS, fill, served_layer

LENGTHS = [(1, 3), (2, 13), (5, 5)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gather_returns_the_tokens_of_a_request(layout):
    batch = fill(served_layer(), LENGTHS, layout=layout, dtype=torch.bfloat16)
    for case, ids, (_, kv_len) in zip(batch.cases, batch.block_table, LENGTHS, strict=True):
        for start, end in ((0, kv_len), (1, kv_len), (kv_len - 1, kv_len), (0, 1)):
            key, value = batch.cache.gather(ids, start, end)
            assert torch.equal(key, case.key[0, :, start:end])
            assert value is not None
            assert torch.equal(value, case.value[0, :, start:end])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gather_reads_only_blocks_that_overlap(layout):
    batch = fill(served_layer(), LENGTHS, layout=layout)
    ids = batch.block_table[1].clone()
    ids[0], ids[3:] = 2**30, 2**30  # out of range
    key, value = batch.cache.gather(ids, 5, 11, values=False)
    assert torch.equal(key, batch.cases[1].key[0, :, 5:11])
    assert value is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sizes_do_not_depend_on_the_layout(layout):
    cache = fill(served_layer(), LENGTHS, layout=layout, block=5, key_dim=7).cache
    assert (cache.block_size, cache.kv_heads, cache.key_dim) == (5, 2, 7)


@pytest.mark.parametrize("layout", ["hnd", "nhd", "token-major", "transposed"])
def test_strided_layouts_are_views(layout):
    cache = fill(served_layer(), LENGTHS, layout=layout).cache
    assert cache.key_order is None
    assert cache.key_blocks.untyped_storage().data_ptr() == cache.value_blocks.untyped_storage().data_ptr()


def test_packed_order_is_read_from_the_first_half():
    order = torch.tensor([5, 3, 0, 1, 4, 2])
    cache = PagedCache.halves(torch.arange(12.0).view(1, 1, 3, 4), order)
    key, value = cache.gather(torch.tensor([0]), 0, 3)
    assert key.tolist() == [[[5.0, 3.0], [0.0, 1.0], [4.0, 2.0]]]
    assert value is not None
    assert value.tolist() == [[[6.0, 7.0], [8.0, 9.0], [10.0, 11.0]]]
