"""Step-by-step calculation of one row: q, the top keys, products, scores, softmax, contributions and output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.weights.matrix import AttentionWeights

MAX_ROW_TERMS = 5  # listed keys, by weight


@dataclass(frozen=True)
class RowTerm:
    """Terms of one key in a row. Vectors and products are None if only scores were recorded."""

    key: int
    vector: list[float] | None
    product: float | None  # q · k
    scaled: float | None
    capped: float | None  # after softcap; equal to `scaled` without softcap
    score: float  # after bias and mask; −inf if masked
    weight: float
    contribution: list[float] | None  # weight · v; None without values
    projected_norm: float | None  # ‖weight · v W_O‖; None if W_O is unknown


@dataclass(frozen=True)
class RowCalculation:
    """Terms of the keys with the largest weights and of the selected key, and the totals of the row."""

    query: list[float] | None
    scale: float
    softcap: float | None
    lse: float
    terms: list[RowTerm]
    others: float  # total weight of the keys that are not listed
    output: list[float] | None  # Σ weight · v over all keys; None without values
    projected: list[float] | None  # output · W_O without bias: what the head adds to the residual stream, if known


@torch.no_grad()
def calculate_row(
    weights: AttentionWeights,
    query: int,
    key: int,
    *,
    value_norms: Float[Tensor, " kv_len"] | None = None,
    output_weight: Float[Tensor, "value_dim output_dim"] | None = None,
) -> RowCalculation:
    """Return the calculation of the row `query` of one head.

    Args:
        weights: attention of one head.
        query: index of the row.
        key: index of a key that is always listed.
        value_norms: ‖v W_O‖ of each key, if known.
        output_weight: rows of the head in the output projection W_O, if known.
    """
    row, scores = weights[0, 0, query], weights.scores[0, 0, query]
    value, softcap = weights.value, weights.softcap
    query_vector = None if weights.query is None else weights.query[0, 0, query].to(row.dtype)
    top = row.topk(min(MAX_ROW_TERMS, len(row)))
    keys = [index for index, weight in zip(top.indices.tolist(), top.values.tolist(), strict=True) if weight > 0]
    keys = keys if key in keys else [*keys, key]

    def term(index: int) -> RowTerm:
        key_vector = None if weights.key is None else weights.key[0, 0, index].to(row.dtype)
        product = None if query_vector is None or key_vector is None else query_vector @ key_vector
        scaled = None if product is None else product * weights.scale
        capped = scaled
        if scaled is not None and softcap is not None:
            capped = softcap * torch.tanh(scaled / softcap)
        contribution = None if value is None else (row[index] * value[0, 0, index].to(row.dtype)).tolist()
        return RowTerm(
            key=index,
            vector=None if key_vector is None else key_vector.tolist(),
            product=_as_float(product),
            scaled=_as_float(scaled),
            capped=_as_float(capped),
            score=float(scores[index]),
            weight=float(row[index]),
            contribution=contribution,
            projected_norm=None if value_norms is None else float(row[index] * value_norms[index]),
        )

    terms = [term(index) for index in keys]
    output = None if value is None else row @ value[0, 0].to(row.dtype)
    projected = None if output is None or output_weight is None else output @ output_weight.to(output)
    return RowCalculation(
        None if query_vector is None else query_vector.tolist(),
        weights.scale,
        softcap,
        float(weights.lse[0, 0, query]),
        terms,
        max(0.0, float(row.sum()) - sum(listed.weight for listed in terms)),
        None if output is None else output.tolist(),
        None if projected is None else projected.tolist(),
    )


def _as_float(value: Tensor | None) -> float | None:
    return None if value is None else float(value)
