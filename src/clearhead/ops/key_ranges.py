"""Key ranges: the form that every mask except `Dense` lowers to.

A set of ranges is an int32 tensor `[ranges, 2, batch or 1, q_len]`: for each query the half-open intervals
`[first, last)` of keys it may attend to, sorted and disjoint, `0 <= first <= last <= kv_len`. An empty interval has
`first == last`. All functions can be compiled, and all except `contains` take O(q_len) memory.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

KeyRanges = Int[Tensor, "_ 2 _ q_len"]  # [ranges, 2, batch or 1, q_len]


def single_range(first: Int[Tensor, "batch q_len"], last: Int[Tensor, "batch q_len"], kv_len: int) -> KeyRanges:
    """Return one range per query, clamped to `[0, kv_len]`."""
    first, last = torch.broadcast_tensors(first.clamp(0, kv_len), last.clamp(0, kv_len))
    return torch.stack([first, torch.maximum(first, last)]).unsqueeze(0).int()


def intersect(left: KeyRanges, right: KeyRanges, kv_len: int) -> KeyRanges:
    """Return the ranges of keys in both sets."""
    batch = max(left.shape[2], right.shape[2])
    left, right = left.expand(-1, -1, batch, -1), right.expand(-1, -1, batch, -1)
    first = torch.maximum(left[:, None, 0], right[None, :, 0]).flatten(0, 1)
    last = torch.minimum(left[:, None, 1], right[None, :, 1]).flatten(0, 1)
    if first.shape[0] == 1:
        return torch.stack([first, torch.maximum(first, last)], dim=1)
    # at most R1 + R2 - 1 pairs of two sorted, disjoint sets overlap; empty ranges are sorted to the end
    empty = first >= last
    first, last = first.masked_fill(empty, kv_len), last.masked_fill(empty, kv_len)
    first, order = first.sort(dim=0, stable=True)
    kept = left.shape[0] + right.shape[0] - 1
    return torch.stack([first, last.gather(0, order)], dim=1)[:kept].contiguous()


def unite(left: KeyRanges, right: KeyRanges) -> KeyRanges:
    """Return the ranges of keys in either set. Adjacent ranges are merged, so a tile covered by both is full."""
    batch = max(left.shape[2], right.shape[2])
    both = torch.cat([left.expand(-1, -1, batch, -1), right.expand(-1, -1, batch, -1)])
    first, order = both[:, 0].sort(dim=0, stable=True)
    last = both[:, 1].gather(0, order)
    start, end, merged = first[0], last[0], []
    for i in range(1, first.shape[0]):
        touches = first[i] <= end
        merged.append(torch.stack([start, torch.where(touches, start, end)]))  # empty if merged into the next
        start, end = torch.where(touches, start, first[i]), torch.where(touches, torch.maximum(end, last[i]), last[i])
    merged.append(torch.stack([start, end]))
    return torch.stack(merged)


def contains(ranges: KeyRanges, keys: Int[Tensor, " keys"]) -> Bool[Tensor, "batch q_len keys"]:
    """Return which of `keys` each query may attend to.

    The result has q_len × keys cells: use it for a tile, a row or a small picture.
    """
    first, last = ranges[:, 0, ..., None], ranges[:, 1, ..., None]
    return ((keys >= first) & (keys < last)).any(dim=0)
