"""Valid calls of the functions that render audits and workbooks: `wrong_calls.py` replaces one argument at a time."""

from clearhead import check
from clearhead.explain import load
from clearhead.explain.render import render_audit, render_workbook
from support.wrong_calls import Call


def audit_calls() -> list[Call]:
    audit, trace = check("two-heads"), load("score-112").trace()
    return [
        Call("render_audit", render_audit, lambda: {"audit": audit, "style": "markdown", "digits": 2}),
        Call("render_workbook", render_workbook, lambda: {"trace": trace, "title": "a title", "digits": 2}),
        Call("Audit.to_json", audit.to_json, lambda: {"digits": 2}),
    ]
