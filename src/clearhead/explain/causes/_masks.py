"""Mistakes in the mask and in its use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from clearhead.explain._recompute import Recomputation, row_softmax
from clearhead.explain.causes._mistake import Mistake, Replacement
from clearhead.explain.causes._wrong_matrix import WrongMatrix

_RULE = "add the mask, 0 or −∞, to the scores before the softmax"


def mask_mistakes(wrong: WrongMatrix) -> Iterator[Mistake]:
    """Yield mistakes in the mask, or the use of a mask although the calculation has no mask."""
    allowed = wrong.exact.matrix("mask", wrong.head or 0) == 0
    if allowed.all():
        yield Mistake(
            "mask applied without reason",
            "The scores of later tokens were masked, but this calculation has no mask",
            "let every token attend to all tokens",
            _masked(lambda mask: _additive(torch.ones_like(mask).tril() == 1)),
        )
        return
    is_causal = bool((allowed == torch.ones_like(allowed).tril()).all())
    yield Mistake("mask forgotten", "The mask was left out", _RULE, _masked(torch.zeros_like))
    yield Mistake(
        "mask transposed",
        "The mask was used transposed" + (": earlier tokens are hidden instead of later ones" if is_causal else ""),
        "a row of the mask belongs to a query, a column to a key",
        _masked(lambda mask: mask.mT),
    )
    yield Mistake(
        "mask inverted",
        "The mask hides the visible tokens and shows the hidden ones",
        "put −∞ where a token may not attend",
        _masked(lambda mask: _additive(mask != 0)),
    )
    if is_causal:
        yield _shifted("own token hidden", "The mask also hides each token from itself", -1)
        yield _shifted("next token visible", "The mask shows each token one later token", 1)
    else:
        yield _shifted("mask shifted left", "The mask is shifted by one column to the left", -1)
        yield _shifted("mask shifted right", "The mask is shifted by one column to the right", 1)
    yield Mistake(
        "masked with 0 instead of −∞",
        "Hidden scores were set to 0 instead of −∞",
        "a score of 0 still gets a weight, because e^0 = 1",
        {"masked": _zero_masked, "weights": lambda m, h: row_softmax(_zero_masked(m, h))},
    )
    yield Mistake(
        "masked after the softmax",
        "The mask was applied after the softmax, and the rows were not normalized again",
        _RULE,
        {"weights": lambda m, h: row_softmax(m.matrix("scaled", h)) * (m.matrix("mask", h) == 0)},
    )


def _shifted(name: str, done: str, offset: int) -> Mistake:
    def shift(mask: Tensor) -> Tensor:
        allowed = torch.roll(mask == 0, offset, dims=-1)
        allowed[..., 0 if offset > 0 else -1] = offset > 0
        return _additive(allowed)

    return Mistake(f"mask off by one: {name}", done, "move it by one column", _masked(shift))


def _masked(change: Callable[[Tensor], Tensor]) -> Mapping[str, Replacement]:
    """Return replacements that start at the scaled scores, even if the text prints correctly masked scores."""

    def scores(matrices: Recomputation, head: int) -> Tensor:
        return matrices.matrix("scaled", head) + change(matrices.matrix("mask", head))

    return {
        "mask": lambda m, h: change(m.matrix("mask", h)),
        "masked": scores,
        "weights": lambda m, h: row_softmax(scores(m, h)),
    }


def _zero_masked(matrices: Recomputation, head: int) -> Tensor:
    return torch.where(matrices.matrix("mask", head) == 0, matrices.matrix("scaled", head), 0.0)


def _additive(allowed: Tensor) -> Tensor:
    return torch.where(allowed, 0.0, -torch.inf).double()
