"""Worked examples in notebooks."""

from __future__ import annotations

import html

from clearhead._utils.extras import missing_packages
from clearhead.explain.render.formats import render
from clearhead.explain.steps import Trace


def trace_html(trace: Trace) -> str:
    """Return the page of a calculation in a frame, or its text if the packages of the HTML format are missing."""
    try:
        if missing_packages("explain"):
            return f"<pre>{html.escape(render(trace, 'text'))}</pre>"
        page = render(trace, "html")
    except ValueError as error:  # too large
        return f"<pre>{html.escape(repr(trace))}\n{html.escape(str(error))}</pre>"
    style = "width: 100%; height: 40rem; border: 0"
    return f'<iframe srcdoc="{html.escape(page)}" title="A worked example" style="{style}"></iframe>'
