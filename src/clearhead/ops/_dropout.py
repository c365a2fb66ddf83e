"""Dropout mask: a function of (seed, batch, head, query, key).

It is counter-based: no mask is stored, and the backward pass computes the same mask again. Every backend drops the
same weights for the same seed, whatever its tile sizes.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def keep_mask(
    seed: Int[Tensor, " 2"],
    dropout: float,
    rows: Int[Tensor, "*rows"],
    keys: Int[Tensor, " keys"],
) -> Bool[Tensor, "*rows keys"]:
    """Return which weights are kept.

    Args:
        seed: two random integers.
        dropout: probability that a weight is dropped.
        rows: indices of rows of the matrix, (batch · total_heads + head) · q_len + query.
        keys: indices of keys.
    """
    low, high = seed.to(rows.device).int()
    row_hash = _mix(_mix(rows.int() ^ low) ^ (rows >> 32).int() ^ high)
    key_hash = _mix(keys.int() * 0x27D4EB2F)
    threshold = round(dropout * 2**32) - 2**31  # uniform on int32
    return _mix(row_hash[..., None] + key_hash) >= threshold


def _mix(x: Tensor) -> Tensor:
    """Hash int32 with a bijection that scatters neighbors: two rounds of xor-shift and odd multiplication, wrapping."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * (0x846CA68B - 2**32)
    return x ^ ((x >> 16) & 0xFFFF)


def row_indices(batch: slice, heads: Int[Tensor, "*heads"], rows: slice, total_heads: int, q_len: int) -> Tensor:
    """Return the row indices `[batch, *heads, rows]` of one block of the matrix."""
    device = heads.device
    sequences = torch.arange(batch.start, batch.stop, device=device).view(-1, *[1] * heads.ndim)
    return (sequences * total_heads + heads)[..., None] * q_len + torch.arange(rows.start, rows.stop, device=device)
