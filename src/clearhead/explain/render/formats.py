"""Rendering of worked examples in every format."""

from __future__ import annotations

from collections.abc import Callable

from clearhead.explain.render._documents import as_latex, as_markdown
from clearhead.explain.render._json import as_json
from clearhead.explain.render.text import as_text
from clearhead.explain.render.wording import DEFAULT_DIGITS
from clearhead.explain.steps import Trace

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


def _writer(style: str) -> Callable[[Trace, str, int], str]:
    if style == "html":  # requires optional packages
        from clearhead.explain.render._html import as_html

        return as_html
    return {"text": as_text, "markdown": as_markdown, "latex": as_latex}[style]
