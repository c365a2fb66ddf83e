"""Sheets for students in every format. No format contains a solution."""

from __future__ import annotations

from clearhead._utils.checks import check_bool, check_choice
from clearhead.explain.exercises._sheet_documents import latex_sheet, markdown_sheet
from clearhead.explain.exercises.answer_file import to_toml
from clearhead.explain.exercises.exercise import Exercise, check_exercise

SHEET_FORMATS = ("html", "markdown", "latex", "toml")


def render_sheet(exercise: Exercise, style: str = "html", *, self_check: bool = False) -> str:
    """Render an exercise as a sheet for students, without solutions.

    Args:
        exercise: the exercise.
        style: one of `SHEET_FORMATS`. The TOML sheet is also the teacher's exercise file for `mark()`.
        self_check: let the HTML page mark the answers. It recomputes the calculation from the given numbers.
    """
    check_exercise(exercise)
    check_choice("style", style, SHEET_FORMATS)
    check_bool("self_check", self_check)
    if style == "html":  # requires optional packages
        from clearhead.explain.exercises._sheet_html import html_sheet

        return html_sheet(exercise, self_check=self_check)
    if self_check:
        raise ValueError(f"self_check is True, but a sheet in {style} cannot mark answers; expected style html")
    return {"markdown": markdown_sheet, "latex": latex_sheet, "toml": to_toml}[style](exercise)
