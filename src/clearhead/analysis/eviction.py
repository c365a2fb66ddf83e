"""Scores of cached keys, by which a KV cache evicts the least important ones."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import avg_pool1d, max_pool1d, pad

from clearhead._utils.checks import check_choice, check_int, describe
from clearhead.weights.matrix import AttentionWeights

Recipe = Literal["h2o", "snapkv"]
Pooling = Literal["max", "mean"]


def eviction_scores(
    weights: AttentionWeights,
    recipe: Recipe = "h2o",
    *,
    window: int = 32,
    kernel: int = 7,
    pooling: Pooling = "max",
) -> Float[Tensor, "batch kv_heads kv_len"]:
    """Return a score for each cached key; a cache keeps the keys with the largest scores.

    - "h2o" (Zhang et al., 2023): the attention that each key receives, summed over all queries. In decoding, add the
      scores of each step to those of the steps before.
    - "snapkv" (Li et al., 2024): the attention from the last `window` queries, summed over them, then pooled along the
      keys. The last `window` keys are always kept: their score is +inf, and they are not pooled with the other keys.

    Both are summed over the query heads that read a key head. "snapkv" requires that sequences end at the last query,
    so padding is on the left. For right padding, call it for each sequence.

    Args:
        weights: attention weights of the prompt.
        recipe: "h2o" or "snapkv".
        window: number of last queries and keys for "snapkv"; all if there are fewer.
        kernel: number of neighboring keys to pool for "snapkv", odd; 1 for no pooling.
        pooling: "max", or "mean" in which keys beyond the ends count as 0.

    Returns:
        Scores in float32, or float64 for float64 inputs.

    Examples:
        >>> from clearhead import Causal, attention
        >>> query, key = torch.randn(1, 8, 100, 64), torch.randn(1, 2, 100, 64)
        >>> _, weights = attention(query, key, key, mask=Causal(), return_weights=True)
        >>> eviction_scores(weights).shape
        torch.Size([1, 2, 100])
        >>> kept = eviction_scores(weights, "snapkv").topk(50).indices
        >>> set(range(68, 100)) <= set(kept[0, 0].tolist())
        True
    """
    if not isinstance(weights, AttentionWeights):
        raise TypeError(f"weights is {describe(weights)}; expected AttentionWeights")
    check_choice("recipe", recipe, ("h2o", "snapkv"))
    check_choice("pooling", pooling, ("max", "mean"))
    window, kernel = check_int("window", window), check_int("kernel", kernel)
    if kernel % 2 == 0:
        raise ValueError(f"kernel is {kernel}; expected an odd number, so that it has a key in the middle")
    if recipe == "h2o":
        return _per_key_head(weights, weights.received())
    _, _, q_len, kv_len = weights.shape
    window = min(window, q_len)
    received = weights.observe(queries=slice(q_len - window, q_len), received=True).received
    earlier = _per_key_head(weights, received)[..., : max(0, kv_len - window)]
    return pad(_pooled(earlier, kernel, pooling), (0, kv_len - earlier.shape[-1]), value=torch.inf)


def _per_key_head(
    weights: AttentionWeights, received: Float[Tensor, "batch heads kv_len"]
) -> Float[Tensor, "batch kv_heads kv_len"]:
    """Return sums over the query heads that read each key head."""
    return received.unflatten(1, (weights.key_heads, -1)).sum(dim=2)


def _pooled(
    scores: Float[Tensor, "batch kv_heads keys"], kernel: int, pooling: Pooling
) -> Float[Tensor, "batch kv_heads keys"]:
    if not scores.numel():  # torch does not pool empty tensors
        return scores
    pool = max_pool1d if pooling == "max" else avg_pool1d
    return pool(scores, kernel, stride=1, padding=kernel // 2)
