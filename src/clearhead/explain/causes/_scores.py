"""Mistakes in the scores Q Kᵀ and in their scaling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isclose, sqrt

from torch import Tensor

from clearhead.explain._recompute import Recomputation, row_softmax
from clearhead.explain.causes._mistake import Mistake, Replacement
from clearhead.explain.causes._wrong_matrix import WrongMatrix


def score_mistakes(wrong: WrongMatrix) -> Iterator[Mistake]:
    """Yield mistakes in the product of queries and keys."""

    def product(name: str, what: str, compute: Replacement) -> Mistake:
        return Mistake(name, f"The scores are {what}", "multiply each query with each key, Q Kᵀ", {"scores": compute})

    yield product("scores Q Qᵀ", "Q Qᵀ, the queries with themselves", lambda m, h: _product(m, "query", h, "query", h))
    yield product("scores K Kᵀ", "K Kᵀ, the keys with themselves", lambda m, h: _product(m, "key", h, "key", h))
    yield product("scores Q Vᵀ", "Q Vᵀ, the queries with the values", lambda m, h: _product(m, "query", h, "value", h))
    yield product("scores Q K", "Q K, without the transpose", lambda m, h: m.matrix("query", h) @ m.for_head("key", h))
    yield product("scores Qᵀ K", "Qᵀ K", lambda m, h: m.matrix("query", h).mT @ m.for_head("key", h))
    for other, owner in wrong.other_key_heads():
        yield product(
            f"keys of {owner}",
            f"computed with the keys of {owner}",
            lambda m, h, other=other: m.matrix("query", h) @ m.matrix("key", other).mT,
        )
    for other in wrong.other_heads if wrong.head is not None else ():
        yield product(
            f"queries of head {other + 1}",
            f"computed with the queries of head {other + 1}",
            lambda m, h, other=other: _product(m, "query", other, "key", h),
        )


def _product(matrices: Recomputation, left: str, left_head: int, right: str, right_head: int) -> Tensor:
    return matrices.for_head(left, left_head) @ matrices.for_head(right, right_head).mT


def scale_mistakes(wrong: WrongMatrix) -> Iterator[Mistake]:
    """Yield mistakes in the scaling of the scores."""
    example = wrong.example
    d_k, d_model, rows = example.d_k, example.x.shape[1], len(example.tokens)
    scale = 1 / sqrt(d_k) if example.scale is None else example.scale
    rule = f"divide them by √d_k = √{d_k} before the softmax"
    if example.scale is not None:
        rule = "use them as they are" if scale == 1 else f"multiply them by {scale:g} before the softmax"
    if scale != 1:
        yield Mistake(
            "not divided by √d_k" if example.scale is None else "not scaled",
            f"The scores were not divided by √d_k = √{d_k}" if example.scale is None else "The scores were not scaled",
            "divide them before the softmax" if example.scale is None else rule,
            _scaled(lambda scores: scores),
        )
    divisors = {
        "√d_k": (f"√d_k = √{d_k}", sqrt(d_k)),
        "d_k": (f"d_k = {d_k}", float(d_k)),
        "√d_model": (f"√d_model = √{d_model}", sqrt(d_model)),
        "√n": (f"√n = √{rows}, n the number of tokens", sqrt(rows)),
    }
    for name, (text, divisor) in divisors.items():
        if not isclose(divisor * scale, 1):
            done = f"The scores were divided by {text}"
            yield Mistake(f"divided by {name}", done, rule, _scaled(lambda scores, by=divisor: scores / by))
    yield Mistake(
        "multiplied by √d_k",
        f"The scores were multiplied by √d_k = √{d_k}",
        rule,
        _scaled(lambda scores: scores * sqrt(d_k)),
    )
    if scale != 1:
        yield from _repeated_scaling(wrong, scale)
    for digits in (1, 2) if example.scale is None else ():
        root = round(sqrt(d_k), digits)
        yield Mistake(
            "√d_k rounded too early",
            f"The scores were divided by {root:.{digits}f} instead of √{d_k}",
            "round the result, not the divisor",
            _scaled(lambda scores, by=root: scores / by),
            complete=True,
        )


def _repeated_scaling(wrong: WrongMatrix, scale: float) -> Iterator[Mistake]:
    """Yield mistakes of an author who scales the scores twice, or too early."""
    is_root = wrong.example.scale is None
    how = f"divided by √d_k = √{wrong.example.d_k}" if is_root else f"multiplied by {scale:g}"
    yield Mistake(
        "scaled twice",
        f"The scores were {how} twice",
        "divide them once" if is_root else "multiply them once",
        {
            "scaled": lambda m, h: m.matrix("scaled", h) * scale,
            "masked": lambda m, h: m.matrix("masked", h) * scale,
            "weights": lambda m, h: row_softmax(m.matrix("masked", h) * scale),
        },
    )
    yield Mistake(
        "scores already divided by √d_k" if is_root else "scores already scaled",
        f"Q Kᵀ is printed {how}",
        "print the products themselves here",
        {"scores": lambda m, h: m.matrix("scaled", h)},
        local=True,
    )


def _scaled(change: Callable[[Tensor], Tensor]) -> Mapping[str, Replacement]:
    """Return replacements that start at the scores, even if the text prints correctly scaled scores."""
    return {
        "scaled": lambda m, h: change(m.matrix("scores", h)),
        "masked": lambda m, h: change(m.matrix("scores", h)) + m.matrix("mask", h),
        "weights": lambda m, h: row_softmax(change(m.matrix("scores", h)) + m.matrix("mask", h)),
    }
