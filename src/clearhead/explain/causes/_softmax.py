"""Mistakes in the softmax."""

from __future__ import annotations

from collections.abc import Iterator
from math import log

import torch
from torch import Tensor

from clearhead._utils.text import count_noun
from clearhead.explain._recompute import Recomputation, row_softmax
from clearhead.explain.causes._mistake import Mistake, Replacement
from clearhead.explain.causes._wrong_matrix import WrongMatrix

_ROWS = "apply it to each row, the scores of one query"
_EARLY_DIGITS = (0, 1, 2, 3)


def softmax_mistakes(wrong: WrongMatrix) -> Iterator[Mistake]:
    """Yield mistakes in the step from scores to weights."""

    def mistake(name: str, done: str, remedy: str, compute: Replacement, *, complete: bool = False) -> Mistake:
        return Mistake(name, done, remedy, {"weights": compute}, complete=complete)

    yield mistake(
        "softmax over columns",
        "The softmax was applied to each column",
        _ROWS,
        lambda m, h: row_softmax(m.matrix("masked", h).mT).mT,
    )
    yield mistake(
        "softmax over the whole matrix",
        "The softmax was applied to the whole matrix at once",
        _ROWS,
        lambda m, h: _joint_softmax([m.matrix("masked", h)])[0],
    )
    if wrong.example.heads > 1:
        yield from _softmax_over_heads(wrong)
    yield mistake(
        "softmax without exp",
        "The scores were divided by their sum, without the exponential function",
        "divide e^score by the sum of e^score over the row",
        lambda m, h: _normalized(_visible_scores(m, h)),
    )
    yield mistake(
        "softmax with base 2",
        "The softmax was computed with powers of 2",
        "use powers of e",
        lambda m, h: row_softmax(m.matrix("masked", h) * log(2)),
    )
    yield mistake(
        "softmax not normalized",
        "The weights are e^score, not divided by the sum of their row",
        "divide each by the sum of its row, so that the row sums to 1",
        lambda m, h: m.matrix("masked", h).exp(),
    )
    yield Mistake(
        "softmax forgotten",
        "The scores were used as weights",
        "apply the softmax to each row first",
        {
            "weights": _visible_scores,
            "head_output": lambda m, h: _visible_scores(m, h) @ m.for_head("value", h),
        },
    )
    for digits in _EARLY_DIGITS:
        kept = f"{count_noun(digits, 'digit')} after the point"
        yield mistake(
            "rounded too early",
            f"The powers e^score were rounded to {kept} before they were divided",
            "round only the result",
            lambda m, h, digits=digits: _normalized(m.matrix("masked", h).exp().round(decimals=digits)),
            complete=True,
        )


def _softmax_over_heads(wrong: WrongMatrix) -> Iterator[Mistake]:
    def scores(matrices: Recomputation) -> list[Tensor]:
        return [matrices.matrix("masked", head) for head in wrong.heads]

    def across(matrices: Recomputation, head: int) -> Tensor:
        return row_softmax(torch.stack(scores(matrices), dim=-1))[..., head]

    def along_rows(matrices: Recomputation, head: int) -> Tensor:
        joint = row_softmax(torch.cat(scores(matrices), dim=-1))
        return joint.chunk(wrong.example.heads, dim=-1)[head]

    done = "The softmax was applied to all heads together"
    yield Mistake("softmax over all heads", f"{done}, for each cell", f"{_ROWS} in one head", {"weights": across})
    yield Mistake("softmax over all heads", f"{done}, for each row", f"{_ROWS} in one head", {"weights": along_rows})
    yield Mistake(
        "softmax over all heads",
        f"{done}, for all cells at once",
        f"{_ROWS} in one head",
        {"weights": lambda m, h: _joint_softmax(scores(m))[h]},
    )


def _joint_softmax(scores: list[Tensor]) -> Tensor:
    stacked = torch.stack(scores)
    return row_softmax(stacked.flatten()).reshape(stacked.shape)


def _visible_scores(matrices: Recomputation, head: int) -> Tensor:
    """Return the scaled scores, with 0 where the mask has −∞."""
    scores = matrices.matrix("masked", head)
    return torch.where(scores == -torch.inf, 0.0, scores)


def _normalized(values: Tensor) -> Tensor:
    return values / values.sum(dim=-1, keepdim=True)
