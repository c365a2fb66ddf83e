"""Recordings of models that do not exist: every weight is known beforehand."""

from collections.abc import Sequence

import torch

from clearhead import attention
from clearhead.recording.recording import Recording, Stack, Tokens
from clearhead.weights.matrix import AttentionWeights

NOTHING = -800.0  # a score whose weight rounds to 0 even in float64, though its key may be seen


def weights_of(heads: torch.Tensor | Sequence, mask=None) -> AttentionWeights:
    """A lazy matrix with these weights `[heads, q_len, kv_len]`, up to a factor for each row."""
    wanted = torch.as_tensor(heads, dtype=torch.float64)
    scores = torch.where(wanted > 0, wanted.log(), NOTHING)[None]
    query, key = (torch.zeros(1, len(wanted), length, 1, dtype=torch.float64) for length in wanted.shape[1:])
    return attention(query, key, key, bias=scores, mask=mask, return_weights=True)[1]


def looking_at(keys: Sequence[int], kv_len: int | None = None) -> torch.Tensor:
    """A head whose query i attends to `keys[i]` alone."""
    return torch.nn.functional.one_hot(torch.tensor(keys), len(keys) if kv_len is None else kv_len).double()


def tokens(texts: Sequence[str], words: Sequence[int | None] | None = None) -> Tokens:
    """Texts in square brackets are special; the others are a word each unless told otherwise."""
    special = [text.startswith("[") for text in texts]
    if words is None:
        words = [None if is_special else index - sum(special[:index]) for index, is_special in enumerate(special)]
    return Tokens(tuple(texts), tuple(special), tuple(words))


def recording(*layers: AttentionWeights, texts: Tokens | None = None, name: str = "encoder") -> Recording:
    """Of one self-attention. Without texts, as many different words as there are tokens."""
    texts = texts or tokens([f"w{index}" for index in range(layers[0].shape[2])])
    return Recording("crafted", {name: Stack(layers, texts, texts)})
