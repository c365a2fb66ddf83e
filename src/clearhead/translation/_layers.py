"""Encoder and decoder layers of the Transformer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from clearhead.nn.attention import MultiHeadAttention
from clearhead.nn.head import split_heads
from clearhead.nn.kv_cache import KVCache
from clearhead.ops.masks import Causal, Mask
from clearhead.recording.recording import Address
from clearhead.translation.config import ModelConfig
from clearhead.weights.matrix import AttentionWeights

Attentions = dict[str, list[AttentionWeights]]  # weights of every layer, by stack: "encoder", "decoder", "cross"


@dataclass(frozen=True)
class AttentionRunner:
    """Runner of the attention modules of one layer: ablates heads and collects attention weights.

    Args:
        attentions: dictionary to add the weights to; None: weights are not returned.
        ablate: heads of the whole model to ablate.
        layer_index: index of the layer in its stack.
        keep_qk: make the weights hold query and key even if the scores are smaller.
    """

    attentions: Attentions | None
    ablate: Collection[Address]
    layer_index: int
    keep_qk: bool = False

    def run(
        self, stack: str, attention: MultiHeadAttention, x: Tensor, memory: Tensor | None = None, **options: object
    ) -> Tensor:
        """Call an attention module of a stack; return its output."""
        ablated_heads = [head for name, layer, head in self.ablate if (name, layer) == (stack, self.layer_index)]
        if ablated_heads:
            options["ablate"] = ablated_heads
        if self.attentions is None:
            return attention(x, memory, **options)
        output, weights = attention(x, memory, return_weights="keep_qk" if self.keep_qk else True, **options)
        self.attentions.setdefault(stack, []).append(weights)
        return output


class EncoderLayer(nn.Module):
    """Encoder layer (pre-norm): self-attention and feed-forward, each with a residual connection."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = _make_attention(config, rope=config.positions == "rope")
        self.feed_forward = FeedForward(config)
        self.attention_norm = nn.LayerNorm(config.d_model)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Mask | None, runner: AttentionRunner) -> Tensor:
        x = x + self.dropout(runner.run("encoder", self.attention, self.attention_norm(x), mask=mask))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class DecoderLayer(nn.Module):
    """Decoder layer (pre-norm): causal self-attention, cross-attention to the memory, and feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = _make_attention(config, rope=config.positions == "rope")
        self.cross = _make_attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm = nn.LayerNorm(config.d_model)
        self.cross_norm = nn.LayerNorm(config.d_model)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        memory_mask: Mask | None,
        self_cache: KVCache | None,
        cross_cache: KVCache | None,
        runner: AttentionRunner,
    ) -> Tensor:
        # the cache already holds the memory's keys after the first call: append nothing
        memory = memory if cross_cache is None or not len(cross_cache) else memory[:, :0]
        y = runner.run("decoder", self.attention, self.attention_norm(x), mask=Causal(), cache=self_cache)
        x = x + self.dropout(y)
        y = runner.run("cross", self.cross, self.cross_norm(x), memory, mask=memory_mask, cache=cross_cache)
        x = x + self.dropout(y)
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))

    def cross_keys_and_values(
        self, memory: Float[Tensor, "batch source d_model"]
    ) -> tuple[Float[Tensor, "batch heads source key_dim"], Float[Tensor, "batch heads source value_dim"]]:
        """Return what `forward` appends to an empty cache of the cross-attention."""
        key, value = self.cross.key(memory), self.cross.value(memory)
        return split_heads(key, self.cross.key_dim), split_heads(value, self.cross.value_dim)


class FeedForward(nn.Sequential):
    """Feed-forward network: two linear layers with a ReLU between them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(
            nn.Linear(config.d_model, config.feed_forward),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.feed_forward, config.d_model),
        )


def _make_attention(config: ModelConfig, rope: bool = False) -> MultiHeadAttention:
    """Return an attention module without attention dropout, which would slow fused kernels down."""
    return MultiHeadAttention(config.d_model, config.heads, rope=rope or None)
