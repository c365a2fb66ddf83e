"""Tests of the order of Triton programs."""

import pytest
import torch
import triton
import triton.language as tl

from clearhead.ops.triton.schedule import program_block


@triton.jit
def _store_coordinates(coordinates, length, heads, batches, size: tl.constexpr):
    block, head, batch = program_block(length, heads, batches, size)
    target = coordinates + tl.program_id(0) * 3
    tl.store(target, block)
    tl.store(target + 1, head)
    tl.store(target + 2, batch)


@pytest.mark.parametrize(
    ("length", "heads", "batches", "in_flight"),
    [(100, 6, 3, 16), (2048, 18, 1, 16), (4096, 5, 2, 8), (8192, 6, 1, 4), (1_000_000, 5, 1, 4), (1, 1, 1, 16)],
)
def test_every_block_has_one_program_and_few_heads_are_in_flight(length, heads, batches, in_flight):
    size = triton.next_power_of_2(triton.cdiv(length, 3))
    blocks = triton.cdiv(length, size)
    coordinates = torch.full((blocks * heads * batches, 3), -1)
    _store_coordinates[(len(coordinates),)](coordinates, length, heads, batches, size)
    every = torch.cartesian_prod(torch.arange(blocks), torch.arange(heads), torch.arange(batches))
    assert sorted(map(tuple, coordinates.tolist())) == sorted(map(tuple, every.reshape(-1, 3).tolist()))
    for bundle in coordinates.split(blocks * in_flight):
        count = len(bundle) // blocks
        assert count <= in_flight
        for block, programs in enumerate(bundle.split(count)):  # all heads of a bundle, block by block
            assert (programs[:, 0] == block).all()
            assert len((programs[:, 2] * heads + programs[:, 1]).unique()) == count
