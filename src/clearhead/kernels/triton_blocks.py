"""Which blocks of queries see a block of keys: a mask's ranges, turned round."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from clearhead.kernels.triton_tiles import Tile
from clearhead.ranges import Ranges


def seen_by(ranges: Ranges, kv_len: int, tile: Tile) -> Int[Tensor, "ranges 4 batch key_blocks"]:
    """For each block of keys, as numbers of blocks of queries: where those start that see some of it, where a run of
    those that see all of it, where those that see only some of it again, and the end.
    """
    empty = ranges[:, 0] >= ranges[:, 1]
    first, last = ranges[:, 0].masked_fill(empty, kv_len), ranges[:, 1].masked_fill(empty, 0)
    # a block of queries sees keys from its smallest first to its largest last, all of it those in between
    low, high = (_blocks(first, tile.queries, kv_len).amin(-1), _blocks(last, tile.queries, 0).amax(-1))
    full, partial = (_blocks(first, tile.queries, 0).amax(-1), _blocks(last, tile.queries, kv_len).amin(-1))
    start = torch.arange(0, kv_len, tile.keys, device=ranges.device, dtype=torch.int32)[:, None]
    end = (start + tile.keys).clamp(max=kv_len)
    sees = (low[..., None, :] < end) & (start < high[..., None, :])  # [ranges, batch, key blocks, query blocks]
    whole = (full[..., None, :] <= start) & (end <= partial[..., None, :])
    number = torch.arange(sees.shape[-1], device=ranges.device, dtype=torch.int32)
    count = len(number)
    begin, stop = torch.where(sees, number, count).amin(-1), torch.where(sees, number + 1, 0).amax(-1)
    run = torch.where(whole, number, count).amin(-1)
    run_end = torch.where(~whole & (number > run[..., None]), number, count).amin(-1)
    run, run_end = torch.minimum(run, stop), torch.minimum(run_end, stop)
    return torch.stack([begin, run, run_end, stop], dim=1).int().contiguous()


def _blocks(ends: Tensor, size: int, filler: int) -> Tensor:
    """`[..., blocks, size]`; rows beyond the last have an end that changes nothing."""
    missing = -ends.shape[-1] % size
    return torch.nn.functional.pad(ends, (0, missing), value=filler).unflatten(-1, (-1, size))
