"""Decoding on preallocated buffers: every step runs the same kernels on the same addresses, as a CUDA graph requires.

The number of tokens read so far is a tensor on the device of the model. New keys are written at that index, and key
ranges hide the positions after it. Nothing in `StaticDecoder.step` reads a value of a tensor.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from jaxtyping import Int
from torch import Tensor

from clearhead.nn.attention import MultiHeadAttention
from clearhead.nn.kv_cache import KVCache, KVCacheView
from clearhead.ops.masks import LoweredMask, PrecomputedMask
from clearhead.translation._layers import DecoderLayer
from clearhead.translation._searches import BeamSearch, GreedySearch
from clearhead.translation.model import DecoderCaches, Memory, Transformer

MIN_SOURCE, MIN_TOKENS = 16, 64  # smaller sizes share the buffers, and so the graph, of these


class DecodingShape(NamedTuple):
    """Sizes of the buffers of a decoding."""

    batch: int
    beams: int  # 1 for greedy search
    source: int
    tokens: int

    @classmethod
    def fitting(cls, memory: Memory, beams: int, max_tokens: int) -> DecodingShape:
        """Return sizes that are powers of 2, so that few different ones occur.

        Args:
            memory: encoder output, one row per source.
            beams: number of beams.
            max_tokens: largest number of tokens of a translation.
        """
        batch, source, _ = memory.states.shape
        return cls(
            _next_power_of_2(batch),
            beams,
            _next_power_of_2(max(source, MIN_SOURCE)),
            _next_power_of_2(max(max_tokens, MIN_TOKENS)),
        )

    @property
    def rows(self) -> int:
        """Number of translations that are decoded at the same time."""
        return self.batch * self.beams

    def cache_bytes(self, model: Transformer) -> int:
        """Return the size of the KV caches."""
        per_token = sum(
            attention.kv_heads * (attention.key_dim + attention.value_dim) * positions
            for layer in _layers(model)
            for attention, positions in ((layer.attention, self.tokens), (layer.cross, self.source))
        )
        return self.rows * per_token * model.embedding.weight.element_size()


class StaticKVCache(KVCache):
    """KV cache of fixed size that takes one token per call, at an index that is a tensor.

    Args:
        key: buffer of keys, `[rows, kv_heads, capacity, key_dim]`.
        value: buffer of values.
        positions: number of tokens read so far, the same for all rows; the owner of the cache increments it.
        mask: hides the positions after the new token.
    """

    def __init__(self, key: Tensor, value: Tensor, positions: Int[Tensor, " rows"], mask: PrecomputedMask) -> None:
        super().__init__(key.shape[2], grow=False)
        self.key, self.value, self.mask, self._positions = key, value, mask, positions

    def positions(self, count: int, device: torch.device | None = None) -> Int[Tensor, "1 1"]:
        if count != 1:
            raise ValueError(f"count is {count}; expected 1, because a static cache takes one token at a time")
        return self._positions[None, :1]

    def update(self, key: Tensor, value: Tensor, *, immutable: bool = False) -> KVCacheView:
        if immutable:
            raise ValueError("a static cache overwrites its keys, so weights and gradients cannot refer to them")
        index = self._positions[:1]
        self.key.index_copy_(2, index, key)
        self.value.index_copy_(2, index, value)
        return KVCacheView(self.key, self.value, self._positions, self.mask, True, key, value)

    def commit(self, view: KVCacheView) -> None:
        """Do nothing: the owner increments the number of tokens once for all layers."""


class FixedKVCache(KVCache):
    """Keys and values of the source tokens, which later calls only read.

    Args:
        key: buffer of keys, `[rows, kv_heads, source, key_dim]`.
        value: buffer of values.
        mask: hides padding.
    """

    def __init__(self, key: Tensor, value: Tensor, mask: PrecomputedMask) -> None:
        super().__init__(key.shape[2], grow=False)
        self.key, self.value, self.mask = key, value, mask

    def __len__(self) -> int:
        return self.capacity

    def update(self, key: Tensor, value: Tensor, *, immutable: bool = False) -> KVCacheView:
        if key.shape[2]:
            raise ValueError(f"key has {key.shape[2]} tokens; expected 0, because the source does not change")
        return KVCacheView(self.key, self.value, self.capacity - 1, self.mask, True, key, value)

    def commit(self, view: KVCacheView) -> None:
        """Do nothing: nothing was added."""


class StaticDecoderCaches(DecoderCaches):
    """KV caches of the decoder in buffers of fixed size.

    Args:
        model: model to decode with. It is not referenced later.
        shape: sizes of the buffers.
    """

    self_attention: list[StaticKVCache]
    cross_attention: list[FixedKVCache]

    def __init__(self, model: Transformer, shape: DecodingShape) -> None:
        weight, rows = model.embedding.weight, shape.rows
        self._positions = torch.zeros(rows, dtype=torch.long, device=weight.device)
        # key ranges [ranges, 2, rows or 1, q_len]: the new token is allowed, and for each row the tokens of its source
        self._allowed = torch.zeros(1, 2, 1, 1, dtype=torch.int, device=weight.device)
        self._source_allowed = torch.zeros(1, 2, rows, 1, dtype=torch.int, device=weight.device)
        causal = PrecomputedMask(LoweredMask(self._allowed), "Causal()")
        padding = PrecomputedMask(LoweredMask(self._source_allowed), "Padding")
        self.self_attention = [
            StaticKVCache(*_buffers(layer.attention, rows, shape.tokens, weight), self._positions, causal)
            for layer in _layers(model)
        ]
        self.cross_attention = [
            FixedKVCache(*_buffers(layer.cross, rows, shape.source, weight), padding) for layer in _layers(model)
        ]
        # the model replaces its table when it needs a longer one; a graph reads this one
        self._position_encodings = model._sinusoids(shape.tokens)

    @property
    def next_position(self) -> Int[Tensor, " 1"]:
        return self._positions[:1]

    def load(self, model: Transformer, memory: Memory, beams: int) -> None:
        """Start again with other sources: clear the target tokens, and fill in the keys of the sources."""
        # beams first: in plain decoding too, the keys are projected for every row, and so have the same last digits
        states = memory.states.repeat_interleave(beams, dim=0)
        rows, source, _ = states.shape
        self._positions.zero_()
        self._allowed[0, 1] = 1
        self._source_allowed.zero_()
        lengths = source if memory.lengths is None else memory.lengths.clamp(max=source).repeat_interleave(beams)
        self._source_allowed[0, 1, :rows, 0] = lengths
        for cache in self.self_attention:
            cache.key.zero_()
            cache.value.zero_()
        for layer, cache in zip(_layers(model), self.cross_attention, strict=True):
            for buffer, new in zip((cache.key, cache.value), layer.cross_keys_and_values(states), strict=True):
                buffer.zero_()
                buffer[:rows, :, :source] = new

    def advance(self) -> None:
        """Count the token that the last step has read."""
        self._positions.add_(1)
        self._allowed[:, 1].add_(1)

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        for cache in self.self_attention:
            cache.key.copy_(cache.key.index_select(0, rows))
            cache.value.copy_(cache.value.index_select(0, rows))


class StaticDecoder:
    """Greedy search or beam search on preallocated buffers.

    Args:
        model: model to decode with. It is not referenced later; pass the same one to the methods.
        shape: sizes of the buffers.
    """

    def __init__(self, model: Transformer, shape: DecodingShape) -> None:
        weight = model.embedding.weight
        self.shape = shape
        self.caches = StaticDecoderCaches(model, shape)
        if shape.beams == 1:
            self.search = GreedySearch(shape.batch, shape.tokens, weight.device)
        else:
            self.search = BeamSearch(shape.batch, shape.beams, shape.tokens, weight.device)
        self._no_memory = Memory(weight.new_empty(shape.rows, 0, weight.shape[1]), None)  # the caches hold its keys

    def load(self, model: Transformer, memory: Memory, max_tokens: int, length_penalty: float) -> None:
        """Start again with other sources, which must fit the shape."""
        self.caches.load(model, memory, self.shape.beams)
        self.search.start(memory.states.shape[0], max_tokens, length_penalty)

    def step(self, model: Transformer) -> None:
        """Add a token to each translation. Call it at most `shape.tokens` times after `load`."""
        logits = model.decode(self.search.last, self._no_memory, caches=self.caches)[:, -1]
        rows = self.search.advance(logits)
        if rows is not None:
            self.caches.reorder(rows)
        self.caches.advance()


def _layers(model: Transformer) -> list[DecoderLayer]:
    return cast(list[DecoderLayer], list(model.decoder))


def _buffers(attention: MultiHeadAttention, rows: int, positions: int, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return buffers of keys and values. They are zero, because NaN at a hidden position times its weight 0 is NaN."""
    shape = (rows, attention.kv_heads, positions)
    return weight.new_zeros(*shape, attention.key_dim), weight.new_zeros(*shape, attention.value_dim)


def _next_power_of_2(value: int) -> int:
    return 1 << (value - 1).bit_length()
