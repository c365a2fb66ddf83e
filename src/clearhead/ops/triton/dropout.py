"""Dropout in Triton, with the mask of `_dropout.keep_mask`: a function of (seed, batch, head, query, key)."""

# pyright: reportArgumentType=false

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from clearhead.ops.call import AttentionCall


class DropoutParams(NamedTuple):
    """Kernel parameters of dropout."""

    seed: Any
    threshold: Any  # a weight is dropped if its 32-bit random number is less
    kept: Any  # factor of the weights that are kept

    @classmethod
    def from_call(cls, call: AttentionCall) -> DropoutParams | None:
        if call.seed is None:
            return None
        seed = call.seed.to(call.query.device)
        return cls(seed, round(call.dropout * 2**32), 1 / (1 - call.dropout))


@triton.jit
def _mix(x):
    """Hash as `_dropout._mix` does, on unsigned integers, whose right shift fills with zeros."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def dropout_multiplier(dropout, row_indices, keys):
    """Return the factor of each weight of a tile, 0 if it is dropped; row indices and keys broadcast."""
    low, high = tl.load(dropout.seed).to(tl.uint32), tl.load(dropout.seed + 1).to(tl.uint32)
    row_indices = row_indices.to(tl.int64)
    row_hash = _mix(_mix(row_indices.to(tl.uint32) ^ low) ^ (row_indices >> 32).to(tl.uint32) ^ high)
    key_hash = _mix(keys.to(tl.uint32) * 0x27D4EB2F)
    # `keep_mask` compares signed integers; flipping the highest bit gives unsigned integers in the same order
    drawn = _mix(row_hash + key_hash) ^ 0x80000000
    return tl.where(drawn.to(tl.int64) >= dropout.threshold, dropout.kept, 0.0)
