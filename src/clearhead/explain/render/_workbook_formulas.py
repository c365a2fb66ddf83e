"""Spreadsheet formulas of the operations of a calculation. Each returns the content of one cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from clearhead.explain.render._workbook_sheets import MINUS_INFINITY, Block
from clearhead.nn import Rotary

_MAX_TERMS = 8  # of a sum of products that is written out
Formula = Callable[[int, int], str]


@dataclass(frozen=True)
class Factor:
    """Matrix that a formula reads, as seen from the sheet of the formula."""

    block: Block
    sheet: str
    transposed: bool = False

    def cell(self, row: int, column: int) -> str:
        if self.transposed:
            row, column = column, row
        return self.block.cell(row, column, self.sheet)

    def row(self, row: int) -> str:
        return self.block.row(row, self.sheet)

    def column(self, column: int) -> str:
        return self.row(column) if self.transposed else self.block.column(column, self.sheet)


def copied(source: Factor, first_column: int = 0) -> Formula:
    return lambda row, column: f"={source.cell(row, column + first_column)}"


def product(left: Factor, right: Factor, bias: Factor | None = None) -> Formula:
    """Write out short sums of products, so that they can be read."""
    terms = left.block.shape[1]

    def formula(row: int, column: int) -> str:
        if terms <= _MAX_TERMS:
            text = "+".join(f"{left.cell(row, term)}*{right.cell(term, column)}" for term in range(terms))
        elif right.transposed:
            text = f"SUMPRODUCT({left.row(row)},{right.column(column)})"
        else:
            text = f"SUM(MMULT({left.row(row)},{right.column(column)}))"
        return f"={text}" if bias is None else f"={text}+{bias.cell(0, column)}"

    return formula


def scaled(scores: Factor, factor: Factor, is_divided: bool, softcap: Factor | None) -> Formula:
    """Divide by the root of the factor, or multiply by the factor; then apply the softcap."""

    def formula(row: int, column: int) -> str:
        score = scores.cell(row, column)
        text = f"{score}/SQRT({factor.cell(0, 0)})" if is_divided else f"{score}*{factor.cell(0, 0)}"
        if softcap is not None:
            text = f"{softcap.cell(0, 0)}*TANH({text}/{softcap.cell(0, 0)})"
        return f"={text}"

    return formula


def added(left: Factor, right: Factor) -> Formula:
    """Add two matrices, either of which may contain −∞."""

    def formula(row: int, column: int) -> str:
        first, second = left.cell(row, column), right.cell(row, column)
        return f'=IF(COUNT({first},{second})=2,{first}+{second},"{MINUS_INFINITY}")'

    return formula


def exponential(scores: Factor, sink: Factor | None) -> Formula:
    """Return e to the power of a score minus the largest one of its row. e to the power of −∞ is 0."""

    def formula(row: int, column: int) -> str:
        score, others = scores.cell(row, column), "" if sink is None else f",{sink.cell(0, 0)}"
        return f"=IF(ISNUMBER({score}),EXP({score}-MAX({scores.row(row)}{others})),0)"

    return formula


def normalized(exponentials: Factor, scores: Factor, sink: Factor | None) -> Formula:
    """Divide by the sum of the row, to which the sink belongs. A row without visible keys is 0."""

    def formula(row: int, column: int) -> str:
        total = f"SUM({exponentials.row(row)})"
        if sink is not None:
            total += f"+EXP({sink.cell(0, 0)}-MAX({scores.row(row)},{sink.cell(0, 0)}))"
        return f"=IF({total}=0,0,{exponentials.cell(row, column)}/({total}))"

    return formula


def root_mean_square_norm(source: Factor, weight: Factor, eps: float) -> Formula:
    width = source.block.shape[1]
    return lambda row, column: (
        f"={source.cell(row, column)}/SQRT(SUMSQ({source.row(row)})/{width}+{eps!r})*{weight.cell(0, column)}"
    )


def rotated(source: Factor, rope: Rotary) -> Formula:
    """Rotate each pair of columns by position · frequency. Positions are counted from 0."""
    dims = rope.rotary_dims(source.block.shape[1])
    frequencies = rope.frequencies(dims, torch.device("cpu")).tolist()
    factor = 1.0 if rope.scaling is None else rope.scaling.attention_factor

    def formula(row: int, column: int) -> str:
        if column >= dims:
            return f"={source.cell(row, column)}"
        half = rope.layout == "half"
        pair = column % (dims // 2) if half else column // 2
        is_first = column < dims // 2 if half else column % 2 == 0
        distance = dims // 2 if half else 1
        partner = column + distance if is_first else column - distance
        angle, sign = f"{row}*{frequencies[pair]!r}", "-" if is_first else "+"
        return f"={factor!r}*({source.cell(row, column)}*COS({angle}){sign}{source.cell(row, partner)}*SIN({angle}))"

    return formula
