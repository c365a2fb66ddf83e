"""Marks as text, JSON, Markdown, HTML and CSV, for one student or for a class."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from clearhead._utils.checks import check_choice, describe
from clearhead._utils.fonts import embed_font
from clearhead._utils.text import visible_text
from clearhead.explain.exercises.marks import VERDICTS, ClassMarks, Marks, StepMarks, format_points
from clearhead.explain.render._documents import escape_markdown
from clearhead.explain.render.wording import format_number, short_label

MARKS_FORMATS = ("text", "json", "markdown", "html", "csv")
_MAX_LISTED_CELLS = 5
MORE_EXPECTED_DIGITS = 1  # 0.44 is wrong for 0.428, which would be printed as 0.43
_FORMULA_STARTS = ("=", "+", "-", "@")


def render_marks(marks: Marks | ClassMarks, style: str = "text") -> str:
    """Render the marks of a student or of a class.

    Args:
        marks: the result of `mark()` or `mark_folder()`.
        style: one of `MARKS_FORMATS`. Except for CSV, the reports contain solutions.
    """
    if not isinstance(marks, Marks | ClassMarks):
        raise TypeError(f"marks is {describe(marks)}; expected Marks or ClassMarks")
    check_choice("style", style, MARKS_FORMATS)
    if style == "json":
        return marks.to_json() + "\n"
    group = marks if isinstance(marks, ClassMarks) else ClassMarks((marks,), ())
    if style == "html":  # requires optional packages
        from clearhead.explain.exercises._sheet_html import TEMPLATES

        table = list(class_table(group)) if group is marks else []
        page = TEMPLATES.get_template("marks.html").render(
            group=group, table=table, is_class=group is marks, digits=MORE_EXPECTED_DIGITS, points=format_points
        )
        return embed_font(page)
    if style == "csv":
        return _csv(group)
    return {"text": _text, "markdown": _markdown}[style](group, is_class=group is marks)


def class_table(group: ClassMarks) -> Iterator[list[str]]:
    """Yield the table of a class: the header, a row for each student, a row for each file that cannot be marked."""
    columns = list(dict.fromkeys(step.column_name for marks in group.marks for step in marks.steps))
    yield ["file", "student", "seed", *columns, "points", "possible", "percent", "problem"]
    for marks in group.marks:
        points = {step.column_name: format_points(step.points) for step in marks.steps}
        total = [format_points(marks.points), format_points(marks.possible), _percent(marks)]
        yield [marks.file, marks.student, str(marks.seed), *(points.get(name, "") for name in columns), *total, ""]
    for entry in group.unreadable:
        yield [entry.file, *[""] * (len(columns) + 5), entry.reason]


def listed_cells(step: StepMarks, digits: int) -> list[str]:
    """Return a line for each of the first wrong answers, with the expected number."""
    wrong = [cell for cell in step.cells if cell.verdict == "wrong"]
    lines = [
        f"{short_label(cell.row_label)}, {short_label(cell.column_label)}: {visible_text(cell.answer)},"
        f" expected {format_number(cell.expected, digits + MORE_EXPECTED_DIGITS)}"
        for cell in wrong[:_MAX_LISTED_CELLS]
    ]
    more = len(wrong) - len(lines)
    return [*lines, f"and {more} more"] if more else lines


def _percent(marks: Marks) -> str:
    return f"{100 * marks.points / marks.possible:.1f}".removesuffix(".0")


def _counts(step: StepMarks) -> str:
    return ", ".join(f"{step.count(verdict)} {verdict}" for verdict in VERDICTS if step.count(verdict))


def _csv(group: ClassMarks) -> str:
    """Return CSV. A name that a spreadsheet would read as a formula starts with an apostrophe."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    for row in class_table(group):
        cells = [visible_text(cell) if cell else "" for cell in row]
        writer.writerow([f"'{cell}" if cell.startswith(_FORMULA_STARTS) else cell for cell in cells])
    return output.getvalue()


def _text(group: ClassMarks, *, is_class: bool) -> str:
    if is_class:
        rows = [[visible_text(cell) if cell else "" for cell in row] for row in class_table(group)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join(lines) + "\n"
    [marks] = group.marks
    lines = [f"{visible_text(marks.student)}: {visible_text(marks.title)}, sheet {marks.seed}"]
    for step in marks.steps:
        lines.append(
            f"  {step.title}: {format_points(step.points)} of {format_points(step.possible)} ({_counts(step)})"
        )
        lines += [f"    {detail}" for detail in _details(step, marks.digits)]
    lines.append(f"{_total(marks)}{_verification(marks)}")
    return "\n".join(lines) + "\n"


def _details(step: StepMarks, digits: int) -> list[str]:
    causes = [f"cause: {visible_text(cause.sentence)}" for cause in step.causes]
    return [*causes, *map(visible_text, step.notes), *listed_cells(step, digits)]


def _total(marks: Marks) -> str:
    return f"{format_points(marks.points)} of {format_points(marks.possible)} points ({_percent(marks)} %)"


def _verification(marks: Marks) -> str:
    return "" if marks.verified else "; the given numbers were not compared with the teacher's exercise"


def _markdown(group: ClassMarks, *, is_class: bool) -> str:
    parts = []
    if is_class:
        header, *rows = ([escape_markdown(cell) if cell else "" for cell in row] for row in class_table(group))
        lines = [header, ["---"] * len(header), *rows]
        parts = ["# Marks", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    for marks in group.marks:
        parts.append(f"## {escape_markdown(marks.student)}")
        parts.append(f"{escape_markdown(marks.title)}, sheet {marks.seed}: {_total(marks)}{_verification(marks)}.")
        for step in marks.steps:
            points = f"{format_points(step.points)} of {format_points(step.possible)}"
            details = "".join(f"\n  - {escape_markdown(detail)}" for detail in _details(step, marks.digits))
            parts.append(f"- **{escape_markdown(step.title)}:** {points} ({_counts(step)}){details}")
    return "\n\n".join(parts) + "\n"
