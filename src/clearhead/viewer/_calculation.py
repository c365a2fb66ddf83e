"""One query of one head worked out in numbers: q, the k of the keys it attends to most, products, scores, softmax."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.weights.matrix import AttentionWeights

TOP = 5


@dataclass(frozen=True)
class Term:
    """One key's part. Vectors and products are None where only scores were kept."""

    key: int
    vector: list[float] | None
    product: float | None  # q · k
    scaled: float | None
    capped: float | None  # after softcap; as scaled where there is none
    score: float  # with the bias, −inf where the mask forbids the key
    weight: float
    contribution: list[float] | None  # weight · v, where values were kept


@dataclass(frozen=True)
class Calculation:
    """The terms of the keys with the largest weights and of one more, and what holds for the whole row."""

    query: list[float] | None
    scale: float
    softcap: float | None
    lse: float
    terms: list[Term]
    others: float  # the weight of all keys that are not listed
    output: list[float] | None  # Σ weight · v over all keys, where values were kept


@torch.no_grad()
def calculate(weights: AttentionWeights, query: int, key: int) -> Calculation:
    """The calculation of one head's row; `key` is listed whatever its weight."""
    held, facts = weights.pack()
    row, scores = weights[0, 0, query], weights.scores[0, 0, query]
    vector, value = held["query"][0, 0, query].to(row.dtype), held.get("value")
    top = row.topk(min(TOP, len(row)))
    keys = [place for place, weight in zip(top.indices.tolist(), top.values.tolist(), strict=True) if weight > 0]
    keys = keys if key in keys else [*keys, key]
    known = len(vector) > 0  # else the matrix is held as its scores

    def term(place: int) -> Term:
        own = held["key"][0, 0, place].to(row.dtype)
        product = vector @ own if known else None
        scaled = None if product is None else product * facts["scale"]
        capped = scaled
        if scaled is not None and facts["softcap"] is not None:
            capped = facts["softcap"] * torch.tanh(scaled / facts["softcap"])
        gives = None if value is None else (row[place] * value[0, 0, place].to(row.dtype)).tolist()
        return Term(
            key=place,
            vector=own.tolist() if known else None,
            product=_plain(product),
            scaled=_plain(scaled),
            capped=_plain(capped),
            score=float(scores[place]),
            weight=float(row[place]),
            contribution=gives,
        )

    terms = [term(place) for place in keys]
    return Calculation(
        vector.tolist() if known else None,
        facts["scale"],
        facts["softcap"],
        float(weights.lse[0, 0, query]),
        terms,
        max(0.0, float(row.sum()) - sum(own.weight for own in terms)),
        None if value is None else (row @ value[0, 0].to(row.dtype)).tolist(),
    )


def _plain(number: Tensor | None) -> float | None:
    return None if number is None else float(number)
