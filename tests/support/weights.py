"""Lazy matrices for tests."""

import torch

from clearhead import AttentionWeights, Causal, attention
from clearhead.ops.arguments import build_call
from support.numerics import Case


def both_forms(case: Case, backend: str = "auto") -> list[AttentionWeights]:
    """Return the matrix in both forms: held as queries and keys, and held as scores."""
    _, weights = attention(**case.arguments, return_weights=True, backend=backend)
    call = build_call(**case.arguments)
    factors = AttentionWeights(call, weights.lse)
    scores = AttentionWeights(call.with_scores(factors.scores[...]), weights.lse)
    return [factors, scores]


def sample(q_len: int = 13, kv_len: int = 17, mask=Causal(), **options):  # noqa: B008, masks are immutable
    query = torch.randn(2, 6, q_len, 4, **options)
    key, value = (torch.randn(2, 3, kv_len, 4, **options) for _ in range(2))
    output, weights = attention(query, key, value, mask=mask, return_weights=True)
    return query, key, value, output, weights
