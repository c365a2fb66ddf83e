"""Arithmetic of single cells, written out as text or LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from clearhead._utils.checks import check_bool, check_int, describe
from clearhead.explain.render.wording import DEFAULT_DIGITS, NumberFormat
from clearhead.explain.steps import Operand, Step, Trace

MAX_TERMS = 12  # of a sum that is written out
_LEADING_TERMS = 4  # of a longer sum
_LATEX_SIGNS = {"·": r"\cdot", "−": "-", "∞": r"\infty", "…": r"\dots", "≈": r"\approx"}


@dataclass(frozen=True)
class _Line:
    """Right side of an equation, as text; `exact` if no number in it is rounded."""

    text: str
    exact: bool = False
    remark: str = ""
    latex_remark: str = ""  # for math mode, if `remark` contains symbols
    states_value: bool = True  # the result follows after an equals sign


def cell_arithmetic(
    step: Step,
    row: int,
    column: int,
    *,
    digits: int = DEFAULT_DIGITS,
    latex: bool = False,
    max_terms: int | None = MAX_TERMS,
) -> str:
    """Return the calculation of one number, such as `Q[1,1] = 0.1 · 3.4 + 0.2 · 0.7 = 0.48`.

    Args:
        step: the step.
        row: row of the number, counted from 0. In the result, rows and columns are counted from 1.
        column: column of the number, counted from 0.
        digits: digits after the decimal point.
        latex: return LaTeX for math mode.
        max_terms: a longer sum is abbreviated (default: 12; None: never).

    Examples:
        >>> from clearhead.explain import load
        >>> cell_arithmetic(load("song").trace().step("query"), 0, 0)
        'Q[1,1] = 0.1 · 3.4 + (−0.2) · (−1.2) + 0.1 · 2.9 + 0.2 · 0.7 = 1.01'
    """
    if not isinstance(step, Step):
        raise TypeError(f"step is {describe(step)}; expected a Step of a Trace")
    rows, columns = step.shape
    if max_terms is not None:
        max_terms = check_int("max_terms", max_terms, least=1)
    check_bool("latex", latex)
    digits = check_int("digits", digits, least=0, most=15)
    row = check_int("row", row, least=0, most=rows - 1)
    column = check_int("column", column, least=0, most=columns - 1)
    line = _line(step, row, column, digits, max_terms)
    value = NumberFormat(step.values, digits).signed(float(step.values[row, column]))
    exact = line.exact and NumberFormat(step.values, digits).is_exact(float(step.values[row, column]))
    parts = [f"{_cell_name(step, row, column)} = {line.text}"] if line.text else [_cell_name(step, row, column)]
    if line.states_value:
        parts.append(f" {'=' if exact or 'inf' in str(float(step.values[row, column])) else '≈'} {value}")
    text = "".join(parts)
    if not latex:
        return f"{text}{line.remark}"
    remark = line.latex_remark or (f"\\text{{{line.remark}}}" if line.remark else "")
    return f"{_to_latex(text, step)}{remark}"


def arithmetic_lines(step: Step, trace: Trace, digits: int, *, latex: bool = False) -> list[str]:
    """Return the arithmetic of the cells that a trace selects, or of one sample cell, abbreviated if long."""
    key = step.name, step.head
    if key in trace.cells:
        return [
            cell_arithmetic(step, row, column, digits=digits, latex=latex, max_terms=None)
            for row, column in trace.cells[key]
        ]
    cell = sample_cell(step)
    return [] if cell is None else [cell_arithmetic(step, *cell, digits=digits, latex=latex)]


def sample_cell(step: Step) -> tuple[int, int] | None:
    """Return the cell whose arithmetic stands for a step: (row, column) counted from 0; None if nothing is computed."""
    if step.how in ("input", "given", "partly") or not step.operands:
        return None
    if step.how == "softmax":
        visible = step.operands[0].values > -torch.inf
        counts = visible.sum(dim=1)
        row = int((counts >= min(2, int(counts.max()))).nonzero()[0])
        return row, int(step.values[row].argmax())
    if step.how == "masked":
        hidden = (step.values == -torch.inf).nonzero()
        return (int(hidden[0, 0]), int(hidden[0, 1])) if len(hidden) else (0, 0)
    left = step.operands[0]
    if left.hidden is not None:  # weights: a row with several visible keys shows more
        counts = (~left.hidden).sum(dim=1)
        return int((counts >= min(2, int(counts.max()))).nonzero()[0]), 0
    if step.name in ("scores", "scaled"):
        return 0, int(step.values[0].abs().argmax())  # a number near 0 would show nothing
    if step.how == "concat" and len(step.operands) > 1:
        return 0, step.operands[0].values.shape[1]
    return 0, 0


def _line(step: Step, row: int, column: int, digits: int, max_terms: int | None) -> _Line:
    writers = {
        "product": _product,
        "scaled": _scaled,
        "masked": _added,
        "sum": _added,
        "lookup": _looked_up,
        "softmax": _softmax,
        "slice": _copied,
        "concat": _copied,
    }
    if step.how == "input":
        return _Line("", exact=True, remark=f", {step.origin or 'an input of the calculation'}")
    if step.how in ("given", "partly"):
        whole = "given by the text, not computed" if step.how == "given" else "in a matrix that is partly given"
        return _Line("", exact=True, remark=f", {whole}")
    if step.name == "scaled" and step.operands:  # with a softcap
        return _scaled(step, row, column, digits, max_terms)
    if step.how not in writers:
        return _other(step, row, column)
    return writers[step.how](step, row, column, digits, max_terms)


def _other(step: Step, row: int, column: int) -> _Line:
    """Name the cells that a norm, a rotation or an unknown operation reads."""
    if not step.operands:
        return _Line("")
    parts = [(_part_name(operand.marks, row, column), operand) for operand in step.operands]
    return _Line(
        "",
        remark=f", computed from {' and '.join(f'{part}{operand.symbol}' for part, operand in parts)}",
        latex_remark=r"\text{, computed from }"
        + r"\text{ and }".join(f"\\text{{{part}}}{operand.latex}" for part, operand in parts),
    )


def _looked_up(step: Step, row: int, column: int, digits: int, max_terms: int | None) -> _Line:
    [table] = step.operands
    return _Line(
        "",
        exact=True,
        remark=f", column {column + 1} of the token's row of {table.symbol}",
        latex_remark=f"\\text{{, column {column + 1} of the token's row of }}{table.latex}",
    )


def _product(step: Step, row: int, column: int, digits: int, max_terms: int | None) -> _Line:
    left, right, *bias = step.operands
    formats = [NumberFormat(operand.values, digits) for operand in step.operands]
    factors = list(zip(left.values[row].tolist(), right.values[:, column].tolist(), strict=True))
    kept = [index for index in range(len(factors)) if left.hidden is None or not left.hidden[row, index]]
    if not kept and not bias:
        return _Line("0", remark=", because the query attends to no key", states_value=False)
    terms = [f"{formats[0].bracketed(factors[index][0])} · {formats[1].bracketed(factors[index][1])}" for index in kept]
    exact = all(
        form.is_exact(factor) for index in kept for form, factor in zip(formats[:2], factors[index], strict=True)
    )
    remark = f" (the sum of all {len(terms)} products)" if max_terms is not None and len(terms) > max_terms else ""
    text = _sum(terms, max_terms)
    for form, operand in zip(formats[2:], bias, strict=True):
        value = float(operand.values[0, column])
        text, exact = f"{text} + {form.bracketed(value)}", exact and form.is_exact(value)
    return _Line(text, exact, remark)


def _scaled(step: Step, row: int, column: int, digits: int, max_terms: int | None) -> _Line:
    """Return the right side of the formula with the score in place of its symbol."""
    [scores] = step.operands
    value, form = float(scores.values[row, column]), NumberFormat(scores.values, digits)
    right = step.formula.split(" = ", 1)[-1]
    return _Line(right.replace(scores.symbol, form.bracketed(value), 1), form.is_exact(value))


def _added(step: Step, row: int, column: int, digits: int, max_terms: int | None) -> _Line:
    terms, exact = [], True
    for operand in step.operands:
        value, form = float(operand.values[row, column]), NumberFormat(operand.values, digits)
        terms.append(form.bracketed(value) if terms else form.signed(value))
        exact = exact and form.is_exact(value)
    return _Line(" + ".join(terms), exact)


def _softmax(step: Step, row: int, column: int, digits: int, max_terms: int | None) -> _Line:
    scores, *sinks = step.operands
    values, form = scores.values[row].tolist(), NumberFormat(scores.values, digits)
    visible = [index for index, value in enumerate(values) if value > -torch.inf]
    if column not in visible:
        reason = "the mask hides this key" if visible else "the query attends to no key"
        return _Line("0", remark=f", because {reason}", states_value=False)
    powers = [_power(form, values[index]) for index in visible]
    powers += [_power(NumberFormat(sink.values, digits), float(sink.values[0, 0])) for sink in sinks]
    shown = _sum(powers, max_terms, pinned=visible.index(column))
    remark = f" (the sum over all {len(powers)} terms)" if max_terms is not None and len(powers) > max_terms else ""
    return _Line(f"{_power(form, values[column])} / ({shown})", remark=remark)


def _copied(step: Step, row: int, column: int, digits: int, max_terms: int | None) -> _Line:
    """Return the cell of the operand that a slice or a concatenation takes over."""
    for operand in step.operands:
        source = column + operand.shift
        if 0 <= source < operand.values.shape[1]:
            form = NumberFormat(operand.values, digits)
            return _Line(_cell_name(operand, row, source), form.is_exact(float(operand.values[row, source])))
    return _Line("")


def _power(form: NumberFormat, value: float) -> str:
    return f"e^{form.bracketed(value)}"


def _sum(terms: Sequence[str], max_terms: int | None, pinned: int = 0) -> str:
    """Join terms. A long sum is abbreviated, but keeps the pinned term."""
    if max_terms is None or len(terms) <= max_terms:
        return " + ".join(terms)
    last = len(terms) - 1
    middle = ["…", terms[pinned]] if _LEADING_TERMS <= pinned < last else []
    return " + ".join([*terms[:_LEADING_TERMS], *middle, "…", terms[last]])


def _part_name(marks: str, row: int, column: int) -> str:
    parts = {"row": f"row {row + 1} of ", "column": f"column {column + 1} of ", "all": "all of "}
    return parts.get(marks, f"cell ({row + 1}, {column + 1}) of ")


def _cell_name(matrix: Step | Operand, row: int, column: int) -> str:
    symbol = matrix.symbol if " " not in matrix.symbol else f"({matrix.symbol})"
    return f"{symbol}[{row + 1},{column + 1}]"


def _to_latex(text: str, step: Step) -> str:
    for matrix in (step, *step.operands):  # symbols of matrices, such as Q₁, in front of an index
        latex = matrix.latex_symbol if isinstance(matrix, Step) else matrix.latex
        latex = latex if " " not in matrix.symbol else f"({latex})"
        symbol = matrix.symbol if " " not in matrix.symbol else f"({matrix.symbol})"
        text = re.sub(rf"(?<!\w){re.escape(symbol)}(?=\[\d+,\d+\])", lambda _, latex=latex: latex, text)
    text = re.sub(r"e\^(\([^()]*\)|[\d.]+(?:e[+-]\d+)?)", lambda match: f"e^{{{match[1].strip('()')}}}", text)
    text = re.sub(r"√([\d.]+)", r"\\sqrt{\1}", text).replace("tanh", r"\tanh")
    return "".join(_LATEX_SIGNS.get(letter, letter) for letter in text)
