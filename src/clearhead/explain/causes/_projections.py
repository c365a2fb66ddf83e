"""Mistakes in the slices of X, in the projections Q, K and V, and in the product A V."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import torch
from torch import Tensor

from clearhead.explain._error_propagation import agree
from clearhead.explain._recompute import OPERANDS, Recomputation
from clearhead.explain.causes._mistake import Mistake, Replacement
from clearhead.explain.causes._wrong_matrix import WrongMatrix
from clearhead.explain.steps import KEY_HEAD_STEPS

_PROJECTIONS = ("query", "key", "value")
_MAX_EXCHANGED_ROWS = 8  # with more tokens, exchanged rows of V are not tried


def projection_mistakes(wrong: WrongMatrix) -> Iterator[Mistake]:
    """Yield mistakes in Q, K and V."""
    for name in _PROJECTIONS:
        letter = name[0].upper()
        rule = f"compute {letter} = X W_{letter}"
        for other in _PROJECTIONS:
            if other != name:
                yield Mistake(
                    f"W_{other[0].upper()} used for {letter}",
                    f"{letter} was computed with W_{other[0].upper()}",
                    rule,
                    {name: _projected_with(name, other)},
                )
                if {name, other} <= wrong.example.biases.keys():
                    yield Mistake(
                        f"W_{other[0].upper()} and its bias used for {letter}",
                        f"{letter} was computed with W_{other[0].upper()} and b_{other[0].upper()}",
                        rule,
                        {name: _projected_with(name, other, with_bias=True)},
                    )
        yield Mistake(
            f"X W_{letter}ᵀ",
            f"{letter} was computed with the transpose of W_{letter}",
            rule,
            {name: lambda m, h, name=name: m.projected(name, h, m.matrix(f"{name}_weight", h).mT)},
        )
        yield Mistake(
            f"W_{letter} forgotten",
            f"{letter} is X, not multiplied by W_{letter}",
            rule,
            {name: lambda m, h, name=name: m.matrix(OPERANDS[name][0], h)},
        )
        for head, owner in _other_owners(wrong, name):
            yield Mistake(
                f"W_{letter} of {owner}",
                f"{letter} was computed with W_{letter} of {owner}",
                f"use W_{letter} of this head",
                {name: lambda m, h, n=name, head=head: m.projected(n, h, m.matrix(f"{n}_weight", head))},
            )
    if _is_exchanged(wrong):
        yield Mistake(
            "W_Q and W_K exchanged",
            "W_Q and W_K were exchanged",
            "compute Q = X W_Q and K = X W_K",
            {"query": _projected_with("query", "key"), "key": _projected_with("key", "query")},
        )


def _other_owners(wrong: WrongMatrix, name: str) -> list[tuple[int, str]]:
    """Return the other heads that have a W_Q, W_K or W_V, and the words for each."""
    if name in KEY_HEAD_STEPS:
        return wrong.other_key_heads()
    if wrong.head is None or wrong.step in KEY_HEAD_STEPS:
        return []
    return [(head, f"head {head + 1}") for head in wrong.other_heads]


def _projected_with(name: str, other: str, *, with_bias: bool = False) -> Replacement:
    """Return the computation of Q, K or V with the weight, and perhaps the bias, of another one."""

    def compute(matrices: Recomputation, head: int) -> Tensor:
        example, find, index = matrices.example, matrices.matrix, head
        if name == "query":
            find = matrices.for_head
        elif other == "query":  # `head` is a key head, whose first query head is meant
            index = head * example.heads // example.kv_heads
        bias = find(f"{other}_bias", index) if with_bias else None
        return matrices.projected(name, head, find(f"{other}_weight", index), bias=bias)

    return compute


def _is_exchanged(wrong: WrongMatrix) -> bool:
    """Return whether an exchange of W_Q and W_K is possible: if Q or K is wrong, so is the other one in the text."""
    if wrong.example.kv_heads != wrong.example.heads or wrong.example.memory is not None:
        return False  # other shapes
    if wrong.step not in ("query", "key"):
        return True
    other = "key" if wrong.step == "query" else "query"
    exchanged = _projected_with(other, wrong.step)(wrong.exact, wrong.head or 0)
    return any(
        claim.values is not None
        and (claim.step, claim.head) == (other, wrong.head)
        and claim.values.shape == tuple(exchanged.shape)
        and bool((claim.values.blank | agree(claim.values.values, exchanged, claim.values.tolerance)).all())
        and not bool(claim.values.blank.all())
        for claim in wrong.example.claims
    )


def slice_mistakes(wrong: WrongMatrix) -> Iterator[Mistake]:
    """Yield mistakes in the columns of X that a head reads."""
    if wrong.example.split != "slice" or wrong.example.heads == 1:
        return
    count = wrong.example.heads
    yield Mistake(
        "slices interleaved",
        f"The head reads every {count}th column of X" if count > 3 else "The columns of X were dealt out in turn",
        "each head reads neighboring columns",
        {"slice": lambda m, h: m.matrix("input", h)[..., h::count]},
    )
    for other in wrong.other_heads if wrong.head is not None else ():
        yield Mistake(
            f"columns of head {other + 1}",
            f"The columns of X of head {other + 1} were used",
            "use the columns of this head",
            {"slice": lambda m, h, other=other: m.matrix("slice", other)},
        )


def head_output_mistakes(wrong: WrongMatrix) -> Iterator[Mistake]:
    """Yield mistakes in the product of weights and values."""

    def mistake(name: str, what: str, compute: Replacement) -> Mistake:
        done = f"The head's output is {what}"
        return Mistake(name, done, "multiply the weights with the values, A V", {"head_output": compute})

    yield mistake("Aᵀ V", "Aᵀ V", lambda m, h: m.matrix("weights", h).mT @ m.for_head("value", h))
    yield mistake("A Vᵀ", "A Vᵀ", lambda m, h: m.matrix("weights", h) @ m.for_head("value", h).mT)
    yield mistake("A K", "A K, the mean of the keys", lambda m, h: m.matrix("weights", h) @ m.for_head("key", h))
    yield mistake("A Q", "A Q, the mean of the queries", lambda m, h: m.matrix("weights", h) @ m.matrix("query", h))
    yield mistake(
        "A X", "A X, the mean of the inputs", lambda m, h: m.matrix("weights", h) @ m.for_head("key_input", h)
    )
    for other, owner in wrong.other_key_heads():
        yield mistake(
            f"A V with V of {owner}",
            f"computed with the values of {owner}",
            lambda m, h, other=other: m.matrix("weights", h) @ m.matrix("value", other),
        )
    for other in wrong.other_heads if wrong.head is not None else ():
        yield mistake(
            f"A V with A of head {other + 1}",
            f"computed with the weights of head {other + 1}",
            lambda m, h, other=other: m.matrix("weights", other) @ m.for_head("value", h),
        )
    rows = wrong.exact.for_head("value", wrong.head or 0).shape[0]
    if wrong.step == "head_output" and rows <= _MAX_EXCHANGED_ROWS:
        for first, second in combinations(range(rows), 2):
            yield mistake(
                "rows of V exchanged",
                f"computed with rows {first + 1} and {second + 1} of V exchanged",
                lambda m, h, pair=(first, second): m.matrix("weights", h) @ exchanged(m.for_head("value", h), *pair),
            )


def exchanged(matrix: Tensor, first: int, second: int) -> Tensor:
    """Return a matrix with two rows exchanged."""
    order = torch.arange(matrix.shape[0])
    order[[first, second]] = order[[second, first]]
    return matrix[order]
