"""Translation of transformers' mask functions to clearhead's masks, without evaluating n × n cells.

A mask function takes absolute positions (batch, head, query, key) and returns whether the query may attend to the key.
transformers builds mask functions from a few factories and combines them with `and_masks` and `or_masks`. This module
recognizes each by its factory and reads its parameters from the closure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, or_
from typing import Any

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor
from transformers import masking_utils

from clearhead.huggingface._transformers_internals import closure, mask_factory
from clearhead.ops.key_ranges import single_range
from clearhead.ops.masks import Causal, Dense, LoweredMask, Mask, Padding, PrecomputedMask, Prefix, Window

MaskFunction = Callable[..., Any]
UNLIMITED = 2**31
MAX_EVALUATED_CELLS = 2**24  # cells of a mask in memory at a time


class UnknownFunctionError(Exception):
    """Error for a mask function that is not one of transformers' own."""


@dataclass(frozen=True)
class MaskExtent:
    """Extent of a mask: numbers of queries and keys, and the absolute positions of the first ones.

    Attributes:
        text_start: position at which the text of each query starts, if several texts are packed and the mask function
            takes positions within a text.
    """

    batch: int
    q_len: int
    kv_len: int
    q_offset: int
    kv_offset: int
    device: torch.device
    text_start: Int[Tensor, "batch q_len"] | None = None

    @property
    def query_start(self) -> int:
        """Index of the first query among the keys."""
        return self.q_offset - self.kv_offset

    def queries(self) -> Int[Tensor, " q_len"]:
        """Return the absolute positions of the queries."""
        return torch.arange(self.q_offset, self.q_offset + self.q_len, device=self.device)

    def select_keys(self, values: Shaped[Tensor, "batch positions"]) -> Shaped[Tensor, "batch kv_len"]:
        """Return the values at the positions of the keys. Positions beyond the end are 0."""
        missing = max(0, self.kv_offset + self.kv_len - values.shape[1])
        return torch.nn.functional.pad(values, (0, missing))[:, self.kv_offset : self.kv_offset + self.kv_len]


def translate(function: MaskFunction, extent: MaskExtent) -> Mask | None:
    """Translate a mask function to a mask; None if every query may attend to every key."""
    if function is masking_utils.causal_mask_function:
        return Causal()
    if function is masking_utils.bidirectional_mask_function:
        return None
    factory = mask_factory(function)
    if factory not in (_TRANSLATIONS if extent.text_start is None else _WITHIN_TEXTS):
        raise UnknownFunctionError(factory)
    return _TRANSLATIONS[factory](closure(function), extent)


def is_bidirectional(function: MaskFunction) -> bool:
    """Return whether a mask function allows later keys. Queries and keys may then be different tokens."""
    if function is masking_utils.bidirectional_mask_function:
        return True
    return any(map(is_bidirectional, closure(function).get("mask_functions", ())))


def padding_mask(allowed: Bool[Tensor, "batch kv_len"]) -> Mask | None:
    """Return the mask of valid keys: `Padding` or key ranges if they are contiguous, else `Dense`.

    Return None if all keys are valid.
    """
    kv_len = allowed.shape[1]
    lengths, keys = allowed.sum(dim=1), torch.arange(kv_len, device=allowed.device)
    right, left = keys < lengths[:, None], keys >= kv_len - lengths[:, None]
    first = allowed.int().argmax(dim=1)
    between = (keys >= first[:, None]) & (keys < (first + lengths)[:, None])
    forms = (allowed, allowed == right, allowed == left, allowed == between)
    all_valid, on_the_right, on_the_left, contiguous = torch.stack([form.all() for form in forms]).tolist()
    if all_valid:
        return None
    if on_the_right or on_the_left:
        return Padding(lengths, "right" if on_the_right else "left")
    if contiguous:
        return PrecomputedMask(
            LoweredMask(single_range(first[:, None], (first + lengths)[:, None], kv_len)), "Padding(both sides)"
        )
    return Dense(allowed[:, None, None])


