"""Rendering of audits in every format."""

from __future__ import annotations

from clearhead._utils.checks import check_int, describe
from clearhead.explain.audit import MAX_DIGITS, Audit
from clearhead.explain.render._audit_markdown import audit_as_markdown
from clearhead.explain.render._audit_text import audit_as_text
from clearhead.explain.render.wording import DEFAULT_DIGITS

AUDIT_FORMATS = ("text", "html", "markdown", "json", "toml")


def render_audit(audit: Audit, style: str = "text", *, digits: int | None = None) -> str:
    """Render the results of `check()`.

    Args:
        audit: the results.
        style: one of `AUDIT_FORMATS`: "text", "json", "markdown" (errata), "html" (the text's matrices with the wrong
            cells marked, and the computed ones), or "toml" (the corrected example).
        digits: digits after the decimal point of computed numbers (default: 3 in text, all in JSON, and otherwise 3
            or one more than the text prints). The TOML format keeps the digits of the text.
    """
    if not isinstance(audit, Audit):
        raise TypeError(f"audit is {describe(audit)}; expected an Audit, the result of check()")
    if digits is not None:
        digits = check_int("digits", digits, least=0, most=MAX_DIGITS)
    if not isinstance(style, str) or style not in AUDIT_FORMATS:
        raise ValueError(f"style is {describe(style)}; expected one of {', '.join(AUDIT_FORMATS)}")
    if style == "json":
        return audit.to_json(digits) + "\n"
    if style == "toml":
        return audit.to_toml()
    if style == "markdown":
        return audit_as_markdown(audit, digits)
    if style == "text":
        return audit_as_text(audit, DEFAULT_DIGITS if digits is None else digits)
    from clearhead.explain.render._audit_html import audit_as_html  # requires optional packages

    return audit_as_html(audit, digits)
