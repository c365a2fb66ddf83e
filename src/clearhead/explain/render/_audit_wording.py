"""Words, order and number formats that all output formats of an audit share."""

from __future__ import annotations

from clearhead.explain._claims import BIASES, LEARNED_MATRICES
from clearhead.explain._printed_matrix import decimals
from clearhead.explain._recompute import calculation_order
from clearhead.explain.audit import MAX_DIGITS, Audit, CheckResult
from clearhead.explain.render.wording import DEFAULT_DIGITS, STEP_TITLES, format_number

VERDICT_SIGNS = {"agrees": "✓", "differs": "✗", "carried": "→"}
_MATRIX_TITLES = (
    {"mask": "Mask"}
    | {name: f"{name.removesuffix('_weight').capitalize()} matrix W_{name[0].upper()}" for name in LEARNED_MATRICES}
    | {name: f"{name.removesuffix('_bias').capitalize()} bias b_{name[0].upper()}" for name in BIASES}
)


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
    return sorted(
        (result for result in audit.findings if result.verdict == verdict),
        key=lambda result: (calculation_order(result.step, result.head), result.claim or 0),
    )


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
    return max(DEFAULT_DIGITS, min(MAX_DIGITS, 1 + max((decimals(cell) for cell in printed), default=0)))
