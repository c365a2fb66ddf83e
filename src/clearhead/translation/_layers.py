"""Layers of the Transformer, and how their attention modules are called."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch import Tensor, nn

from clearhead.nn.attention import MultiHeadAttention
from clearhead.nn.kv_cache import KVCache
from clearhead.ops.masks import Causal, Mask
from clearhead.recording.recording import Address
from clearhead.translation.config import ModelConfig
from clearhead.weights.matrix import AttentionWeights

Attentions = dict[str, list[AttentionWeights]]  # "encoder", "decoder" and "cross": the layers' matrices


@dataclass(frozen=True)
class AttentionRunner:
    """Runs the attention modules of one layer: leaves out the ablated heads, and collects the attention matrices.

    Args:
        attentions: the dictionary that the matrices are added to; None: they are not computed.
        ablate: heads of the whole model that are left out.
        layer_index: the index of the layer in its stack.
        keep_qk: matrices hold query and key also where the scores are fewer numbers.
    """

    attentions: Attentions | None
    ablate: Collection[Address]
    layer_index: int
    keep_qk: bool = False

    def run(
        self, stack: str, attention: MultiHeadAttention, x: Tensor, memory: Tensor | None = None, **options: object
    ) -> Tensor:
        """Return the output of an attention module of this stack."""
        ablated_heads = [head for name, layer, head in self.ablate if (name, layer) == (stack, self.layer_index)]
        if ablated_heads:
            options["ablate"] = ablated_heads
        if self.attentions is None:
            return attention(x, memory, **options)
        output, weights = attention(x, memory, return_weights="keep_qk" if self.keep_qk else True, **options)
        self.attentions.setdefault(stack, []).append(weights)
        return output


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each normalized before and added to its input."""

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
    """Causal self-attention, attention to the memory, and feed-forward."""

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
        # a cache takes the memory's keys once
        memory = memory if cross_cache is None or not len(cross_cache) else memory[:, :0]
        y = runner.run("decoder", self.attention, self.attention_norm(x), mask=Causal(), cache=self_cache)
        x = x + self.dropout(y)
        y = runner.run("cross", self.cross, self.cross_norm(x), memory, mask=memory_mask, cache=cross_cache)
        x = x + self.dropout(y)
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class FeedForward(nn.Sequential):
    """Two linear layers with a ReLU between them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(
            nn.Linear(config.d_model, config.feed_forward),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.feed_forward, config.d_model),
        )


def _make_attention(config: ModelConfig, rope: bool = False) -> MultiHeadAttention:
    """Return an attention module without dropout: fused kernels are fastest so, and its output has dropout anyway."""
    return MultiHeadAttention(config.d_model, config.heads, rope=rope or None)
