"""Recordings with prescribed attention weights, without a model."""

from collections.abc import Sequence

import torch

from clearhead import attention
from clearhead.recording.recording import Recording, Stack, Tokens
from clearhead.weights.matrix import AttentionWeights

NOTHING = -800.0  # a score whose weight underflows to 0 even in float64, without a mask


def weights_of(heads: torch.Tensor | Sequence, mask=None) -> AttentionWeights:
    """Return a lazy matrix with these weights `[heads, q_len, kv_len]`, with each row normalized."""
    weights = torch.as_tensor(heads, dtype=torch.float64)
    scores = torch.where(weights > 0, weights.log(), NOTHING)[None]
    query, key = (torch.zeros(1, len(weights), length, 1, dtype=torch.float64) for length in weights.shape[1:])
    return attention(query, key, key, bias=scores, mask=mask, return_weights=True)[1]


def looking_at(keys: Sequence[int], kv_len: int | None = None) -> torch.Tensor:
    """Return the weights of a head whose query i attends to `keys[i]` only."""
    return torch.nn.functional.one_hot(torch.tensor(keys), len(keys) if kv_len is None else kv_len).double()


def tokens(texts: Sequence[str], words: Sequence[int | None] | None = None) -> Tokens:
    """Return tokens. Texts in square brackets are special; by default, each other text is one word."""
    special = [text.startswith("[") for text in texts]
    if words is None:
        words = [None if is_special else index - sum(special[:index]) for index, is_special in enumerate(special)]
    return Tokens(tuple(texts), tuple(special), tuple(words))


def recording(*layers: AttentionWeights, texts: Tokens | None = None, name: str = "encoder") -> Recording:
    """Return a recording of one self-attention stack. By default, all tokens are different words."""
    texts = texts or tokens([f"w{index}" for index in range(layers[0].shape[2])])
    return Recording("crafted", {name: Stack(layers, texts, texts)})
