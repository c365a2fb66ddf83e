"""Mistakes in joining the heads and in the output matrix W_O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations

import torch
from torch import Tensor

from clearhead.explain._recompute import Recomputation
from clearhead.explain.causes._mistake import Mistake, Replacement
from clearhead.explain.causes._wrong_matrix import WrongMatrix

_MAX_PERMUTED_HEADS = 4  # with more heads, only exchanges of two heads and the reverse order are tried
_RULE = "join them column by column, head 1 first"


def joining_mistakes(wrong: WrongMatrix) -> Iterator[Mistake]:
    """Yield mistakes in the concatenation of several heads."""
    if wrong.example.heads == 1:
        return

    def outputs(matrices: Recomputation) -> list[Tensor]:
        return [matrices.matrix("head_output", head) for head in wrong.heads]

    def mistake(name: str, done: str, join: Replacement) -> Mistake:
        # the output as well, because a text may print the heads joined correctly and continue with others
        return Mistake(name, done, _RULE, {"concat": join, "output": lambda m, h: _projected(m, join(m, h))})

    for order in _orders(wrong.example.heads):
        listed = ", ".join(str(head + 1) for head in order)
        yield mistake(
            "heads in another order",
            f"The heads were joined in the order {listed}",
            lambda m, h, order=order: torch.cat([outputs(m)[head] for head in order], dim=-1),
        )
    yield mistake(
        "heads interleaved",
        "The columns of the heads alternate",
        lambda m, h: torch.stack(outputs(m), dim=-1).flatten(-2),
    )
    yield mistake(
        "heads reshaped without transposing",
        "The heads were reshaped into rows without transposing them first",
        lambda m, h: torch.stack(outputs(m)).reshape(len(outputs(m)[0]), -1),
    )
    yield mistake(
        "heads stacked by rows",
        "The heads were stacked below each other",
        lambda m, h: torch.cat(outputs(m), dim=-2),
    )
    yield mistake("heads added", "The outputs of the heads were added", lambda m, h: torch.stack(outputs(m)).sum(0))
    yield mistake(
        "heads averaged", "The outputs of the heads were averaged", lambda m, h: torch.stack(outputs(m)).mean(0)
    )


def _projected(matrices: Recomputation, joined: Tensor) -> Tensor:
    """Return the output of joined heads. Heads that were added use the first rows of W_O."""
    return _biased(matrices, joined @ matrices.matrix("output_weight", 0)[: joined.shape[-1]])


def _biased(matrices: Recomputation, product: Tensor) -> Tensor:
    return product + matrices.matrix("output_bias", 0) if "output" in matrices.example.biases else product


def _orders(heads: int) -> Iterator[Sequence[int]]:
    correct = tuple(range(heads))
    if heads <= _MAX_PERMUTED_HEADS:
        yield from (order for order in permutations(correct) if order != correct)
        return
    yield correct[::-1]
    for first, second in combinations(correct, 2):
        order = list(correct)
        order[first], order[second] = second, first
        yield order


def output_mistakes(wrong: WrongMatrix) -> Iterator[Mistake]:
    """Yield mistakes in the product with W_O."""
    rule = "multiply the joined heads by W_O, Y = C W_O"

    def mistake(name: str, done: str, compute: Replacement) -> Mistake:
        return Mistake(name, done, rule, {"output": compute})

    def head_products(matrices: Recomputation) -> list[Tensor]:
        """Return O_h W_h for each head, W_h the head's rows of W_O."""
        outputs = [matrices.matrix("head_output", head) for head in wrong.heads]
        rows = matrices.matrix("output_weight", 0).split([output.shape[-1] for output in outputs])
        return [output @ part for output, part in zip(outputs, rows, strict=True)]

    yield mistake("W_O forgotten", "The output is C, not multiplied by W_O", lambda m, h: m.matrix("concat", h))
    if "output" in wrong.example.biases:
        yield Mistake(
            "b_O forgotten",
            "The bias b_O was not added",
            f"{rule} + b_O",
            {"output": lambda m, h: m.matrix("concat", h) @ m.matrix("output_weight", h)},
        )
    yield mistake(
        "W_O transposed",
        "The output was computed with the transpose of W_O",
        lambda m, h: _biased(m, m.matrix("concat", h) @ m.matrix("output_weight", h).mT),
    )
    if wrong.example.heads > 1:
        before = "Each head was multiplied by its rows of W_O before the heads were"
        yield mistake(
            "W_O applied before concatenation", f"{before} joined", lambda m, h: torch.cat(head_products(m), dim=-1)
        )
        yield mistake(
            "W_O applied before concatenation",
            f"{before} stacked below each other",
            lambda m, h: torch.cat(head_products(m), dim=-2),
        )
        yield mistake(
            "W_O applied before concatenation",
            f"{before} averaged",
            lambda m, h: torch.stack(head_products(m)).mean(0),
        )
