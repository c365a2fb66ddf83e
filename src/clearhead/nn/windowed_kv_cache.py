"""`WindowedKVCache`: a ring of the last keys and values, for layers that attend to a sliding window."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from clearhead._utils.checks import check_int
from clearhead.nn.kv_cache import Held, KVCache
from clearhead.ops.masks import Mask, Padding, Window


class WindowedKVCache(KVCache):
    """Keeps the last `window` tokens of each sequence, in memory that does not grow.

    Used like `KVCache`. Each token attends to at most `window` positions, its own included: the same as one full pass
    with `mask & Window(before=window - 1)`, however the text is cut into chunks. Keys are handed over in the order of
    their positions and count from the oldest one handed over. Masks and biases that count them from the start of the
    text are refused once that is forgotten: all but `Causal`, `Window` and `ALiBi`.
    """

    def __init__(self, window: int) -> None:
        super().__init__(check_int("window", window), grow=False)

    @property
    def window(self) -> int:
        return self._capacity

    def _offer(self, key: Tensor, value: Tensor, starts: tuple[int, ...], lasting: bool) -> Held:
        count, device = key.shape[2], key.device
        self._key = self._writable(self._key, key)
        self._value = self._writable(self._value, value)
        before = tuple(min(start, self.window - 1) for start in starts)  # how many older keys the new tokens may see
        order = self._order(starts, before, count, device)
        held_key = _arranged(torch.cat([self._key, key], dim=2), order)
        held_value = _arranged(torch.cat([self._value, value], dim=2), order)
        mask: Mask | None = Window(before=self.window - 1) if count > 1 else None  # a single token sees all of them
        if order.shape[0] > 1:
            real = Padding([held + count for held in before])
            mask = real if mask is None else mask & real
        return Held(
            key=held_key,
            value=held_value,
            query_start=self._start(before, device),
            mask=mask,
            whole=starts == before,
            new_key=key,
            new_value=value,
        )

    def _order(
        self, starts: tuple[int, ...], before: tuple[int, ...], count: int, device: torch.device
    ) -> Int[Tensor, "batch kv_len"]:
        """Where in (ring, new keys) each key to be handed over stands; one row where all sequences are alike."""
        rows = 1 if min(starts) == max(starts) else len(starts)
        start, held = (torch.tensor(values[:rows], device=device)[:, None] for values in (starts, before))
        places = torch.arange(max(before) + count, device=device)
        new = torch.where(places < held + count, self.window + places - held, 0)  # what is left over is hidden
        return torch.where(places < held, (start - held + places) % self.window, new)

    def _store(self, held: Held) -> None:
        """Write the last `window` of the new tokens into the ring, over the oldest."""
        assert self._key is not None
        assert self._value is not None
        starts = self.lengths or (0,)
        uniform = min(starts) == max(starts)
        count = held.new_key.shape[2]
        kept = min(count, self.window)
        for number, start in enumerate(starts[:1] if uniform else starts):
            rows = slice(None) if uniform else slice(number, number + 1)
            slots = torch.arange(start + count - kept, start + count, device=held.new_key.device) % self.window
            self._key[rows].index_copy_(2, slots, held.new_key[rows, :, count - kept :])
            self._value[rows].index_copy_(2, slots, held.new_value[rows, :, count - kept :])

    def _forget(self, lengths: tuple[int, ...]) -> None:
        if lengths != self.lengths and len(self) > self.window:
            raise ValueError(
                f"lengths cuts sequences short of which a window of {self.window} has overwritten the older tokens;"
                " truncate before the longest is longer than the window"
            )


def _arranged(tensor: Tensor, order: Int[Tensor, "batch kv_len"]) -> Tensor:
    """Keys picked by their places: `[batch, kv_heads, kv_len, dim]`."""
    if order.shape[0] == 1:
        return tensor.index_select(2, order[0])
    return tensor.gather(2, order[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[3]))
