"""Encoder–decoder Transformer, built on `MultiHeadAttention`."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead._utils.checks import check_int, describe
from clearhead._utils.tensor_checks import check_dense_tensor, reject_inference_tensor
from clearhead.nn import KVCache, sinusoidal
from clearhead.ops.arguments import check_return_weights
from clearhead.ops.masks import Padding
from clearhead.recording.recording import Address
from clearhead.translation._layers import AttentionRunner, Attentions, DecoderLayer, EncoderLayer
from clearhead.translation.config import ModelConfig


@dataclass(frozen=True, eq=False)
class Memory:
    """Encoder output: the states of the source tokens, and the padding mask."""

    states: Float[Tensor, "batch source d_model"]
    mask: Padding | None

    @property
    def lengths(self) -> Int[Tensor, " batch"] | None:
        """Numbers of source tokens without padding; None if there is no padding."""
        return None if self.mask is None else self.mask.lengths

    def select(self, sequences: Int[Tensor, " chosen"]) -> Memory:
        """Return the sequences with these indices, in this order; an index may be repeated."""
        lengths = self.lengths
        mask = None if lengths is None else Padding(lengths.index_select(0, sequences.to(lengths.device)))
        return Memory(self.states.index_select(0, sequences), mask)


class DecoderCaches:
    """KV caches of the decoder: one per layer for self-attention, and one for cross-attention."""

    def __init__(self, layers: int, capacity: int = 64) -> None:
        self.self_attention = [KVCache(capacity) for _ in range(layers)]
        self.cross_attention = [KVCache(capacity) for _ in range(layers)]

    def __len__(self) -> int:
        """Return the number of cached target tokens."""
        return len(self.self_attention[0])

    @property
    def next_position(self) -> int | Int[Tensor, " 1"]:
        """Position of the next target token: a number, or a tensor on the device of the model."""
        return len(self)

    def select(self, sequences: Sequence[int]) -> None:
        """Keep the sequences with these indices, in this order; an index may be repeated."""
        for cache in (*self.self_attention, *self.cross_attention):
            cache.select(sequences)

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Make each sequence continue another one of the same source, as beams do; they share the source's keys."""
        sequences = rows.tolist()
        for cache in self.self_attention:
            cache.select(sequences)


