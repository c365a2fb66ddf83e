"""Worked examples and audits in notebooks."""

from __future__ import annotations

import html
from collections.abc import Callable

from clearhead._utils.extras import missing_packages


def page_html(shown: object, render: Callable[[str], str], title: str) -> str:
    """Return the page of a calculation or an audit in a frame; its text without the packages of the HTML format.

    Args:
        shown: the object, whose repr is shown if the page would be too large.
        render: renders it as "html" or "text".
        title: title of the frame.
    """
    try:
        if missing_packages("explain"):
            return f"<pre>{html.escape(render('text'))}</pre>"
        page = render("html")
    except ValueError as error:  # too large
        return f"<pre>{html.escape(repr(shown))}\n{html.escape(str(error))}</pre>"
    style = "width: 100%; height: 45rem; border: 0"
    return f'<iframe srcdoc="{html.escape(page)}" title="{html.escape(title)}" style="{style}"></iframe>'
