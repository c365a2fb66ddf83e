"""Valid calls of the functions that render audits, whose arguments `wrong_calls.py` replaces one at a time."""

from clearhead import check
from clearhead.explain.render import render_audit
from support.wrong_calls import Call


def audit_calls() -> list[Call]:
    audit = check("two-heads")
    return [
        Call("render_audit", render_audit, lambda: {"audit": audit, "style": "markdown", "digits": 2}),
        Call("Audit.to_json", audit.to_json, lambda: {"digits": 2}),
    ]
