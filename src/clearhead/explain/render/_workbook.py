"""Worked examples as xlsx workbooks, in which every step is computed by formulas."""

from __future__ import annotations

import io
import math

import torch
from torch import Tensor

from clearhead._utils.extras import needs_extra
from clearhead.explain.render import _workbook_formulas as formulas
from clearhead.explain.render._formula import whole_formula
from clearhead.explain.render._layout import new_matrices
from clearhead.explain.render._workbook_formulas import Factor, Formula
from clearhead.explain.render._workbook_sheets import MINUS_INFINITY, Block, Content, MatrixSheet
from clearhead.explain.render.wording import origin_text, step_heading, step_sentence
from clearhead.explain.steps import KEY_HEAD_STEPS, Operand, Step, Trace

with needs_extra("explain", "the xlsx format"):
    from openpyxl import Workbook

MAX_NUMBERS = 100_000  # of one workbook


def as_workbook(trace: Trace, title: str, digits: int) -> bytes:
    """Return an xlsx file with a sheet for the inputs, one for each head, and one for the output."""
    if not trace.is_whole:
        raise ValueError("trace has only some of its steps; expected all of them, because formulas read earlier steps")
    count = sum(matrix.values.numel() for step in trace for matrix in new_matrices(step))
    if count > MAX_NUMBERS:
        raise ValueError(f"the calculation has {count:,} numbers; expected at most {MAX_NUMBERS:,} in a workbook")
    book = Workbook()
    book.remove(book.worksheets[0])
    _Writer(book, trace, title, digits).write()
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