def evaluate(
    function: MaskFunction, extent: MaskExtent, allowed: Bool[Tensor, "batch positions"] | None, use_vmap: bool
) -> Mask:
    """Evaluate a mask function that `translate` does not support, a block of queries at a time.

    The result has key ranges if the keys of every row are contiguous, else it is dense.
    """
    rows = max(1, MAX_EVALUATED_CELLS // max(1, extent.batch * extent.kv_len))
    blocks, ranges, contiguous = [], [], True
    for start in range(0, extent.q_len, rows):
        block = masking_utils.sdpa_mask(
            extent.batch,
            min(rows, extent.q_len - start),
            extent.kv_len,
            q_offset=extent.q_offset + start,
            kv_offset=extent.kv_offset,
            mask_function=function,
            attention_mask=allowed,
            allow_is_causal_skip=False,
            use_vmap=use_vmap,
            device=extent.device,
        )
        assert block is not None
        block = block[:, 0]
        count, first = block.sum(dim=-1), block.int().argmax(dim=-1)
        last = extent.kv_len - block.flip(-1).int().argmax(dim=-1)
        last = torch.where(count > 0, last, first)
        if contiguous := contiguous and bool((last - first == count).all()):
            ranges.append(torch.stack([first, last]))
        blocks.append(block)
    name = f"{getattr(function, '__qualname__', 'a mask function')}, evaluated"
    if contiguous and ranges:
        first, last = torch.cat(ranges, dim=-1)
        return PrecomputedMask(LoweredMask(single_range(first, last, extent.kv_len)), name)
    return Dense(torch.cat(blocks, dim=1)[:, None])


def intersect(masks: list[Mask | None]) -> Mask | None:
    """Return the intersection of masks. None is the mask that allows every key."""
    limiting = [mask for mask in masks if mask is not None]
    if any(isinstance(mask, Causal) for mask in limiting):
        # Causal & a window without an upper limit is one causal window
        causal = [Window(m.before) if isinstance(m, Window) and m.after == UNLIMITED else m for m in limiting]
        if any(isinstance(mask, Window) for mask in causal):
            limiting = [mask for mask in causal if not isinstance(mask, Causal)]
    return reduce(and_, limiting) if limiting else None


def _unite(masks: list[Mask | None]) -> Mask | None:
    limiting = [mask for mask in masks if mask is not None]
    return reduce(or_, limiting) if len(limiting) == len(masks) else None


def _operands(variables: dict[str, Any], extent: MaskExtent) -> list[Mask | None]:
    return [translate(function, extent) for function in variables["mask_functions"]]


def _conjuncts(variables: dict[str, Any], extent: MaskExtent) -> list[Mask | None]:
    """Return masks with the intersection of some mask functions.

    transformers 5.23 calls the functions of packed texts with positions within the texts. These increase by 1 with each
    token, so cells are the same as with positions in the row, except where a function has absolute positions.
    """
    functions = variables["mask_functions"]
    if "packed_sequence_mask_function" not in map(mask_factory, functions):
        return _operands(variables, extent)
    masks = []
    for function in functions:
        within = extent
        if mask_factory(function) == "remap_positions_for_packed_sequence":
            texts = closure(function)
            positions, queries = texts["position_ids"].to(extent.device), extent.queries()
            function, within = texts["mask_function"], replace(extent, text_start=queries - positions[:, queries])
        masks.append(translate(function, within))
    return masks


def _window(size: int) -> Mask:
    """Return the mask of the last `size` keys, including the query's position, and all later keys.

    With size 0 no key is allowed; transformers creates such a mask only if no layer uses it.
    """
    return Window(size - 1, UNLIMITED) if size > 0 else Prefix(0)


def _chunk(variables: dict[str, Any], extent: MaskExtent) -> Mask:
    size, start = variables["chunk_size"], variables["left_padding"].to(extent.device)[:, None]
    if extent.text_start is not None:
        start = start + extent.text_start
    first = start + (extent.queries() - start).div(size, rounding_mode="floor") * size - extent.kv_offset
    return PrecomputedMask(LoweredMask(single_range(first, first + size, extent.kv_len)), f"chunks of {size}")


def _same_group(groups: Int[Tensor, "batch positions"], extent: MaskExtent, name: str) -> Mask:
    """Return the mask of keys in the query's group. Tokens with a negative group are in no group.

    Raises:
        UnknownFunctionError: if the keys of a group are not contiguous, or the groups are not in ascending order.
    """
    if groups.shape[1] < max(extent.q_offset + extent.q_len, extent.kv_offset + extent.kv_len):
        raise UnknownFunctionError(name)
    query_groups = groups[:, extent.q_offset : extent.q_offset + extent.q_len].to(extent.device)
    keys = extent.select_keys(groups.to(extent.device))
    starts = torch.cat([torch.ones_like(keys[:, :1], dtype=torch.bool), keys[:, 1:] != keys[:, :-1]], dim=1)
    highest = keys.cummax(dim=1).values
    before = torch.cat([torch.full_like(keys[:, :1], -1), highest[:, :-1]], dim=1)
    if bool((starts & (keys >= 0) & (keys <= before)).any()):  # a repeated or descending group
        raise UnknownFunctionError(name)
    indices = torch.arange(extent.kv_len, device=extent.device).expand_as(keys)
    # start of the next run of equal groups at or after each key
    later = torch.where(starts, indices, extent.kv_len).flip(1).cummin(dim=1).values.flip(1)
    ends = torch.cat([later[:, 1:], torch.full_like(later[:, :1], extent.kv_len)], dim=1)
    first = torch.searchsorted(highest.contiguous(), query_groups.contiguous())
    inside = first.clamp(max=extent.kv_len - 1)
    has_keys = (first < extent.kv_len) & (keys.gather(1, inside) == query_groups) & (query_groups >= 0)
    last = torch.where(has_keys, ends.gather(1, inside), first)
    return PrecomputedMask(LoweredMask(single_range(first, last, extent.kv_len)), name)


_TRANSLATIONS: dict[str | None, Callable[[dict[str, Any], MaskExtent], Mask | None]] = {
    "and_masks": lambda variables, extent: intersect(_conjuncts(variables, extent)),
    "or_masks": lambda variables, extent: _unite(_operands(variables, extent)),
    "sliding_window_overlay": lambda variables, extent: _window(variables["sliding_window"]),
    "sliding_window_bidirectional_overlay": lambda variables, extent: Window(
        variables["sliding_window"], variables["sliding_window"]
    ),
    "chunked_overlay": _chunk,
    "padding_mask_function": lambda variables, extent: padding_mask(
        extent.select_keys(variables["padding_mask"].bool())
    ),
    "packed_sequence_mask_function": lambda variables, extent: _same_group(
        variables["packed_sequence_mask"], extent, "packed sequences"
    ),
    "blockwise_overlay": lambda variables, extent: _same_group(variables["block_sequence_ids"], extent, "blocks"),
}
_WITHIN_TEXTS = (  # the others have tensors of absolute positions
    "and_masks", "or_masks", "sliding_window_overlay", "sliding_window_bidirectional_overlay", "chunked_overlay"
)  # fmt: skip
