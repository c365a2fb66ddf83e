"""Vectors of one token, such as `q_2 = [2, 2]`: rows of a matrix, joined where the text prints no whole matrix."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from clearhead.explain.reading._contexts import MatrixContext
from clearhead.explain.reading._grids import Grid

_JOINED = {
    "input": ("input", "embedding"),
    "query": ("query", "query_weight"),
    "key": ("key", "key_weight"),
    "value": ("value", "value_weight"),
}  # steps whose vectors are joined, unless the text prints one of these matrices


def join_vectors(contexts: list[MatrixContext]) -> list[MatrixContext]:
    """Return the matrices, with vectors of all tokens as one matrix where it is not printed, nor its weights."""
    whole = {step for context in contexts if context.row is None for step in context.steps[:1]}
    vectors: dict[str, list[MatrixContext]] = defaultdict(list)
    for context in contexts:
        if context.row is not None and context.steps[0] in _JOINED and context.head is None:
            vectors[context.steps[0]].append(context)
    inputs = [context.grid.shape[0] for context in contexts if context.row is None and context.steps == ("input",)]
    tokens = inputs[0] if inputs else len(vectors.get("input", []))
    joined = {
        id(group[0]): _join(group)
        for step, group in vectors.items()
        if not whole & set(_JOINED[step]) and _is_complete(group) and len(group) == tokens
    }
    parts = {id(context) for step, group in vectors.items() if id(group[0]) in joined for context in vectors[step]}
    return [
        joined.get(id(context), context) for context in contexts if id(context) in joined or id(context) not in parts
    ]


def _is_complete(group: list[MatrixContext]) -> bool:
    rows = [context.row for context in group]
    first = rows[0]
    return (
        first in (0, 1) and rows == [*range(first, first + len(rows))] and len({_length(part) for part in group}) == 1
    )


def _length(context: MatrixContext) -> int:
    return context.grid.shape[1]


def _join(group: list[MatrixContext]) -> MatrixContext:
    first, last = group[0], group[-1]
    cells = tuple(context.grid.cells[0] for context in group)
    description = first.description if len(group) == 1 else f"{first.description} to {last.description}"
    return replace(first, grid=Grid(first.grid.line, cells), row=None, transposed=False, description=description)
