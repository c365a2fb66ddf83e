"""Words, order and number formats that all output formats of an audit share."""

from __future__ import annotations

from clearhead.explain._claims import CLAIMABLE_MATRICES, LEARNED_MATRICES
from clearhead.explain._recompute import source_matrices
from clearhead.explain.audit import MAX_DIGITS, Audit, Cause, CheckResult, MatrixComparison
from clearhead.explain.render.wording import DEFAULT_DIGITS, STEP_TITLES, format_number

VERDICT_SIGNS = {"agrees": "✓", "differs": "✗", "carried": "→"}
_MATRIX_TITLES = {"mask": "Mask"} | {
    name: f"{name.removesuffix('_weight').capitalize()} matrix W_{name[0].upper()}" for name in LEARNED_MATRICES
}
_MATRIX_ORDER = {name: index for index, name in enumerate(CLAIMABLE_MATRICES)}
_MAX_LISTED_CELLS = 8


def result_name(result: CheckResult) -> str:
    """Return the claim, step and head of a result, such as "claim 5, query, head 1"."""
    head = "" if result.head is None else f", head {result.head + 1}"
    return f"{result.step}{head}" if result.claim is None else f"claim {result.claim}, {result.step}{head}"


def result_heading(result: CheckResult) -> str:
    """Return a heading without the claim, such as "Queries, head 1"."""
    title = STEP_TITLES.get(result.step) or _MATRIX_TITLES.get(result.step, result.step)
    return title if result.head is None else f"{title}, head {result.head + 1}"


def in_calculation_order(audit: Audit, verdict: str) -> list[CheckResult]:
    """Return the results with a verdict, each after those whose matrices it is computed from."""

    def order(result: CheckResult) -> tuple[int, ...]:
        step = result.step
        return len(source_matrices(step)), _MATRIX_ORDER.get(step, 0), result.head or 0, result.claim or 0

    return sorted((result for result in audit.findings if result.verdict == verdict), key=order)


def message_sentence(result: CheckResult) -> str:
    """Return the message of a result as a sentence."""
    message = f"shape {result.message}" if result.message.startswith("(") else result.message
    return f"{message[:1].upper()}{message[1:]}."


def printed_number(printed: str) -> str:
    """Return a printed number with the symbol for infinity and a minus sign."""
    return printed.replace("Infinity", "∞").replace("-", "−")


def computed_number(value: float, digits: int) -> str:
    """Format a computed number with a minus sign."""
    return format_number(value, digits).replace("-", "−")


def digits_for(result: CheckResult, digits: int | None) -> int:
    """Return the digits for computed numbers: as requested, or at least one more than the text prints."""
    if digits is not None:
        return digits
    printed = [cell.printed for cell in result.cells]
    if result.comparison is not None:
        printed = [cell for row in result.comparison.claimed.printed for cell in row]
    return max(DEFAULT_DIGITS, min(MAX_DIGITS, 1 + max((_decimals(cell) for cell in printed), default=0)))


def _decimals(printed: str) -> int:
    """Return the number of digits after the point."""
    return len(printed.upper().partition("E")[0].partition(".")[2])


def exceptions_sentence(cause: Cause, result: CheckResult) -> str:
    """Return a sentence on the cells that a cause does not explain, or an empty string."""
    if not cause.exceptions:
        return ""
    names = [_cell_name(row, column, result.comparison) for row, column in cause.exceptions[:_MAX_LISTED_CELLS]]
    left_out = len(cause.exceptions) - len(names)
    more = f", and {left_out} more" if left_out else ""
    return f"It does not explain {'; '.join(names)}{more}."


def _cell_name(row: int, column: int, comparison: MatrixComparison | None) -> str:
    if comparison is None or comparison.transposed:  # the labels are those of the computed matrix
        return f"row {row + 1}, column {column + 1}"
    return f"row {comparison.row_labels[row]}, column {comparison.column_labels[column]}"
