"""Rendering of worked examples in every format."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from clearhead._utils.text import json_text
from clearhead.explain.render._documents import as_latex, as_markdown
from clearhead.explain.render.text import as_text
from clearhead.explain.render.wording import DEFAULT_DIGITS
from clearhead.explain.steps import Step, Trace

FORMATS = ("text", "html", "markdown", "latex", "json")


def render(trace: Trace, style: str = "text", *, title: str = "A worked example", digits: int | None = None) -> str:
    """Render a calculation as text, HTML, Markdown, LaTeX or JSON.

    Args:
        trace: the calculation.
        style: one of `FORMATS`.
        title: title of the document.
        digits: digits after the decimal point (default: 3; in JSON: all).
    """
    if style == "json":
        steps = [_as_json(step, digits) for step in trace]
        return json_text({"title": title, "steps": steps}) + "\n"
    if style not in FORMATS:
        raise ValueError(f"style is {style!r}; expected one of {', '.join(FORMATS)}")
    return _writer(style)(trace, title, DEFAULT_DIGITS if digits is None else digits)


def _writer(style: str) -> Callable[[Trace, str, int], str]:
    if style == "html":  # requires optional packages
        from clearhead.explain.render._html import as_html

        return as_html
    return {"text": as_text, "markdown": as_markdown, "latex": as_latex}[style]


def _as_json(step: Step, digits: int | None) -> dict[str, Any]:
    def to_number(cell: float) -> float | None:
        if not math.isfinite(cell):
            return None  # JSON has no −inf
        return cell if digits is None else round(cell, digits)

    return {
        "name": step.name,
        "head": step.head,
        "formula": step.formula,
        "shapes": step.shapes,
        "shape": list(step.shape),
        "values": [[to_number(cell) for cell in row] for row in step.values.tolist()],
    }
