"""Which weights dropout keeps, as `dropout.kept` decides it: a function of (seed, batch, head, query, key)."""

# pyright: reportArgumentType=false

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from clearhead.ops.call import AttentionCall


class DropoutParams(NamedTuple):
    seed: Any
    threshold: Any  # a weight is dropped if the number drawn for it, of 32 bits, is less
    kept: Any  # what the others are multiplied by

    @classmethod
    def from_call(cls, call: AttentionCall) -> DropoutParams | None:
        if call.seed is None:
            return None
        seed = call.seed.to(call.query.device)
        return cls(seed, round(call.dropout * 2**32), 1 / (1 - call.dropout))


@triton.jit
def _mix(x):
    """`dropout._mix`, on unsigned numbers, whose shifts bring in zeros by themselves."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def dropout_multiplier(dropout, batch, head, rows, keys, heads, q_len):
    """What each weight of a tile is multiplied by, 0 for those that are dropped; `rows` and `keys` broadcast."""
    low, high = tl.load(dropout.seed).to(tl.uint32), tl.load(dropout.seed + 1).to(tl.uint32)
    row_indices = (batch * heads + head) * q_len + rows.to(tl.int64)
    row_hash = _mix(_mix(row_indices.to(tl.uint32) ^ low) ^ (row_indices >> 32).to(tl.uint32) ^ high)
    key_hash = _mix(keys.to(tl.uint32) * 0x27D4EB2F)
    # there the comparison is of signed numbers: flipping the highest bit keeps their order
    drawn = _mix(row_hash + key_hash) ^ 0x80000000
    return tl.where(drawn.to(tl.int64) >= dropout.threshold, dropout.kept, 0.0)
