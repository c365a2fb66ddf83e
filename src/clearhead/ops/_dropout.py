"""Which weights dropout keeps: a function of (seed, batch, head, query, key) alone.

Counter-based, so that no mask is stored, the backward pass meets the same one, and every backend, whatever its tiles,
drops the same weights for the same seed.
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
    """Whether each weight survives. `rows` numbers the matrix's rows: (batch · heads + head) · q_len + query."""
    low, high = seed.to(rows.device).int()
    row_hash = _mix(_mix(rows.int() ^ low) ^ (rows >> 32).int() ^ high)
    key_hash = _mix(keys.int() * 0x27D4EB2F)
    threshold = round(dropout * 2**32) - 2**31  # uniform on int32
    return _mix(row_hash[..., None] + key_hash) >= threshold


def _mix(x: Tensor) -> Tensor:
    """A bijection of int32 that scatters neighbours (two rounds of xor-shift and odd multiplication, wrapping)."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * (0x846CA68B - 2**32)
    return x ^ ((x >> 16) & 0xFFFF)


def row_indices(batch: slice, heads: Int[Tensor, "*heads"], rows: slice, total_heads: int, q_len: int) -> Tensor:
    """Row numbers `[batch, *heads, rows]` of one block of the matrix."""
    device = heads.device
    sequences = torch.arange(batch.start, batch.stop, device=device).view(-1, *[1] * heads.ndim)
    return (sequences * total_heads + heads)[..., None] * q_len + torch.arange(rows.start, rows.stop, device=device)
