"""Weights of one tile in Triton, in either orientation: of one head, or the mean over a group of heads."""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportAssignmentType=false

from __future__ import annotations

import triton
import triton.language as tl

from clearhead.ops.triton.logits import deferred_scale, dot_transposed, finish_logits, load_row_values, load_rows


@triton.jit
def _of_rows(values, TRANSPOSED: tl.constexpr):
    """Return values of rows so that they broadcast over a tile, or over a transposed tile."""
    return values[None, :] if TRANSPOSED else values[:, None]


@triton.jit
def _of_keys(values, TRANSPOSED: tl.constexpr):
    return values[:, None] if TRANSPOSED else values[None, :]


@triton.jit
def tile_logarithms(
    query, key, shift, logit_params, batch, head, rows, keys, first, last, PRECISION: tl.constexpr,
    MASKED: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """Return the logarithms of a tile's weights in base 2, −∞ where masked."""
    row_lse = load_row_values(shift, logit_params, batch, head, rows)
    products = dot_transposed(key, query, PRECISION) if TRANSPOSED else dot_transposed(query, key, PRECISION)
    logits = finish_logits(
        products, logit_params, batch, head, _of_rows(rows, TRANSPOSED), _of_keys(keys, TRANSPOSED),
        _of_rows(first, TRANSPOSED), _of_rows(last, TRANSPOSED), MASKED)  # fmt: skip
    return logits * deferred_scale(logit_params) - _of_rows(row_lse, TRANSPOSED)


@triton.jit
def mean_weights(
    held, query, key, logit_params, shift, batch, group, start, key_start, first, last, BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, OPTIONS: tl.constexpr, MASKED: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """Return the weights of a tile, the mean over the heads of a group, and their logarithms in base 2.

    With one head per group, `held` are the queries or keys that the program keeps: of the rows of the tile.
    """
    PRECISION: tl.constexpr = OPTIONS[0]
    MEMBERS: tl.constexpr = OPTIONS[1]
    rows, keys = start + tl.arange(0, BLOCK_Q), key_start + tl.arange(0, BLOCK_K)
    if MEMBERS == 1:
        if TRANSPOSED:
            query_tile, key_tile = load_rows(query, batch, group, start, BLOCK_Q, BLOCK_D), held
        else:
            query_tile = held
            key_tile = load_rows(key, batch, group // logit_params.group, key_start, BLOCK_K, BLOCK_D)
        logarithms = tile_logarithms(
            query_tile, key_tile, shift, logit_params, batch, group, rows, keys, first, last, PRECISION, MASKED,
            TRANSPOSED)  # fmt: skip
        weights = tl.exp2(logarithms)
    else:
        weights = tl.zeros([BLOCK_K, BLOCK_Q] if TRANSPOSED else [BLOCK_Q, BLOCK_K], dtype=tl.float32)
        for member in range(MEMBERS):
            head = group * MEMBERS + member
            query_tile = load_rows(query, batch, head, start, BLOCK_Q, BLOCK_D)
            key_tile = load_rows(key, batch, head // logit_params.group, key_start, BLOCK_K, BLOCK_D)
            logarithms = tile_logarithms(
                query_tile, key_tile, shift, logit_params, batch, head, rows, keys, first, last, PRECISION, MASKED,
                TRANSPOSED)  # fmt: skip
            weights += tl.exp2(logarithms)
        weights = weights * (1.0 / MEMBERS)
        logarithms = tl.log2(tl.where(weights > 0, weights, 1.0))
    return weights, tl.where(weights > 0, logarithms, 0.0)  # 0 · −∞ would be nan
