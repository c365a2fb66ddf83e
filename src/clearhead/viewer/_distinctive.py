"""Heads and cells of long texts to show first, from a sample of queries."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.recording import Stack, is_self_attention
from clearhead.weights.matrix import AttentionWeights

SAMPLED_QUERIES = 16
NEAR_TOKENS = 4  # distance of the keys that belong to the neighborhood of a query


def distinctive_head(name: str, stack: Stack, hidden: Sequence[int]) -> tuple[int, int]:
    """Return the layer and the head with the largest distinctive weights, as a mean over sampled queries.

    Args:
        name: name of the stack, such as "decoder".
        stack: the stack.
        hidden: indices of the sink keys.
    """
    queries = _sampled_queries(stack)
    plain = _plain_keys(name, stack, queries, hidden, stack.layers[0].device)
    scores: dict[tuple[int, int], float] = {}
    for layer, weights in enumerate(stack.layers):
        heads = _distinctive_weights(weights, queries, plain).amax(dim=-1).mean(dim=-1).tolist()
        scores |= {(layer, head): score for head, score in enumerate(heads)}
    return max(scores, key=scores.__getitem__)


def distinctive_cell(name: str, stack: Stack, weights: AttentionWeights, hidden: Sequence[int]) -> tuple[int, int]:
    """Return the query and the key of one head's largest distinctive weight, among sampled queries."""
    queries = _sampled_queries(stack)
    plain = _plain_keys(name, stack, queries, hidden, weights.device)
    cells = _distinctive_weights(weights, queries, plain)[0]
    row, key = divmod(int(cells.argmax()), cells.shape[1])
    return queries[row], key


def _sampled_queries(stack: Stack) -> list[int]:
    """Return evenly spaced queries of the second half of the text, where causal heads have many keys."""
    indices = range(len(stack.queries) // 2, len(stack.queries))
    ordinary = [index for index in indices if not stack.queries.special[index]] or list(indices)
    count = min(SAMPLED_QUERIES, len(ordinary))
    return [ordinary[len(ordinary) * index // count] for index in range(count)]


def _plain_keys(
    name: str, stack: Stack, queries: list[int], hidden: Sequence[int], device: torch.device
) -> Bool[Tensor, "queries kv_len"]:
    """Return the keys that say little about the text: sinks and, in self-attention, tokens near the query."""
    keys = torch.arange(len(stack.keys), device=device)
    plain = torch.zeros(len(queries), len(keys), dtype=torch.bool, device=device)
    plain[:, list(hidden)] = True
    if is_self_attention(name, stack):
        plain |= (keys - torch.tensor(queries, device=device)[:, None]).abs() <= NEAR_TOKENS
    return plain


@torch.no_grad()
def _distinctive_weights(
    weights: AttentionWeights, queries: list[int], plain: Bool[Tensor, "queries kv_len"]
) -> Float[Tensor, "heads queries kv_len"]:
    """Return the weights of some queries: 0 for plain keys, for others the difference to the mean over the queries.

    A key with a large mean is a sink, even if it is not the first token.
    """
    cells = weights[0, :, queries].float()
    return (cells - cells.mean(dim=1, keepdim=True)).masked_fill(plain, 0.0)
