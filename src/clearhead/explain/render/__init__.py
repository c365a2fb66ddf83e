"""Worked calculations as text, HTML, Markdown, LaTeX, JSON and workbooks, and their audits."""

from clearhead.explain.render._arithmetic import cell_arithmetic
from clearhead.explain.render._audit_text import print_audit
from clearhead.explain.render.audits import AUDIT_FORMATS, render_audit
from clearhead.explain.render.formats import FORMATS, render, render_workbook
from clearhead.explain.render.text import print_trace
from clearhead.explain.render.wording import DEFAULT_DIGITS

__all__ = [
    "AUDIT_FORMATS",
    "DEFAULT_DIGITS",
    "FORMATS",
    "cell_arithmetic",
    "print_audit",
    "print_trace",
    "render",
    "render_audit",
    "render_workbook",
]