class Transformer(nn.Module):
    """Encoder–decoder Transformer that predicts the next target token, given the source.

    Layers are pre-norm. Source embedding, target embedding and output projection share one matrix.

    Args:
        config: sizes of the model.
        vocabulary: number of tokens, including special tokens.
    """

    def __init__(self, config: ModelConfig, vocabulary: int) -> None:
        super().__init__()
        if not isinstance(config, ModelConfig):
            raise TypeError(f"config is {describe(config)}; expected a ModelConfig, such as Config().model")
        vocabulary = check_int("vocabulary", vocabulary)
        self.config = config
        self.embedding = nn.Embedding(vocabulary, config.d_model)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.encoder_norm = nn.LayerNorm(config.d_model)
        self.decoder_norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        # `_embed` multiplies by √d_model, so that the components of an embedding have a standard deviation of 1
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        # not a buffer: its length differs between processes, and DistributedDataParallel broadcasts buffers
        self._sinusoid_table = torch.empty(0, config.d_model)

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target: Int[Tensor, "batch target"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        ablate: Collection[Address] = (),
        return_weights: bool | Literal["keep_qk"] = False,
    ) -> Float[Tensor, "batch target vocabulary"] | tuple[Tensor, Attentions]:
        """Return the logits of the token that follows each target token.

        Args:
            source: token ids, padded on the right.
            target: token ids that start with the start token. Padding on the right needs no mask.
            lengths: numbers of source tokens without padding (default: no padding).
            ablate: heads to leave out, as (stack, layer, head).
            return_weights: also return the attention weights: lists of layers for "encoder", "decoder" and "cross".
                "keep_qk" makes them hold query and key.
        """
        return_weights = check_return_weights(return_weights)
        attentions: Attentions | None = {} if return_weights else None
        keep_qk = return_weights == "keep_qk"
        _check_tokens("source", source)
        _check_tokens("target", target)
        if source.shape[0] != target.shape[0]:
            raise ValueError(f"target has batch {target.shape[0]}, but source has {source.shape[0]}; expected the same")
        memory = self.encode(source, lengths, ablate=ablate, attentions=attentions, keep_qk=keep_qk)
        logits = self.decode(target, memory, ablate=ablate, attentions=attentions, keep_qk=keep_qk)
        return logits if attentions is None else (logits, attentions)

    def encode(
        self,
        source: Int[Tensor, "batch source"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        ablate: Collection[Address] = (),
        attentions: Attentions | None = None,
        keep_qk: bool = False,
    ) -> Memory:
        """Return the encoder output. The attention weights of each layer are added to `attentions`, if passed."""
        self._check_ablate(ablate)
        mask = None if lengths is None else Padding(lengths)
        x = self._embed(source, 0, "source")
        for layer_index, layer in enumerate(self.encoder):
            x = layer(x, mask, AttentionRunner(attentions, ablate, layer_index, keep_qk))
        return Memory(self.encoder_norm(x), mask)

    def decode(
        self,
        target: Int[Tensor, "batch target"],
        memory: Memory,
        *,
        caches: DecoderCaches | None = None,
        ablate: Collection[Address] = (),
        attentions: Attentions | None = None,
        keep_qk: bool = False,
    ) -> Float[Tensor, "batch target vocabulary"]:
        """Return the logits after each target token. With caches, `target` contains only the new tokens."""
        self._check_ablate(ablate)
        x = self._embed(target, 0 if caches is None else caches.next_position, "target")
        for layer_index, layer in enumerate(self.decoder):
            self_cache = None if caches is None else caches.self_attention[layer_index]
            cross_cache = None if caches is None else caches.cross_attention[layer_index]
            runner = AttentionRunner(attentions, ablate, layer_index, keep_qk)
            x = layer(x, memory.states, memory.mask, self_cache, cross_cache, runner)
        return self.decoder_norm(x) @ self.embedding.weight.T

    def caches(self) -> DecoderCaches:
        """Return empty caches for `decode`."""
        return DecoderCaches(len(self.decoder))

    def _check_ablate(self, ablate: Collection[Address]) -> None:
        """Raise if a layer does not exist: it would be ignored silently. `MultiHeadAttention` checks the heads."""
        layer_counts = {"encoder": len(self.encoder), "decoder": len(self.decoder), "cross": len(self.decoder)}
        if not isinstance(ablate, Collection) or isinstance(ablate, str | bytes | dict | Tensor):
            raise TypeError(f"ablate is {describe(ablate)}; expected (stack, layer, head) triples")
        for address in ablate:
            triple = isinstance(address, tuple | list) and len(address) == 3
            if not triple or not isinstance(address[0], str) or not isinstance(address[1], int):
                raise TypeError(f"ablate contains {describe(address)}; expected (stack, layer, head)")
            stack, layer, head = address
            if not 0 <= layer < layer_counts.get(stack, 0):
                counts = ", ".join(f"{name} {count}" for name, count in layer_counts.items())
                raise ValueError(f"ablate contains {(stack, layer, head)}, but the model has these layers: {counts}")

    def _embed(
        self, tokens: Int[Tensor, "batch n"], start: int | Int[Tensor, " 1"], name: str = "tokens"
    ) -> Float[Tensor, "batch n d_model"]:
        _check_tokens(name, tokens)
        weight = self.embedding.weight
        if tokens.device != weight.device:
            raise ValueError(f"{name} is on {tokens.device}, but the model is on {weight.device}; expected the same")
        if weight.requires_grad:
            reject_inference_tensor(name, tokens)
        try:
            x = self.embedding(tokens) * math.sqrt(self.config.d_model)
        except IndexError:  # raised on the CPU only: checking on a GPU would require a sync
            expected = f"expected tokens from 0 to {weight.shape[0] - 1}"
            raise IndexError(
                f"{name} contains tokens from {int(tokens.min())} to {int(tokens.max())}; {expected}"
            ) from None
        if self.config.positions == "sinusoidal":
            if isinstance(start, Tensor):  # of one token: static caches have made sure that the table is long enough
                encodings = self._sinusoid_table.index_select(0, start)
            else:
                encodings = self._sinusoids(start + tokens.shape[1])[start:]
            x = x + encodings.to(x.dtype)
        return self.dropout(x)

    def _sinusoids(self, length: int) -> Float[Tensor, "length d_model"]:
        """Return the encodings of the first positions: part of a table, which is replaced when it is too short."""
        device = self.embedding.weight.device
        if self._sinusoid_table.shape[0] < length or self._sinusoid_table.device != device:
            self._sinusoid_table = sinusoidal(max(2 * length, 256), self.config.d_model).to(device)
        return self._sinusoid_table[:length]


def _check_tokens(name: str, tokens: object) -> None:
    tokens = check_dense_tensor(name, tokens, "an int64 or int32 tensor [batch, length]")
    if tokens.ndim != 2 or tokens.dtype not in (torch.int64, torch.int32):
        actual = f"has shape {tuple(tokens.shape)} in {tokens.dtype}"
        raise ValueError(f"{name} {actual}; expected an int64 or int32 tensor [batch, length]")
