"""Rendering of worked examples in every format."""

from __future__ import annotations

from collections.abc import Callable

from clearhead._utils.checks import check_int, describe
from clearhead.explain.render._documents import as_latex, as_markdown
from clearhead.explain.render._json import as_json
from clearhead.explain.render.text import as_text
from clearhead.explain.render.wording import DEFAULT_DIGITS
from clearhead.explain.steps import Trace

MAX_DIGITS = 15  # of a number in a workbook
FORMATS = ("text", "html", "markdown", "latex", "json")


def render(trace: Trace, style: str = "text", *, title: str = "A worked example", digits: int | None = None) -> str:
    """Render a calculation as text, HTML, Markdown, LaTeX or JSON.

    Large matrices are shortened, except in JSON, which has all that is needed to rebuild the calculation.

    Args:
        trace: the calculation.
        style: one of `FORMATS`.
        title: title of the document.
        digits: digits after the decimal point (default: 3; in JSON: all).

    Raises:
        ValueError: if there is no such format, or the document would be too large.
    """
    if style == "json":
        return as_json(trace, title, digits)
    if style not in FORMATS:
        raise ValueError(f"style is {style!r}; expected one of {', '.join(FORMATS)}")
    return _writer(style)(trace, title, DEFAULT_DIGITS if digits is None else digits)


def render_workbook(trace: Trace, *, title: str = "A worked example", digits: int | None = None) -> bytes:
    """Render a calculation as an xlsx file: inputs are numbers, and every step is computed by formulas.

    Args:
        trace: the whole calculation, with all steps and heads.
        title: title of the workbook.
        digits: digits after the decimal point that the cells show (default: 3). The numbers are not rounded.

    Raises:
        ValueError: if steps were left out, or the workbook would be too large.
    """
    from clearhead.explain.render._workbook import as_workbook  # requires an optional package

    if not isinstance(trace, Trace):
        raise TypeError(f"trace is {describe(trace)}; expected a Trace")
    if not isinstance(title, str):
        raise TypeError(f"title is {describe(title)}; expected a text")
    digits = DEFAULT_DIGITS if digits is None else check_int("digits", digits, least=0)
    if digits > MAX_DIGITS:
        raise ValueError(f"digits is {digits}; expected at most {MAX_DIGITS}")
    return as_workbook(trace, title, digits)


def _writer(style: str) -> Callable[[Trace, str, int], str]:
    if style == "html":  # requires optional packages
        from clearhead.explain.render._html import as_html

        return as_html
    return {"text": as_text, "markdown": as_markdown, "latex": as_latex}[style]
