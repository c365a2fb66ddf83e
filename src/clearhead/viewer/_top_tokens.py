"""Tokens that a token attends to most, or that attend most to it, in all heads of a stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.recording import Stack

AttentionDirection = Literal["from", "to"]
MAX_TOP_TOKENS = 5


@dataclass
class TopTokens:
    """Tokens with the largest weights, for each head and on average: (token index, weight), largest first."""

    heads: list[tuple[int, int, list[tuple[int, float]]]] = field(default_factory=list)  # layer, head, tokens
    everywhere: list[tuple[int, float]] = field(default_factory=list)  # mean over all heads


@torch.no_grad()
def top_tokens(
    stack: Stack,
    direction: AttentionDirection,
    token: int,
    hidden: Sequence[int] = (),
    shares: Sequence[Float[Tensor, "heads kv_len"]] | None = None,
) -> Iterator[TopTokens]:
    """Yield the top keys of a query ("from") or the top queries of a key ("to"), once per layer.

    Each result includes the previous layers. Hidden keys are left out of the top keys of a query.
    Weights are multiplied by the shares of the keys in each layer, if given.
    """
    top, total, count = TopTokens(), None, 0
    for layer, weights in enumerate(stack.layers):
        cells = weights[0, :, token] if direction == "from" else weights[0, :, :, token]  # [heads, tokens]
        if shares is not None:
            cells = cells * (shares[layer] if direction == "from" else shares[layer][:, token, None])
        cells = cells.cpu()
        if hidden and direction == "from":
            cells[:, list(hidden)] = 0
        top.heads += [(layer, head, _largest(head_cells)) for head, head_cells in enumerate(cells)]
        total = cells.double().sum(dim=0) if total is None else total + cells.double().sum(dim=0)
        count += len(cells)
        top.everywhere = _largest(total / count)
        yield top


def _largest(weights: Float[Tensor, " tokens"]) -> list[tuple[int, float]]:
    top = weights.topk(min(MAX_TOP_TOKENS, len(weights)))
    return [
        (index, weight) for index, weight in zip(top.indices.tolist(), top.values.tolist(), strict=True) if weight > 0
    ]
