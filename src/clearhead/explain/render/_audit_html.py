"""Audits as self-contained HTML pages: claimed next to computed, wrong cells marked, causes in the margin."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from clearhead._utils.fonts import embed_font
from clearhead._utils.text import count_noun, visible_text
from clearhead.explain.audit import Audit, CellDifference, CheckResult, MatrixComparison
from clearhead.explain.render._audit_wording import (
    VERDICT_SIGNS,
    computed_number,
    digits_for,
    in_calculation_order,
    message_sentence,
    printed_number,
    result_heading,
    result_name,
)
from clearhead.explain.render._html import TEMPLATES
from clearhead.explain.render.wording import format_matrix

_BADGES = {"agrees": "agrees", "differs": "wrong", "carried": "carried"}
_MAX_LINES = 64  # rows or columns of a matrix on the page; those with wrong cells are kept
_MAX_DIFFERENCES = 200  # lines in a list of cells without a matrix


@dataclass(frozen=True)
class _Cell:
    text: str
    kind: str = ""  # CSS classes
    note: str = ""  # shown while the pointer is on the cell
    sign: str = ""
    spoken: str = ""  # the sign for a screen reader


_LEGEND = (
    (_Cell("0.5", "wrong", sign="✗"), "wrong"),
    (_Cell("0.5", "carried", sign="→"), "carried: follows from an earlier wrong number"),
    (_Cell("0.5", "rounded", sign="≈"), "follows from numbers that were rounded earlier"),
    (_Cell("", "blank"), "blank in the text"),
    (_Cell("−∞", "masked"), "masked"),
)


@dataclass(frozen=True)
class _Table:
    caption: str
    shape: str
    columns: list[str]
    rows: list[tuple[str, list[_Cell]]]


@dataclass(frozen=True)
class _Cause:
    name: str
    sentence: str


@dataclass(frozen=True)
class _Result:
    id: str
    position: str
    name: str
    heading: str
    verdict: str
    badge: str
    sign: str
    message: str
    causes: list[_Cause]
    claimed: _Table | None
    computed: _Table | None
    differences: list[list[str]]  # row, column, printed, computed and difference, if there is no matrix
    left_out: str


def audit_as_html(audit: Audit, digits: int | None = None) -> str:
    """Return one self-contained HTML page with keyboard navigation, two themes and a print style."""
    shown = {id(result): _result(position, result, digits) for position, result in enumerate(audit.findings, 1)}
    errors, carried = (
        [shown[id(result)] for result in in_calculation_order(audit, verdict)] for verdict in ("differs", "carried")
    )
    page = TEMPLATES.get_template("audit.html").render(
        title=visible_text(audit.title),
        summary=audit.summary(),
        headline=_headline(len(audit.findings), len(errors)),
        results=list(shown.values()),
        errors=errors,
        carried=carried,
        legend=_legend(shown.values()),
    )
    return embed_font(page)


def _headline(checked: int, errors: int) -> str:
    if not checked:
        return "Nothing to check"
    return f"{count_noun(errors, 'error')} to correct" if errors else "Everything agrees"


def _legend(results: Iterable[_Result]) -> list[tuple[_Cell, str]]:
    """Return the marks that occur on the page."""
    tables = (table for result in results for table in (result.claimed, result.computed) if table is not None)
    kinds = {kind for table in tables for _, cells in table.rows for cell in cells for kind in cell.kind.split()}
    return [(cell, meaning) for cell, meaning in _LEGEND if cell.kind in kinds]


def _result(position: int, result: CheckResult, digits: int | None) -> _Result:
    digits = digits_for(result, digits)
    claimed = computed = None
    differences: list[list[str]] = []
    left_out = ""
    if result.comparison is not None:
        claimed, computed, left_out = _tables(result, result.comparison, digits)
    elif result.cells:
        differences = [_difference(cell, digits) for cell in result.cells[:_MAX_DIFFERENCES]]
        if len(result.cells) > _MAX_DIFFERENCES:
            left_out = f"{count_noun(len(result.cells) - _MAX_DIFFERENCES, 'more cell')} left out."
    return _Result(
        id=f"given-{position}" if result.claim is None else f"claim-{result.claim}",
        position="Given" if result.claim is None else f"Claim {result.claim}",
        name=f"given {result_name(result)}" if result.claim is None else result_name(result),
        heading=result_heading(result),
        verdict=result.verdict,
        badge=_BADGES[result.verdict],
        sign=VERDICT_SIGNS[result.verdict],
        message=message_sentence(result),
        causes=[_Cause(cause.name, visible_text(cause.sentence)) for cause in result.causes],
        claimed=claimed,
        computed=computed,
        differences=differences,
        left_out=left_out,
    )


def _difference(cell: CellDifference, digits: int) -> list[str]:
    labels = [visible_text(label) for label in (cell.row_label, cell.column_label)]
    values = [computed_number(value, digits) for value in (cell.computed, cell.difference)]
    return [*labels, printed_number(cell.printed), *values]


def _tables(result: CheckResult, comparison: MatrixComparison, digits: int) -> tuple[_Table, _Table, str]:
    """Return the claimed and the computed matrix, and a sentence on rows and columns that are left out."""
    differences = {(cell.row, cell.column): cell for cell in result.cells}
    rows, columns = comparison.claimed.shape
    chosen_rows = _chosen(rows, sorted({row for row, _ in differences}))
    chosen_columns = _chosen(columns, sorted({column for _, column in differences}))
    column_labels = [visible_text(comparison.column_labels[column]) for column in chosen_columns]
    texts = format_matrix(comparison.computed, digits)

    def table(caption: str, cell: Callable[[int, int], _Cell]) -> _Table:
        lines = [
            (visible_text(comparison.row_labels[row]), [cell(row, column) for column in chosen_columns])
            for row in chosen_rows
        ]
        return _Table(f"{comparison.symbol} {caption}", f"({rows}, {columns})", column_labels, lines)

    notes: dict[tuple[int, int], str] = {
        (row, column): _note(comparison, row, column, differences.get((row, column)), digits)
        for row in chosen_rows
        for column in chosen_columns
    }

    def claimed_cell(row: int, column: int) -> _Cell:
        return _claimed_cell(comparison, row, column, differences.get((row, column)), notes[row, column])

    def computed_cell(row: int, column: int) -> _Cell:
        kinds = ["right"] if (row, column) in differences else []
        kinds += ["masked"] if math.isinf(comparison.computed[row, column]) else []
        return _Cell(texts[row][column].replace("-", "−"), " ".join(kinds), notes[row, column])

    left_out = ""
    if (len(chosen_rows), len(chosen_columns)) != (rows, columns):
        left_out = (
            f"The page shows {len(chosen_rows)} of {count_noun(rows, 'row')} and {len(chosen_columns)} of"
            f" {count_noun(columns, 'column')}, those with wrong cells first."
        )
    caption = "as printed, transposed" if comparison.transposed else "as printed"
    return table(caption, claimed_cell), table("computed", computed_cell), left_out


def _chosen(count: int, with_errors: Sequence[int]) -> list[int]:
    """Return the indices of the rows or columns to show: all, or those with errors and then the first ones."""
    if count <= _MAX_LINES:
        return list(range(count))
    order = dict.fromkeys([*with_errors, *range(_MAX_LINES)])
    return sorted(list(order)[:_MAX_LINES])


def _claimed_cell(
    comparison: MatrixComparison, row: int, column: int, difference: CellDifference | None, note: str
) -> _Cell:
    if comparison.claimed.blank[row, column]:
        return _Cell("", "blank", note)
    kind = sign = spoken = ""
    if difference is not None and difference.carried_from is not None:
        kind, sign, spoken = "carried", "→", "carried"
    elif difference is not None:
        kind, sign, spoken = "wrong", "✗", "wrong"
    elif comparison.rounded[row, column]:
        kind, sign, spoken = "rounded", "≈", "rounded"
    if math.isinf(comparison.claimed.values[row, column]):
        kind = f"{kind} masked".strip()
    return _Cell(printed_number(comparison.claimed.printed[row][column]), kind, note, sign, spoken)


def _note(comparison: MatrixComparison, row: int, column: int, difference: CellDifference | None, digits: int) -> str:
    """Return the comparison of one cell in words."""
    computed = computed_number(float(comparison.computed[row, column]), digits)
    if comparison.claimed.blank[row, column]:
        return f"blank in the text; computed {computed}"
    parts = [f"printed {printed_number(comparison.claimed.printed[row][column])}", f"computed {computed}"]
    if difference is None:
        parts.append("follows from numbers rounded earlier" if comparison.rounded[row, column] else "agrees")
    elif math.isfinite(difference.difference):
        parts.append(f"difference {computed_number(difference.difference, digits)}")
    if difference is not None and difference.carried_from is not None:
        parts.append(f"carried from {difference.carried_from}")
    return ", ".join(parts)
