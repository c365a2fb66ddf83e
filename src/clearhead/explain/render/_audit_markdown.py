"""Audits as Markdown errata: each new error with its wrong cells and causes, then what follows from the errors."""

from __future__ import annotations

from collections.abc import Iterator

from clearhead._utils.text import count_noun
from clearhead.explain.audit import Audit, CheckResult
from clearhead.explain.render._audit_wording import (
    computed_number,
    digits_for,
    in_calculation_order,
    message_sentence,
    printed_number,
    result_heading,
    result_name,
)
from clearhead.explain.render._documents import escape_markdown
from clearhead.explain.render.wording import short_label

MAX_LISTED_CELLS = 12  # in the table of one claim


def audit_as_markdown(audit: Audit, digits: int | None = None) -> str:
    """Return the errata of a text, with the first error in the order of calculation first."""
    errors, carried = (in_calculation_order(audit, verdict) for verdict in ("differs", "carried"))
    parts = [f"# Errata of {escape_markdown(audit.title)}", f"{audit.summary()}."]
    for position, result in enumerate(errors, 1):
        parts.append(f"## {position}. {_entry_heading(result)}")
        parts += _entry(result, digits)
    if carried:
        lines = [f"- {escape_markdown(f'{result_name(result)}: {result.message}')}." for result in carried]
        parts += ["## Follows from these errors", "\n".join(lines)]
    agreeing = [result for result in audit.findings if result.verdict == "agrees"]
    if agreeing and not audit.agrees:
        verb = "agrees" if len(agreeing) == 1 else "agree"
        parts += ["## Agrees", f"{len(agreeing)} of {len(audit.findings)} checked {verb} with the calculation."]
    return "\n\n".join(parts) + "\n"


def _entry_heading(result: CheckResult) -> str:
    return f"{result_heading(result)} ({'given' if result.claim is None else f'claim {result.claim}'})"


def _entry(result: CheckResult, digits: int | None) -> Iterator[str]:
    yield escape_markdown(message_sentence(result))
    if result.cells:
        yield _cell_table(result, digits_for(result, digits))
        left_out = len(result.cells) - MAX_LISTED_CELLS
        if left_out > 0:
            yield f"… and {count_noun(left_out, 'more cell')}."
    if result.causes:
        several = len(result.causes) > 1
        lines = [cause.sentence for cause in result.causes]
        yield "Possible causes:" if several else f"**Cause:** {escape_markdown(lines[0])}"
        if several:
            yield "\n".join(f"- {escape_markdown(line)}" for line in lines)


def _cell_table(result: CheckResult, digits: int) -> str:
    carried = any(cell.carried_from for cell in result.cells)
    lines = [["row", "column", "printed", "computed"], [":--", ":--", "--:", "--:"]]
    for cell in result.cells[:MAX_LISTED_CELLS]:
        labels = [escape_markdown(short_label(label)) for label in (cell.row_label, cell.column_label)]
        lines.append([*labels, printed_number(cell.printed), computed_number(cell.computed, digits)])
    if carried:
        sources = [cell.carried_from or "" for cell in result.cells[:MAX_LISTED_CELLS]]
        column = ["carried from", ":--", *(escape_markdown(source) if source else "" for source in sources)]
        lines = [[*line, entry] for line, entry in zip(lines, column, strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
