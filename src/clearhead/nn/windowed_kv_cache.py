"""`WindowedKVCache`: a ring buffer of the last keys and values, for sliding-window attention."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead._utils.checks import check_int
from clearhead.nn.kv_cache import KVCache, KVCacheView
from clearhead.ops.masks import Mask, Padding, Window


class WindowedKVCache(KVCache):
    """KV cache of constant size: a ring buffer of the last `window` tokens of each sequence.

    Used like `KVCache`. Each token attends to at most `window` positions, including its own. The result is that of one
    full pass with `mask & Window(before=window - 1)`, for any division of the text into chunks.

    Returned keys are ordered by position, and key 0 is the oldest that is returned. So once a token is evicted, masks
    and biases that count keys from the start of the text are rejected: all but `Causal`, `Window` and `ALiBi`.
    """

    def __init__(self, window: int) -> None:
        super().__init__(check_int("window", window), grow=False)

    @property
    def window(self) -> int:
        return self._capacity

    def _update(self, key: Tensor, value: Tensor, starts: tuple[int, ...], immutable: bool) -> KVCacheView:
        count, device = key.shape[2], key.device
        self._key = self._writable(self._key, key)
        self._value = self._writable(self._value, value)
        before = tuple(min(start, self.window - 1) for start in starts)  # number of older keys in reach of new tokens
        order = self._order(starts, before, count, device)
        mask: Mask | None = Window(before=self.window - 1) if count > 1 else None  # one token attends to all of them
        if order.shape[0] > 1:
            padding = Padding([older + count for older in before])
            mask = padding if mask is None else mask & padding
        return KVCacheView(
            key=_select_keys(torch.cat([self._key, key], dim=2), order),
            value=_select_keys(torch.cat([self._value, value], dim=2), order),
            query_start=self._start(before, device),
            mask=mask,
            complete=starts == before,
            new_key=key,
            new_value=value,
        )

    def _order(
        self, starts: tuple[int, ...], before: tuple[int, ...], count: int, device: torch.device
    ) -> Int[Tensor, "rows kv_len"]:
        """Return the index of each returned key in the concatenation of ring and new keys; one row if all are equal."""
        rows = 1 if min(starts) == max(starts) else len(starts)
        start, older = (torch.tensor(values[:rows], device=device)[:, None] for values in (starts, before))
        keys = torch.arange(max(before) + count, device=device)
        new = torch.where(keys < older + count, self.window + keys - older, 0)  # index 0 is padding, which is masked
        return torch.where(keys < older, (start - older + keys) % self.window, new)

    def _store(self, view: KVCacheView) -> None:
        """Overwrite the oldest tokens of the ring with the last `window` new tokens."""
        assert self._key is not None
        assert self._value is not None
        starts = self.lengths or (0,)
        uniform = min(starts) == max(starts)
        count = view.new_key.shape[2]
        stored = min(count, self.window)
        for index, start in enumerate(starts[:1] if uniform else starts):
            sequences = slice(None) if uniform else slice(index, index + 1)
            slots = torch.arange(start + count - stored, start + count, device=view.new_key.device) % self.window
            self._key[sequences].index_copy_(2, slots, view.new_key[sequences, :, count - stored :])
            self._value[sequences].index_copy_(2, slots, view.new_value[sequences, :, count - stored :])

    def _clear(self, lengths: tuple[int, ...]) -> None:
        if lengths != self.lengths and len(self) > self.window:
            raise ValueError(
                f"lengths removes tokens, but the window of {self.window} has overwritten older ones;"
                " call truncate before a sequence exceeds the window"
            )


def _select_keys(tensor: Tensor, order: Int[Tensor, "rows kv_len"]) -> Float[Tensor, "batch kv_heads kv_len dim"]:
    """Gather keys or values by their indices; a single row of indices applies to all sequences."""
    if order.shape[0] == 1:
        return tensor.index_select(2, order[0])
    return tensor.gather(2, order[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[3]))
