"""`KVCache`: the keys and values of the tokens read so far, for decoding token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead._utils.checks import check_bool, check_int, describe, list_items
from clearhead._utils.tensor_checks import check_device, check_float_tensor
from clearhead.ops.masks import Mask, Padding, query_positions


@dataclass(frozen=True, eq=False)
class Held:
    """What a cache hands to `attention()`: old and new keys and values, where the new ones stand, what is not real."""

    key: Float[Tensor, "batch kv_heads kv_len key_dim"]
    value: Float[Tensor, "batch kv_heads kv_len value_dim"]
    query_start: int | Int[Tensor, " batch"]
    mask: Mask | None
    whole: bool  # key 0 is the first of the text, nothing before it was forgotten
    new_key: Float[Tensor, "batch kv_heads n key_dim"]
    new_value: Float[Tensor, "batch kv_heads n value_dim"]


class KVCache:
    """Keys and values of the tokens read so far, preallocated; one per layer.

        cache = KVCache(capacity=1024)
        layer(prompt, mask=Causal(), cache=cache)     # [batch, n, d_model], in one piece or in chunks
        layer(token, mask=Causal(), cache=cache)      # [batch, 1, d_model], the same as one full pass

    A mask is what it is without a cache: `Causal()` has to be said, or the tokens of a chunk see each other.

    Args:
        capacity: positions allocated at first use.
        grow: whether a full cache doubles; if not, it says that it is full.

    Sequences may have different lengths: pad prompts on the right, read them, then `truncate(lengths)`; the next tokens
    stand right after each sequence's own. Only `kv_heads` heads are held. Decode under `torch.no_grad()`: while
    gradients of keys or values are recorded, every call copies the cache so that they can flow through it.
    """

    def __init__(self, capacity: int = 256, *, grow: bool = True) -> None:
        self._capacity = check_int("capacity", capacity)
        self._grow = check_bool("grow", grow)
        self._lengths: tuple[int, ...] = ()
        self._key: Tensor | None = None
        self._value: Tensor | None = None
        self._lent = 0  # positions below it were handed over for good, to weights or gradients: never overwritten

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many tokens of each sequence were read; empty before the first."""
        return self._lengths

    def __len__(self) -> int:
        """The length of the longest sequence."""
        return max(self._lengths, default=0)

    @property
    def window(self) -> int | None:
        """How many tokens back a token may see; None where nothing is forgotten."""
        return None

    @property
    def capacity(self) -> int:
        """Positions allocated, or to be allocated at first use."""
        return self._capacity

    def __repr__(self) -> str:
        shown = "empty" if self._key is None else f"batch {len(self._lengths)}, lengths {list(self._lengths)}"
        return f"{type(self).__name__}({shown}, capacity {self._capacity})"

    def positions(self, count: int, device: torch.device | None = None) -> Int[Tensor, "batch count"]:
        """Where the next `count` tokens of each sequence will stand; one row where all stand alike."""
        count = check_int("count", count, least=0)
        device = device if isinstance(device, torch.device) else check_device("device", device)
        return query_positions(count, count, self._start(self._lengths or (0,), device), device)

    def offer(
        self,
        key: Float[Tensor, "batch kv_heads n key_dim"],
        value: Float[Tensor, "batch kv_heads n value_dim"],
        *,
        lasting: bool = False,
    ) -> Held:
        """All keys and values there are, with those of new tokens, which the cache counts only when told to `accept`.

        With `lasting` what is handed over will never change, as attention weights and gradients need it.
        """
        if not self._lengths:  # whatever a call that failed has left
            self._key = self._value = None
        self._check(key, value)
        lasting = check_bool("lasting", lasting)
        return self._offer(key, value, self._lengths or (0,) * key.shape[0], lasting)

    def accept(self, held: Held) -> None:
        """Count the tokens last offered as read: not before all that could go wrong has gone well."""
        if not isinstance(held, Held):
            raise TypeError(f"held is {describe(held)}; expected what offer() returned")
        self._store(held)
        batch, _, count, _ = held.new_key.shape
        self._lengths = tuple(length + count for length in self._lengths or (0,) * batch)

    def append(self, key: Tensor, value: Tensor, *, lasting: bool = False) -> Held:
        """`offer` and `accept` in one."""
        held = self.offer(key, value, lasting=lasting)
        self.accept(held)
        return held

    def truncate(self, lengths: int | Sequence[int] | Tensor | np.ndarray) -> None:
        """Forget all but the first `lengths[b]` tokens of sequence b: the padding of a prompt, or rejected guesses."""
        if not self._lengths:
            raise ValueError("the cache is empty; there is nothing to truncate")
        wanted = list_items("lengths", lengths)
        if len(wanted) == 1 and not hasattr(lengths, "__len__"):
            wanted = wanted * len(self._lengths)
        if len(wanted) != len(self._lengths):
            raise ValueError(f"lengths has {len(wanted)} entries, but the cache holds {len(self._lengths)} sequences")
        kept = tuple(check_int("lengths", length, least=0) for length in wanted)
        for length, now in zip(kept, self._lengths, strict=True):
            if length > now:
                raise ValueError(f"lengths asks for {length} tokens of a sequence of which the cache holds {now}")
        self._forget(kept)
        self._lengths = kept

    def select(self, sequences: Sequence[int] | Int[Tensor, " chosen"]) -> None:
        """Keep these sequences, in this order; one may come several times, as in beam search."""
        numbers = list_items("sequences", sequences)
        if not numbers:
            raise ValueError("sequences is empty; expected at least one number of a sequence to keep")
        for number in numbers:
            if check_int("sequences", number, least=0) >= len(self._lengths):
                raise ValueError(f"sequences has {number}, but the cache holds {len(self._lengths)} sequences")
        assert self._key is not None
        assert self._value is not None
        index = torch.tensor(numbers, device=self._key.device)
        self._key, self._value = self._key.index_select(0, index), self._value.index_select(0, index)
        self._lengths = tuple(self._lengths[number] for number in numbers)
        self._lent = 0

    # -- how this cache stores them ------------------------------------------------------------------------------

    def _offer(self, key: Tensor, value: Tensor, starts: tuple[int, ...], lasting: bool) -> Held:
        """Write new keys and values from `starts` on, where nothing counts yet, and hand over everything."""
        end = max(starts) + key.shape[2]
        if end > self._capacity:
            self._make_room(end, key.shape[2])
        self._key = self._writable(self._key, key, min(starts))
        self._value = self._writable(self._value, value, min(starts))
        if min(starts) < self._lent:
            self._lent = 0
        _write(self._key, key, starts)
        _write(self._value, value, starts)
        uniform = min(starts) == max(starts)
        if lasting and uniform:
            self._lent = end

        def handed_over(buffer: Tensor) -> Tensor:
            held = buffer[:, :, :end]
            if not lasting or buffer.requires_grad:
                return held
            # a view that does not share the buffer's version: what comes later is written beyond it
            return held.data if uniform else held.clone()

        return Held(
            key=handed_over(self._key),
            value=handed_over(self._value),
            query_start=self._start(starts, key.device),
            mask=None if uniform else Padding([start + key.shape[2] for start in starts]),
            whole=True,
            new_key=key,
            new_value=value,
        )

    def _store(self, held: Held) -> None:
        """Nothing to do: what was offered is written already."""

    def _forget(self, lengths: tuple[int, ...]) -> None:
        """Clear what is cut off: it is hidden until it is overwritten, but 0 · nan would be nan."""
        assert self._key is not None
        assert self._value is not None
        first = min(lengths)
        self._key = self._writable(self._key, self._key, first)
        self._value = self._writable(self._value, self._value, first)
        if first < self._lent:
            self._lent = 0
        spans = list(zip(lengths, self._lengths, strict=True))
        alike = len(set(spans)) == 1
        for number, (length, now) in enumerate(spans[:1] if alike else spans):
            sequences = slice(None) if alike else number
            self._key[sequences, ..., length:now, :].zero_()
            self._value[sequences, ..., length:now, :].zero_()

    def _make_room(self, needed: int, new: int) -> None:
        if not self._grow:
            raise ValueError(
                f"cache is full: it holds {len(self)} of {self._capacity} positions, and {new} more do not fit;"
                " make it larger, or let it grow (grow=True)"
            )
        self._capacity = max(needed, 2 * self._capacity)

    def _writable(self, buffer: Tensor | None, new: Tensor, first: int = 0) -> Tensor:
        """The buffer with room for `capacity` positions: a copy where the old must not be written from `first` on."""
        shape = (*new.shape[:2], self._capacity, new.shape[3])
        if buffer is None:
            return new.new_zeros(shape)
        recording = torch.is_grad_enabled() and new.requires_grad
        foreign = not torch.compiler.is_compiling() and buffer.is_inference() and not torch.is_inference_mode_enabled()
        if buffer.shape == shape and not (recording or buffer.requires_grad or foreign or first < self._lent):
            return buffer
        larger = buffer.new_zeros(shape)
        larger[:, :, : buffer.shape[2]] = buffer
        return larger

    # -- inside --------------------------------------------------------------------------------------------------

    @staticmethod
    def _start(starts: tuple[int, ...], device: torch.device | None) -> int | Int[Tensor, " batch"]:
        return starts[0] if min(starts) == max(starts) else torch.tensor(starts, device=device)

    def _check(self, key: Tensor, value: Tensor) -> None:
        for name, new, held in (("key", key, self._key), ("value", value, self._value)):
            check_float_tensor(name, new, "[batch ≥ 1, kv_heads, length, dim]")
            if new.ndim != 4 or not new.shape[0]:
                raise ValueError(f"{name} has shape {tuple(new.shape)}; expected [batch ≥ 1, kv_heads, length, dim]")
            if held is None:
                continue
            for axis, what in ((0, "batch"), (1, "kv_heads"), (3, "width")):
                if new.shape[axis] != held.shape[axis]:
                    raise ValueError(
                        f"cache holds {name}s of {what} {held.shape[axis]}, but the new ones have {new.shape[axis]};"
                        " a cache serves one layer and one batch"
                    )
            if (new.dtype, new.device) != (held.dtype, held.device):
                raise ValueError(
                    f"cache holds {name}s in {held.dtype} on {held.device}, but the new ones are in {new.dtype}"
                    f" on {new.device}"
                )
        if (key.dtype, key.device) != (value.dtype, value.device):
            raise ValueError(
                f"value is in {value.dtype} on {value.device}, but key in {key.dtype} on {key.device}; expected the"
                " same dtype and device"
            )
        if key.shape[:3] != value.shape[:3]:
            raise ValueError(f"key has shape {tuple(key.shape)} and value {tuple(value.shape)}; they differ before dim")


def _write(buffer: Tensor, new: Tensor, starts: tuple[int, ...]) -> None:
    """`new` into `buffer` from `starts` on."""
    count = new.shape[2]
    if min(starts) == max(starts):
        buffer[:, :, starts[0] : starts[0] + count] = new
    else:
        places = query_positions(count, count, torch.tensor(starts), buffer.device)  # [batch, n]
        sequences = torch.arange(len(starts), device=buffer.device)[:, None]
        buffer[sequences, :, places] = new.transpose(1, 2)