class _Writer:
    """Writer of one workbook."""

    def __init__(self, book: Workbook, trace: Trace, title: str, digits: int) -> None:
        self._book, self._trace, self._digits = book, trace, digits
        self._steps: dict[str, Block] = {}  # by symbol
        self._added: list[tuple[str, Tensor, Block]] = []  # learned matrices, masks and scales
        self._inputs = self._add_sheet("Inputs")
        self._inputs.add_heading(title)
        for text, _ in whole_formula(trace):
            self._inputs.add_text(text)
        self._inputs.add_text("Change a yellow cell, and all sheets follow. A masked cell of M contains the text −∞.")
        self._inputs.skip_row()

    def write(self) -> None:
        sheets: dict[str, MatrixSheet] = {"Inputs": self._inputs}
        for position, step in self._trace.numbered():
            heading = f"{position}. {step_heading(step, self._trace)}"
            if step.how in ("input", "given", "partly"):
                self._steps[step.symbol] = self._add_values(heading, step)
                continue
            name = self._sheet_name(step)
            if name not in sheets:
                sheets[name] = self._add_sheet(name)
            self._steps[step.symbol] = self._add_step(heading, step, sheets[name])

    def _add_sheet(self, name: str) -> MatrixSheet:
        return MatrixSheet(self._book.create_sheet(name), self._digits)

    def _sheet_name(self, step: Step) -> str:
        """Return the sheet of a step. K and V of several heads are in the sheet of the first of them."""
        if step.head is None:
            return "Output" if step.name in ("concat", "output") else "Inputs"
        if self._trace.head_name:  # in the title; as the name of a sheet it may be too long
            return "Head"
        head = step.head * self._trace.group if step.name in KEY_HEAD_STEPS else step.head
        return f"Head {head + 1}"

    # -- numbers -------------------------------------------------------------------------------------------------

    def _add_values(self, heading: str, matrix: Step | Operand) -> Block:
        cells = matrix.values.double().tolist()
        return self._inputs.add_matrix(
            heading,
            origin_text(matrix),
            *self._labels(matrix),
            lambda row, column: _content(cells[row][column]),
            is_input=True,
        )

    def _labels(self, matrix: Step | Operand) -> tuple[tuple[str, ...], tuple[str, ...]]:
        height, width = matrix.values.shape
        return self._trace.labels(matrix.rows, height), self._trace.labels(matrix.columns, width)

    def _parameter(self, symbol: str, values: Tensor, sheet: str) -> Factor:
        """Return a matrix whose values are an option of the layer, such as d_k."""
        return self._operand(Operand(symbol, symbol, values, "dimension", "dimension", "all", new=True), sheet)

    def _operand(self, operand: Operand, sheet: str) -> Factor:
        """Return the cells of an operand, which are added to the inputs if no step computes them."""
        name = operand.symbol
        if not operand.new:
            transposed = name not in self._steps  # Kᵀ, which is not a step
            return Factor(self._steps[name.removesuffix("ᵀ") if transposed else name], sheet, transposed)
        whole, _, part = name.partition("[")
        if part:  # some columns of X or Z
            block = self._steps[whole]
            height, width = operand.values.shape
            return Factor(Block(block.sheet, block.top, block.left + operand.first_column, (height, width)), sheet)
        same = [block for symbol, values, block in self._added if symbol == name and values.equal(operand.values)]
        if same:  # such as one mask of all heads
            return Factor(same[0], sheet)
        count = sum(symbol == name for symbol, _, _ in self._added)
        block = self._add_values(name if not count else f"{name}, head {count + 1}", operand)
        self._added.append((name, operand.values, block))
        return Factor(block, sheet)

    # -- formulas ------------------------------------------------------------------------------------------------

    def _add_step(self, heading: str, step: Step, sheet: MatrixSheet) -> Block:
        operands = [self._operand(operand, sheet.name) for operand in step.operands]
        if step.how == "softmax":
            return self._add_softmax(heading, step, sheet, operands)
        if step.how == "other" and step.name in ("query", "key"):
            return self._add_normed_and_rotated(heading, step, sheet, operands)
        return self._add_block(heading, step, sheet, self._formula(step, operands, sheet.name))

    def _formula(self, step: Step, operands: list[Factor], sheet: str) -> Formula:
        if step.name == "scaled":
            return self._scaled(step, operands[0], sheet)
        if step.how == "lookup":
            rows = [self._trace.vocabulary.index(token) for token in self._trace.tokens]
            return lambda row, column: f"={operands[0].cell(rows[row], column)}"
        if step.how == "slice":
            return formulas.copied(operands[0], step.operands[0].shift)
        if step.how == "concat":
            width = operands[0].block.shape[1]
            return lambda row, column: f"={operands[column // width].cell(row, column % width)}"
        if step.how in ("masked", "sum"):
            return formulas.added(operands[0], operands[1])
        return formulas.product(*operands)

    def _scaled(self, step: Step, scores: Factor, sheet: str) -> Formula:
        softcap = self._trace.options.softcap
        cap = None if softcap is None else self._parameter("softcap", torch.tensor([[softcap]]).double(), sheet)
        root = step.scaling.partition("√")[2]
        if root:
            return formulas.scaled(scores, self._parameter("d_k", torch.tensor([[float(root)]]), sheet), True, cap)
        assert step.factor is not None
        scale = self._parameter("scale", torch.tensor([[step.factor]], dtype=torch.float64), sheet)
        return formulas.scaled(scores, scale, False, cap)

    def _add_softmax(self, heading: str, step: Step, sheet: MatrixSheet, operands: list[Factor]) -> Block:
        scores, sink = operands[0], operands[1] if len(operands) > 1 else None
        symbol = step.operands[0].symbol
        caption = f"e to the power of {symbol} minus the largest number of its row"
        exponentials = sheet.add_matrix(
            f"{heading}: exponentials", caption, *self._labels(step), formulas.exponential(scores, sink)
        )
        formula = formulas.normalized(Factor(exponentials, sheet.name), scores, sink)
        return self._add_block(heading, step, sheet, formula)

    def _add_normed_and_rotated(self, heading: str, step: Step, sheet: MatrixSheet, operands: list[Factor]) -> Block:
        """Add the product, the norm and the rotation as matrices, one after the other."""
        options = self._trace.options
        norm = options.query_norm if step.name == "query" else options.key_norm
        block = sheet.add_matrix(f"{heading}: projection", "", *self._labels(step), formulas.product(*operands))
        factor = Factor(block, sheet.name)
        if norm is not None:
            eps = torch.finfo(step.values.dtype).eps if norm.eps is None else norm.eps
            weight = self._parameter(f"norm of {step.symbol}", norm.weight.detach()[None].double(), sheet.name)
            formula = formulas.root_mean_square_norm(factor, weight, eps)
            if options.rope is None:
                return self._add_block(heading, step, sheet, formula)
            block = sheet.add_matrix(f"{heading}: norm", "", *self._labels(step), formula)
            factor = Factor(block, sheet.name)
        assert options.rope is not None
        return self._add_block(heading, step, sheet, formulas.rotated(factor, options.rope))

    def _add_block(self, heading: str, step: Step, sheet: MatrixSheet, formula: Formula) -> Block:
        caption = f"{step.formula}: {step.shapes}. {step_sentence(step, self._trace)}"
        return sheet.add_matrix(heading, caption, *self._labels(step), formula, is_weights=step.name == "weights")


def _content(value: float) -> Content:
    return value if math.isfinite(value) else MINUS_INFINITY
