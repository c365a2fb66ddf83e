"""transformers' mask functions as clearhead's masks: recognised by what they are, not by evaluating n × n cells.

A mask function says of (batch, head, query, key), in absolute positions, whether the query may attend to the key.
transformers makes them from a few of its own and joins them with `and_masks` and `or_masks`; each is known here by the
code it runs and by what it closes over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import masking_utils

from clearhead.ops.key_ranges import single_range
from clearhead.ops.masks import Causal, Dense, LoweredMask, Mask, Padding, PrecomputedMask, Prefix, Window

MaskFunction = Callable[..., Any]
UNLIMITED = 2**31
BLOCK = 2**24  # cells of a mask that is evaluated at a time


class UnknownFunctionError(Exception):
    """A mask function that is none of transformers' own."""


@dataclass(frozen=True)
class Place:
    """Which queries and keys a mask is for: their numbers, and the absolute positions of the first ones."""

    batch: int
    q_len: int
    kv_len: int
    q_offset: int
    kv_offset: int
    device: torch.device

    @property
    def query_start(self) -> int:
        """Where the first query stands among the keys at hand."""
        return self.q_offset - self.kv_offset

    def queries(self) -> Int[Tensor, " q_len"]:
        """Absolute positions."""
        return torch.arange(self.q_offset, self.q_offset + self.q_len, device=self.device)

    def keys_of(self, row: Tensor) -> Tensor:
        """A tensor [batch, positions] at the keys; what lies beyond its end counts as 0."""
        missing = max(0, self.kv_offset + self.kv_len - row.shape[1])
        return torch.nn.functional.pad(row, (0, missing))[:, self.kv_offset : self.kv_offset + self.kv_len]


def translate(function: MaskFunction, place: Place) -> Mask | None:
    """The same as a mask; None where every query may attend to every key."""
    if function is masking_utils.causal_mask_function:
        return Causal()
    if function is masking_utils.bidirectional_mask_function:
        return None
    maker = getattr(function, "__qualname__", "").partition(".<locals>.")[0]
    ours = getattr(function, "__module__", "") == masking_utils.__name__
    if not ours or maker not in _MADE_BY:
        raise UnknownFunctionError(maker)
    return _MADE_BY[maker](_closure(function), place)


def is_bidirectional(function: MaskFunction) -> bool:
    """Return whether a mask function lets queries look ahead, so that queries may be other tokens than the keys."""
    if function is masking_utils.bidirectional_mask_function:
        return True
    joined = _closure(function).get("mask_functions", ()) if getattr(function, "__closure__", None) else ()
    return any(map(is_bidirectional, joined))


def hidden_keys(allowed: Bool[Tensor, "batch kv_len"]) -> Mask | None:
    """The keys that are real, as padding where they stand together."""
    kv_len = allowed.shape[1]
    lengths, keys = allowed.sum(dim=1), torch.arange(kv_len, device=allowed.device)
    right, left = keys < lengths[:, None], keys >= kv_len - lengths[:, None]
    first = allowed.int().argmax(dim=1)
    between = (keys >= first[:, None]) & (keys < (first + lengths)[:, None])
    forms = (allowed, allowed == right, allowed == left, allowed == between)
    everything, on_the_right, on_the_left, together = torch.stack([form.all() for form in forms]).tolist()
    if everything:
        return None
    if on_the_right or on_the_left:
        return Padding(lengths, "right" if on_the_right else "left")
    if together:
        return PrecomputedMask(
            LoweredMask(single_range(first[:, None], (first + lengths)[:, None], kv_len)), "Padding(both sides)"
        )
    return Dense(allowed[:, None, None])


