"""Mistakes in writing a correct matrix down: transposed, reordered, or from another head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

import torch
from torch import Tensor

from clearhead.explain._claims import LEARNED_MATRICES, SHARED_MATRICES
from clearhead.explain.causes._mistake import Mistake, other_matrix
from clearhead.explain.causes._projections import exchanged
from clearhead.explain.causes._wrong_matrix import WrongMatrix

_MAX_EXCHANGED = 12  # with more wrong rows or columns, exchanges are not tried


def printing_mistakes(wrong: WrongMatrix) -> Iterator[Mistake]:
    """Yield mistakes that change one matrix only when it is written down."""
    step, symbol = wrong.step, wrong.symbol

    def mistake(name: str, done: str, remedy: str, change: Callable[[Tensor], Tensor]) -> Mistake:
        return Mistake(name, done, remedy, {step: lambda m, h: change(m.matrix(step, h))}, local=True)

    yield mistake(
        "transposed",
        f"{symbol} is printed transposed",
        "exchange its rows and columns",
        lambda matrix: matrix.mT,
    )
    yield mistake(
        "rows in reverse order",
        f"{symbol} is printed with its rows in reverse order",
        "start with the first row",
        lambda matrix: matrix.flip(0),
    )
    yield mistake(
        "columns in reverse order",
        f"{symbol} is printed with its columns in reverse order",
        "start with the first column",
        lambda matrix: matrix.flip(1),
    )
    if not wrong.shape_is_wrong:
        yield from _exchanges(wrong, mistake)
    for other in wrong.other_heads if step not in (*SHARED_MATRICES, "slice") else ():
        yield Mistake(
            f"matrix of head {other + 1}",
            f"The matrix of head {other + 1} is printed",
            f"print that of head {(wrong.head or 0) + 1}",
            {step: lambda m, h, other=other: m.matrix(step, other)},
            local=True,
        )
    if step in LEARNED_MATRICES[:3]:
        for name in LEARNED_MATRICES[:3]:
            if name != step:
                letter = f"W_{name[0].upper()}"
                yield Mistake(
                    f"{letter} printed",
                    f"{letter} is printed",
                    f"print {symbol}",
                    {step: lambda m, h, name=name: other_matrix(m, step, h, name)},
                    local=True,
                )


def _exchanges(wrong: WrongMatrix, mistake: Callable[..., Mistake]) -> Iterator[Mistake]:
    """Yield exchanges of two rows, or of two columns, that both contain new errors."""
    rows, columns = (torch.nonzero(wrong.new_errors.any(dim=axis)).flatten().tolist() for axis in (1, 0))
    axes = (("rows", rows, lambda matrix, *pair: exchanged(matrix, *pair)),
            ("columns", columns, lambda matrix, *pair: exchanged(matrix.mT, *pair).mT))  # fmt: skip
    for axis, (name, lines, exchange) in enumerate(axes):
        for first, second in combinations(lines, 2) if len(lines) <= _MAX_EXCHANGED else ():
            labels = " and ".join(wrong.label(axis, index) for index in (first, second))
            yield mistake(
                f"{name} exchanged",
                f"The {name} {labels} of {wrong.symbol} are exchanged",
                "exchange them again",
                lambda matrix, exchange=exchange, pair=(first, second): exchange(matrix, *pair),
            )
