"""Answers of questions, recomputed from the calculations that a page shows."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass

from clearhead.explain.course._parts import Goal, Question
from clearhead.explain.steps import Trace

_ROW = re.compile(r"([A-Za-z_]+(?:-\d+)?)\[(\d+)\]")
_CELL = re.compile(_ROW.pattern + r"\[(\d+)\]")
_EXTREME = re.compile(r"(largest|smallest) (\S+)")
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FUNCTIONS = {"sqrt": math.sqrt, "exp": math.exp, "log": math.log, "cos": math.cos, "sin": math.sin}


@dataclass(frozen=True)
class NamedMatrix:
    """A matrix of a calculation with the labels of its columns."""

    values: list[list[float]]
    columns: tuple[str, ...]


def named_matrices(trace: Trace) -> dict[str, NamedMatrix]:
    """Return the matrices of a calculation by id, such as weights-1 for the weights of head 1."""
    matrices = {}
    for step in trace:
        name = step.name if step.head is None else f"{step.name}-{step.head + 1}"
        matrices[name] = NamedMatrix(step.values.tolist(), trace.labels(step.columns, step.shape[1]))
    return matrices


def check_question(question: Question, matrices: Mapping[str, NamedMatrix]) -> None:
    """Raise a ValueError if the answer of a question is wrong for these matrices.

    `check` is an expression of cells such as `weights-1[2][3]`, counted from 1, with + - * / ** and sqrt, exp, log,
    cos, sin. For a choice it is `largest weights-1[2]` or `smallest weights-1[2]`: the label of that column.
    """
    if question.goal and question.goal.matrix:
        if _is_reached(question.goal, _cell(matrices, question.goal.matrix, question.goal.row, question.goal.column)):
            raise ValueError(f"question: the goal on {question.goal.matrix} is reached from the start")
    elif question.check and question.choices:
        label = _extreme_column(question.check, matrices)
        choice = question.choices[question.right - 1]
        if label != choice:
            raise ValueError(f"question: the right choice is {choice!r}, but {question.check} is {label!r}")
    elif question.check and question.answer is not None:
        value = evaluate(question.check, matrices)
        if abs(value - question.answer) > question.tolerance:
            raise ValueError(f"question: answer is {question.answer}, but {question.check} is {value:.6g}")


def evaluate(expression: str, matrices: Mapping[str, NamedMatrix]) -> float:
    """Return the value of an expression of cells."""

    def cell_text(match: re.Match[str]) -> str:
        return f"({_cell(matrices, match[1], int(match[2]), int(match[3]))!r})"

    try:
        return _value(ast.parse(_CELL.sub(cell_text, expression), mode="eval").body)
    except SyntaxError:
        raise ValueError(f"question: check is {expression!r}; expected an expression of cells") from None


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        return _FUNCTIONS[node.func.id](*(_value(argument) for argument in node.args))
    raise ValueError(f"question: check has {ast.unparse(node)!r}; expected cells, numbers, + - * / ** and functions")


def _extreme_column(expression: str, matrices: Mapping[str, NamedMatrix]) -> str:
    extreme = _EXTREME.fullmatch(expression)
    row = extreme and _ROW.fullmatch(extreme[2])
    if not extreme or not row:
        raise ValueError(f"question: check is {expression!r}; expected a row, such as largest weights-1[2]")
    matrix = _matrix(matrices, row[1])
    values = _row(matrix, row[1], int(row[2]))
    column = values.index((max if extreme[1] == "largest" else min)(values))
    return matrix.columns[column]


def _matrix(matrices: Mapping[str, NamedMatrix], name: str) -> NamedMatrix:
    if name not in matrices:
        raise ValueError(f"question: there is no matrix {name!r}; expected one of {', '.join(matrices)}")
    return matrices[name]


def _row(matrix: NamedMatrix, name: str, row: int) -> list[float]:
    if not 1 <= row <= len(matrix.values):
        raise ValueError(f"question: {name} has {len(matrix.values)} rows; row {row} does not exist")
    return matrix.values[row - 1]


def _cell(matrices: Mapping[str, NamedMatrix], name: str, row: int, column: int) -> float:
    values = _row(_matrix(matrices, name), name, row)
    if not 1 <= column <= len(values):
        raise ValueError(f"question: {name} has {len(values)} columns; column {column} does not exist")
    return values[column - 1]


def _is_reached(goal: Goal, value: float) -> bool:
    """Return whether a value satisfies every bound, as question.js decides."""
    return (
        value >= goal.bounds.get("at_least", -math.inf)
        and value <= goal.bounds.get("at_most", math.inf)
        and abs(value - goal.bounds.get("equals", value)) <= goal.tolerance
    )