def evaluate(
    function: MaskFunction, place: Place, allowed: Bool[Tensor, "batch positions"] | None, use_vmap: bool
) -> Mask:
    """Any other function, asked about a block of queries at a time; key ranges if every row's keys stand together."""
    rows = max(1, BLOCK // max(1, place.batch * place.kv_len))
    blocks, ends, together = [], [], True
    for start in range(0, place.q_len, rows):
        block = masking_utils.sdpa_mask(
            place.batch,
            min(rows, place.q_len - start),
            place.kv_len,
            q_offset=place.q_offset + start,
            kv_offset=place.kv_offset,
            mask_function=function,
            attention_mask=allowed,
            allow_is_causal_skip=False,
            use_vmap=use_vmap,
            device=place.device,
        )
        assert block is not None
        block = block[:, 0]
        count, first = block.sum(dim=-1), block.int().argmax(dim=-1)
        last = place.kv_len - block.flip(-1).int().argmax(dim=-1)
        last = torch.where(count > 0, last, first)
        if together := together and bool((last - first == count).all()):
            ends.append(torch.stack([first, last]))
        blocks.append(block)
    name = f"{getattr(function, '__qualname__', 'a mask function')}, evaluated"
    if together and ends:
        first, last = torch.cat(ends, dim=-1)
        return PrecomputedMask(LoweredMask(single_range(first, last, place.kv_len)), name)
    return Dense(torch.cat(blocks, dim=1)[:, None])


def both(masks: list[Mask | None]) -> Mask | None:
    """The keys that all of them allow."""
    given = [mask for mask in masks if mask is not None]
    if any(isinstance(mask, Causal) for mask in given):
        # a window that is open ahead is closed by causality: one mask says both
        causal = [Window(m.before) if isinstance(m, Window) and m.after == UNLIMITED else m for m in given]
        if any(isinstance(mask, Window) for mask in causal):
            given = [mask for mask in causal if not isinstance(mask, Causal)]
    return reduce(and_, given) if given else None


def _either(masks: list[Mask | None]) -> Mask | None:
    given = [mask for mask in masks if mask is not None]
    return reduce(or_, given) if len(given) == len(masks) else None


def _closure(function: MaskFunction) -> dict[str, Any]:
    """What a function closes over, by name."""
    cells = function.__closure__ or ()
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells), strict=True))


def _joined(closure: dict[str, Any], place: Place) -> list[Mask | None]:
    return [translate(function, place) for function in closure["mask_functions"]]


def _window(size: int) -> Mask:
    """The last `size` keys, the query's own included, and all that follow; of size 0 it is made for no layer at all."""
    return Window(size - 1, UNLIMITED) if size > 0 else Prefix(0)


def _chunk(closure: dict[str, Any], place: Place) -> Mask:
    size, start = closure["chunk_size"], closure["left_padding"].to(place.device)[:, None]
    first = start + (place.queries() - start).div(size, rounding_mode="floor") * size - place.kv_offset
    return PrecomputedMask(LoweredMask(single_range(first, first + size, place.kv_len)), f"chunks of {size}")


def _same_group(numbers: Int[Tensor, "batch positions"], place: Place, name: str) -> Mask:
    """The keys with the query's own number, where keys of one number stand together; below 0 is no number."""
    if numbers.shape[1] < max(place.q_offset + place.q_len, place.kv_offset + place.kv_len):
        raise UnknownFunctionError(name)
    own = numbers[:, place.q_offset : place.q_offset + place.q_len].to(place.device)
    keys = place.keys_of(numbers.to(place.device))
    starts = torch.cat([torch.ones_like(keys[:, :1], dtype=torch.bool), keys[:, 1:] != keys[:, :-1]], dim=1)
    highest = keys.cummax(dim=1).values
    before = torch.cat([torch.full_like(keys[:, :1], -1), highest[:, :-1]], dim=1)
    if bool((starts & (keys >= 0) & (keys <= before)).any()):  # a number that comes again, or lower than one before
        raise UnknownFunctionError(name)
    places = torch.arange(place.kv_len, device=place.device).expand_as(keys)
    # where the run after each key begins
    later = torch.where(starts, places, place.kv_len).flip(1).cummin(dim=1).values.flip(1)
    ends = torch.cat([later[:, 1:], torch.full_like(later[:, :1], place.kv_len)], dim=1)
    first = torch.searchsorted(highest.contiguous(), own.contiguous())
    inside = first.clamp(max=place.kv_len - 1)
    found = (first < place.kv_len) & (keys.gather(1, inside) == own) & (own >= 0)
    last = torch.where(found, ends.gather(1, inside), first)
    return PrecomputedMask(LoweredMask(single_range(first, last, place.kv_len)), name)


_MADE_BY: dict[str, Callable[[dict[str, Any], Place], Mask | None]] = {
    "and_masks": lambda closure, place: both(_joined(closure, place)),
    "or_masks": lambda closure, place: _either(_joined(closure, place)),
    "sliding_window_overlay": lambda closure, place: _window(closure["sliding_window"]),
    "sliding_window_bidirectional_overlay": lambda closure, place: Window(
        closure["sliding_window"], closure["sliding_window"]
    ),
    "chunked_overlay": _chunk,
    "padding_mask_function": lambda closure, place: hidden_keys(place.keys_of(closure["padding_mask"].bool())),
    "packed_sequence_mask_function": lambda closure, place: _same_group(
        closure["packed_sequence_mask"], place, "packed sequences"
    ),
    "blockwise_overlay": lambda closure, place: _same_group(closure["block_sequence_ids"], place, "blocks"),
}
