"""Mistakes in the parts of a projection other than its weight: the input, the bias and the rotary positions."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from clearhead.explain._recompute import Recomputation
from clearhead.explain.causes._mistake import Mistake, Replacement
from clearhead.explain.causes._wrong_matrix import WrongMatrix


def bias_mistakes(wrong: WrongMatrix) -> Iterator[Mistake]:
    """Yield mistakes in b_Q, b_K and b_V."""
    for name in wrong.example.biases:
        if name == "output":
            continue
        letter = name[0].upper()
        rule = f"compute {letter} = X W_{letter} + b_{letter}"
        for verb, factor in (("forgotten", 0), ("added twice", 2), ("subtracted", -1)):
            done = f"The bias b_{letter} was {'not added' if not factor else verb}"
            yield Mistake(f"b_{letter} {verb}", done, rule, {name: _with_bias(name, factor)})


def _with_bias(name: str, factor: int) -> Replacement:
    return lambda m, h: m.projected(name, h, m.matrix(f"{name}_weight", h), bias=factor * m.matrix(f"{name}_bias", h))


def rotary_mistakes(wrong: WrongMatrix) -> Iterator[Mistake]:
    """Yield mistakes of an author who leaves rotary positions out."""
    if wrong.example.rope is None:
        return
    for names, letters in ((("query", "key"), "Q and K"), (("query",), "Q"), (("key",), "K")):
        if wrong.step in ("query", "key") and len(names) > 1:
            continue  # one of them explains a wrong Q or K
        yield Mistake(
            f"{letters} not rotated",
            f"{letters} {'were' if len(names) > 1 else 'was'} not rotated by the positions",
            "apply the rotary positions to Q and K",
            {name: _unrotated(name) for name in names},
        )


def _unrotated(name: str) -> Replacement:
    return lambda m, h: m.projected(name, h, m.matrix(f"{name}_weight", h), rotated=False)


def memory_mistakes(wrong: WrongMatrix) -> Iterator[Mistake]:
    """Yield mistakes in the text that Q, K and V of cross-attention are computed from."""
    if wrong.example.memory is None or wrong.example.split == "slice":
        return
    for name, read, expected in (("query", "memory", "X"), ("key", "input", "Z"), ("value", "input", "Z")):
        letter, symbol = name[0].upper(), "Z" if read == "memory" else "X"
        yield Mistake(
            f"{letter} computed from {symbol}",
            f"{letter} was computed from {'the memory Z' if symbol == 'Z' else 'X'}",
            f"compute {letter} = {expected} W_{letter}",
            {name: _projected_from(name, read)},
        )


def _projected_from(name: str, read: str) -> Replacement:
    def compute(matrices: Recomputation, head: int) -> Tensor:
        return matrices.projected(name, head, matrices.matrix(f"{name}_weight", head), source=matrices.matrix(read, 0))

    return compute
