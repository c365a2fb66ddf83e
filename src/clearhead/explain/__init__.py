"""Worked examples: attention calculations written out step by step with their numbers, and checks of such texts.

Names are imported on first use, so that the command line can read `BUILT_IN` without importing torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from clearhead.explain._built_in import BUILT_IN

if TYPE_CHECKING:
    from clearhead.explain.audit import Audit, Cause, CellDifference, CheckResult, MatrixComparison
    from clearhead.explain.checking import check
    from clearhead.explain.example import Example
    from clearhead.explain.reading.draft import Draft, Question, load_draft, parse_draft
    from clearhead.explain.real_heads import trace_head
    from clearhead.explain.steps import Operand, Step, Trace
    from clearhead.explain.toml_format import load, parse
    from clearhead.explain.tracing import trace

__all__ = [
    "BUILT_IN",
    "Audit",
    "Cause",
    "CellDifference",
    "CheckResult",
    "Draft",
    "Example",
    "MatrixComparison",
    "Operand",
    "Question",
    "Step",
    "Trace",
    "check",
    "load",
    "load_draft",
    "parse",
    "parse_draft",
    "trace",
    "trace_head",
]

_MODULES = {
    "Audit": "audit",
    "Cause": "audit",
    "CellDifference": "audit",
    "CheckResult": "audit",
    "Draft": "reading.draft",
    "Example": "example",
    "MatrixComparison": "audit",
    "Operand": "steps",
    "Question": "reading.draft",
    "Step": "steps",
    "Trace": "steps",
    "check": "checking",
    "load": "toml_format",
    "load_draft": "reading.draft",
    "parse": "toml_format",
    "parse_draft": "reading.draft",
    "trace": "tracing",
    "trace_head": "real_heads",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'clearhead.explain' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"clearhead.explain.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
