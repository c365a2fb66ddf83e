"""Scores of one query per request against the keys of a paged cache, as in a decoding step of an inference server.

A program reads a chunk of one request's keys of one key head, block by block through the block table, once for all
query heads that share it. The scores are written in float32; everything that follows from them is left to torch.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.ops.triton.config import TileConfig, block_count, matmul_precision, padded_width
from clearhead.ops.triton.launch import launch_on_grid, specialization_of
from clearhead.ops.triton.logits import dot_transposed, tanh
from clearhead.ops.triton.tiles import MIN_SIZE

TILE_BYTES = 16_384  # of keys; three stages fit into the shared memory of every supported GPU
MAX_KEYS = 128  # in a tile
STAGES = 3
TARGET_PROGRAMS = 2048  # several times the number that run at once, to balance long and short requests
MIN_TILES_PER_PROGRAM = 4


def paged_scores(
    query: Float[Tensor, "rows heads key_dim"],
    key_blocks: Float[Tensor, "blocks kv_heads block key_dim"],
    block_table: Int[Tensor, "rows columns"],
    kv_lens: Int[Tensor, " rows"],
    first_keys: Int[Tensor, " rows"] | None,
    scale: float,
    softcap: float | None = None,
    slopes: Float[Tensor, " heads"] | None = None,
) -> Float[Tensor, "rows heads keys"]:
    """Return softcap(scale · Q Kᵀ) − slope · distance in float32, and −inf for keys that a query may not attend to.

    The result has a key for each slot of the table's blocks. Slots of the cache outside the keys of a request are never
    read, so their contents and block ids are arbitrary.

    Args:
        query: query of each request, at the position of its last key.
        key_blocks: blocks of keys, with any strides.
        block_table: indices of the blocks of each request, in the order of its keys.
        kv_lens: number of keys of each request, at most the number of slots of its blocks.
        first_keys: first key that each query may attend to; None for key 0.
        scale: factor of Q Kᵀ.
        softcap: bound of the scaled scores.
        slopes: ALiBi slope of each head.
    """
    rows, heads, key_dim = query.shape
    kv_heads, block = key_blocks.shape[1:3]
    if query.dtype != key_blocks.dtype:
        raise ValueError(f"key_blocks have dtype {key_blocks.dtype}; expected that of query, {query.dtype}")
    if heads % kv_heads:
        raise ValueError(f"key_blocks have {kv_heads} heads; expected a divisor of query's {heads}")
    keys = block_table.shape[1] * block
    scores = query.new_empty((rows, heads, keys), dtype=torch.float32)
    if scores.numel() == 0:
        return scores
    group, width = heads // kv_heads, padded_width(key_dim)
    tile = tile_of(group, width, query.dtype)
    least = block_count(keys * rows * kv_heads, TARGET_PROGRAMS)
    tiles = max(block_count(least, tile.keys), MIN_TILES_PER_PROGRAM)
    kv_lens = kv_lens.contiguous()
    first_keys = None if first_keys is None else first_keys.contiguous()
    slopes = None if slopes is None else slopes.contiguous()
    launch_on_grid(
        _paged_scores,
        (softcap is None, *specialization_of(query, key_blocks, block_table, kv_lens, first_keys, slopes)),
        (block_count(keys, tiles * tile.keys), kv_heads, rows),
        (
            query, *query.stride(), key_blocks, *key_blocks.stride(), block_table, *block_table.stride(), kv_lens,
            first_keys, slopes, scores, float(scale), None if softcap is None else float(softcap),
            block_table.shape[1], tiles,
        ),
        {
            "GROUP": group,
            "KEY_DIM": key_dim,
            "SLOTS": block,
            "BLOCK_Q": tile.queries,
            "BLOCK_K": tile.keys,
            "BLOCK_D": width,
            "PRECISION": matmul_precision(query.dtype),
            "num_warps": tile.warps,
            "num_stages": tile.stages,
        },
    )  # fmt: skip
    return scores


def tile_of(group: int, width: int, dtype: torch.dtype) -> TileConfig:
    """Return the tile for a group of query heads and a padded width: `TILE_BYTES` of keys in each stage."""
    keys = max(MIN_SIZE, min(MAX_KEYS, TILE_BYTES // (width * dtype.itemsize)))
    return TileConfig(padded_width(group), keys, 4, STAGES)


@triton.jit(do_not_specialize=["columns", "tiles"])
def _paged_scores(
    query,
    query_row,
    query_head,
    query_column,
    key_blocks,
    key_block,
    key_head,
    key_slot,
    key_column,
    block_table,
    table_row,
    table_column,
    kv_lens,
    first_keys,
    slopes,
    scores,
    scale,
    softcap,
    columns,
    tiles,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    # products with constants, so that the compiler infers the alignment of the scores
    keys, chunk = columns * SLOTS, tiles * BLOCK_K
    start = tl.program_id(0) * chunk
    kv_head, row = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    member, dims = tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_D)
    head = kv_head * GROUP + member  # [BLOCK_Q]
    in_group, in_width = member < GROUP, dims < KEY_DIM
    # int64 supports tensors of more than 2³¹ elements
    dims = dims.to(tl.int64)
    query_pointers = query + row * query_row + head[:, None] * query_head + dims[None, :] * query_column
    tile = tl.load(query_pointers, in_group[:, None] & in_width[None, :], other=0.0)  # [BLOCK_Q, BLOCK_D]
    kv_len = tl.load(kv_lens + row)
    first = 0
    if first_keys is not None:
        first = tl.load(first_keys + row)
    slope = tl.zeros([BLOCK_Q], dtype=tl.float32)
    if slopes is not None:
        slope = tl.load(slopes + head, in_group, other=0.0).to(tl.float32)
    key_start = key_blocks + kv_head * key_head
    output = scores + (row * tl.num_programs(1) * GROUP + head) * keys  # [BLOCK_Q]
    end = tl.minimum(start + chunk, keys)
    low = tl.maximum(start, first // BLOCK_K * BLOCK_K).to(tl.int32)
    high = tl.minimum(end, kv_len).to(tl.int32)
    for position in range(low, high, BLOCK_K):
        indices = position + tl.arange(0, BLOCK_K)
        # a freed block may have any id, and an unused slot any content: neither is read
        allowed = (indices >= first) & (indices < kv_len) & (indices < keys)
        table_columns = (indices // SLOTS).to(tl.int64)
        blocks = tl.load(block_table + row * table_row + table_columns * table_column, allowed, other=0)
        offsets = blocks.to(tl.int64) * key_block + (indices % SLOTS).to(tl.int64) * key_slot  # [BLOCK_K]
        pointers = key_start + offsets[:, None] + dims[None, :] * key_column
        key = tl.load(pointers, allowed[:, None] & in_width[None, :], other=0.0)  # [BLOCK_K, BLOCK_D]
        result = dot_transposed(tile, key, PRECISION) * scale
        if softcap is not None:
            result = softcap * tanh(result / softcap)
        if slopes is not None:
            result -= slope[:, None] * (kv_len - 1 - indices).to(tl.float32)[None, :]
        result = tl.where(allowed[None, :], result, -float("inf"))
        tl.store(output[:, None] + indices[None, :], result, in_group[:, None] & (indices < keys)[None, :])
    # tiles without a key that the query may attend to
    for position in range(start, end, BLOCK_K):
        if (position < low) | (position >= high):
            indices = position + tl.arange(0, BLOCK_K)
            absent = tl.full([BLOCK_Q, BLOCK_K], -float("inf"), dtype=tl.float32)
            tl.store(output[:, None] + indices[None, :], absent, in_group[:, None] & (indices < keys)[None, :])
