"""`KVCache`: keys and values of earlier tokens, for decoding."""

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
class KVCacheView:
    """Cached and new keys and values, as `attention()` takes them."""

    key: Float[Tensor, "batch kv_heads kv_len key_dim"]
    value: Float[Tensor, "batch kv_heads kv_len value_dim"]
    query_start: int | Int[Tensor, " batch"]  # position of the first new token among the keys
    mask: Mask | None  # masks the padding of shorter sequences
    complete: bool  # no key was evicted, so key 0 is the first token of the text
    new_key: Float[Tensor, "batch kv_heads n key_dim"]
    new_value: Float[Tensor, "batch kv_heads n value_dim"]


class KVCache:
    """Preallocated keys and values of earlier tokens. Each layer needs one cache.

        cache = KVCache(capacity=1024)
        layer(prompt, mask=Causal(), cache=cache)     # prefill: [batch, n, d_model], at once or in chunks
        layer(token, mask=Causal(), cache=cache)      # decoding: [batch, 1, d_model], as in one full pass

    Pass `mask=Causal()` explicitly, as without a cache; otherwise tokens within a chunk attend to later ones.

    Args:
        capacity: number of positions allocated at first use.
        grow: whether a full cache doubles its capacity. If not, it raises an error.

    Sequences may have different lengths: pad prompts on the right, run the layer, then call `truncate(lengths)`. The
    next tokens then follow the last token of each sequence. Only `kv_heads` heads are stored. Decode under
    `torch.no_grad()`: while gradients of keys or values are recorded, every call copies the cache.
    """

    def __init__(self, capacity: int = 256, *, grow: bool = True) -> None:
        self._capacity = check_int("capacity", capacity)
        self._grow = check_bool("grow", grow)
        self._lengths: tuple[int, ...] = ()
        self._key: Tensor | None = None
        self._value: Tensor | None = None
        # positions before this index are referenced by weights or gradients; never overwrite them
        self._frozen = 0

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of cached tokens of each sequence; empty before the first call."""
        return self._lengths

    def __len__(self) -> int:
        """Return the length of the longest sequence."""
        return max(self._lengths, default=0)

    @property
    def window(self) -> int | None:
        """Number of positions a token may attend to; None if nothing is evicted."""
        return None

    @property
    def capacity(self) -> int:
        """Number of positions allocated, or to be allocated at first use."""
        return self._capacity

    def __repr__(self) -> str:
        content = "empty" if self._key is None else f"batch {len(self._lengths)}, lengths {list(self._lengths)}"
        return f"{type(self).__name__}({content}, capacity {self._capacity})"

    def positions(self, count: int, device: torch.device | None = None) -> Int[Tensor, "batch count"]:
        """Return the positions of the next `count` tokens of each sequence; one row if all have the same length."""
        count = check_int("count", count, least=0)
        device = device if isinstance(device, torch.device) else check_device("device", device)
        return query_positions(count, count, self._start(self._lengths or (0,), device), device)

    def update(
        self,
        key: Float[Tensor, "batch kv_heads n key_dim"],
        value: Float[Tensor, "batch kv_heads n value_dim"],
        *,
        immutable: bool = False,
    ) -> KVCacheView:
        """Return cached and new keys and values. The new tokens are committed only by `commit()`.

        With `immutable`, later calls never overwrite the view, as attention weights and gradients require.
        """
        if not self._lengths:  # a failed call may have left buffers of another shape
            self._key = self._value = None
        self._check(key, value)
        immutable = check_bool("immutable", immutable)
        return self._update(key, value, self._lengths or (0,) * key.shape[0], immutable)

    def commit(self, view: KVCacheView) -> None:
        """Commit the tokens of `view`, the result of the last `update()`.

        Call it after the forward pass has succeeded.
        """
        if not isinstance(view, KVCacheView):
            raise TypeError(f"view is {describe(view)}; expected the result of update()")
        self._store(view)
        batch, _, count, _ = view.new_key.shape
        self._lengths = tuple(length + count for length in self._lengths or (0,) * batch)

    def append(self, key: Tensor, value: Tensor, *, immutable: bool = False) -> KVCacheView:
        """Call `update` and `commit`, and return the view."""
        view = self.update(key, value, immutable=immutable)
        self.commit(view)
        return view

    def truncate(self, lengths: int | Sequence[int] | Tensor | np.ndarray) -> None:
        """Keep only the first `lengths[b]` tokens of sequence b, to drop padding or rejected speculative tokens."""
        if not self._lengths:
            raise ValueError("the cache is empty; there is nothing to truncate")
        requested = list_items("lengths", lengths)
        if len(requested) == 1 and not hasattr(lengths, "__len__"):
            requested = requested * len(self._lengths)
        if len(requested) != len(self._lengths):
            entries = f"lengths has {len(requested)} entries"
            raise ValueError(f"{entries}, but the cache holds {len(self._lengths)} sequences")
        shortened = tuple(check_int("lengths", length, least=0) for length in requested)
        for length, cached in zip(shortened, self._lengths, strict=True):
            if length > cached:
                raise ValueError(f"lengths contains {length}; expected at most {cached}, the length of that sequence")
        self._clear(shortened)
        self._lengths = shortened

    def select(self, sequences: Sequence[int] | Int[Tensor, " chosen"]) -> None:
        """Keep these sequences, in this order. An index may occur several times, as in beam search."""
        if not self._lengths:
            raise ValueError("the cache is empty; there are no sequences to select")
        indices = list_items("sequences", sequences)
        if not indices:
            raise ValueError("sequences is empty; expected at least one index of a sequence to keep")
        for index in indices:
            if check_int("sequences", index, least=0) >= len(self._lengths):
                expected = f"expected an index from 0 to {len(self._lengths) - 1}"
                raise ValueError(f"sequences contains {index}; {expected}")
        assert self._key is not None
        assert self._value is not None
        selected = torch.tensor(indices, device=self._key.device)
        self._key, self._value = self._key.index_select(0, selected), self._value.index_select(0, selected)
        self._lengths = tuple(self._lengths[index] for index in indices)
        self._frozen = 0

    # -- storage, overridden by subclasses -----------------------------------------------------------------------

    def _update(self, key: Tensor, value: Tensor, starts: tuple[int, ...], immutable: bool) -> KVCacheView:
        """Write new keys and values at `starts`, after the committed tokens, and return a view of all tokens."""
        end = max(starts) + key.shape[2]
        if end > self._capacity:
            self._make_room(end, key.shape[2])
        self._key = self._writable(self._key, key, min(starts))
        self._value = self._writable(self._value, value, min(starts))
        if min(starts) < self._frozen:
            self._frozen = 0
        _write(self._key, key, starts)
        _write(self._value, value, starts)
        uniform = min(starts) == max(starts)
        if immutable and uniform:
            self._frozen = end

        def viewed(buffer: Tensor) -> Tensor:
            view = buffer[:, :, :end]
            if not immutable or buffer.requires_grad:
                return view
            # .data has its own version counter, so later writes beyond the view do not count as changes of it
            return view.data if uniform else view.clone()

        return KVCacheView(
            key=viewed(self._key),
            value=viewed(self._value),
            query_start=self._start(starts, key.device),
            mask=None if uniform else Padding([start + key.shape[2] for start in starts]),
            complete=True,
            new_key=key,
            new_value=value,
        )

    def _store(self, view: KVCacheView) -> None:
        """Store the new tokens of a view. Does nothing here, because `_update` has written them already."""

    def _clear(self, lengths: tuple[int, ...]) -> None:
        """Zero the tokens beyond `lengths`. They stay as masked keys, and NaN · 0 is NaN."""
        assert self._key is not None
        assert self._value is not None
        first = min(lengths)
        self._key = self._writable(self._key, self._key, first)
        self._value = self._writable(self._value, self._value, first)
        if first < self._frozen:
            self._frozen = 0
        spans = list(zip(lengths, self._lengths, strict=True))
        uniform = len(set(spans)) == 1
        for index, (start, end) in enumerate(spans[:1] if uniform else spans):
            sequences = slice(None) if uniform else index
            self._key[sequences, ..., start:end, :].zero_()
            self._value[sequences, ..., start:end, :].zero_()

    def _make_room(self, needed: int, new: int) -> None:
        if not self._grow:
            raise ValueError(
                f"cache is full: {len(self)} of {self._capacity} positions are used, and {new} more do not fit;"
                " increase capacity, or pass grow=True"
            )
        self._capacity = max(needed, 2 * self._capacity)

    def _writable(self, buffer: Tensor | None, new: Tensor, first: int = 0) -> Tensor:
        """Return a buffer of `capacity` positions, or a copy of it if positions from `first` on must not change."""
        shape = (*new.shape[:2], self._capacity, new.shape[3])
        if buffer is None:
            return new.new_zeros(shape)
        recording = torch.is_grad_enabled() and new.requires_grad
        inference = (
            not torch.compiler.is_compiling() and buffer.is_inference() and not torch.is_inference_mode_enabled()
        )
        if buffer.shape == shape and not (recording or buffer.requires_grad or inference or first < self._frozen):
            return buffer
        larger = buffer.new_zeros(shape)
        larger[:, :, : buffer.shape[2]] = buffer
        return larger

    @staticmethod
    def _start(starts: tuple[int, ...], device: torch.device | None) -> int | Int[Tensor, " batch"]:
        return starts[0] if min(starts) == max(starts) else torch.tensor(starts, device=device)

    def _check(self, key: Tensor, value: Tensor) -> None:
        for name, new, cached in (("key", key, self._key), ("value", value, self._value)):
            check_float_tensor(name, new, "[batch ≥ 1, kv_heads, length, dim]")
            if new.ndim != 4 or not new.shape[0]:
                raise ValueError(f"{name} has shape {tuple(new.shape)}; expected [batch ≥ 1, kv_heads, length, dim]")
            if cached is None:
                continue
            for axis, axis_name in ((0, "batch"), (1, "kv_heads"), (3, "width")):
                if new.shape[axis] != cached.shape[axis]:
                    raise ValueError(
                        f"cache holds {name}s of {axis_name} {cached.shape[axis]}, but the new {name}s have"
                        f" {new.shape[axis]}; use one cache per layer and batch"
                    )
            if (new.dtype, new.device) != (cached.dtype, cached.device):
                raise ValueError(
                    f"cache holds {name}s in {cached.dtype} on {cached.device}, but the new {name}s are in {new.dtype}"
                    f" on {new.device}; expected the same"
                )
        if (key.dtype, key.device) != (value.dtype, value.device):
            raise ValueError(
                f"value is in {value.dtype} on {value.device}, but key is in {key.dtype} on {key.device}; expected"
                " the same dtype and device"
            )
        if key.shape[:3] != value.shape[:3]:
            shapes = f"key has shape {tuple(key.shape)} and value {tuple(value.shape)}"
            raise ValueError(f"{shapes}; expected the same batch, kv_heads and length")


def _write(buffer: Tensor, new: Tensor, starts: tuple[int, ...]) -> None:
    """Write `new` into `buffer`, at the position `starts[b]` of sequence b."""
    count = new.shape[2]
    if min(starts) == max(starts):
        buffer[:, :, starts[0] : starts[0] + count] = new
    else:
        positions = query_positions(count, count, torch.tensor(starts), buffer.device)  # [batch, n]
        sequences = torch.arange(len(starts), device=buffer.device)[:, None]
        buffer[sequences, :, positions] = new.transpose(1, 2)
