"""Worked examples: any attention calculation step by step with its numbers, written out and checked.

Names are loaded on first use: the command line reads `BUILT_IN` without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from clearhead.explain._built_in import BUILT_IN

if TYPE_CHECKING:
    from clearhead.explain.audit import Audit, CellDifference, CheckResult
    from clearhead.explain.checking import check
    from clearhead.explain.example import Example
    from clearhead.explain.steps import Operand, Step, Trace
    from clearhead.explain.toml_format import load, parse
    from clearhead.explain.tracing import trace

__all__ = [
    "BUILT_IN",
    "Audit",
    "CellDifference",
    "CheckResult",
    "Example",
    "Operand",
    "Step",
    "Trace",
    "check",
    "load",
    "parse",
    "trace",
]

_MODULES = {
    "Audit": "audit",
    "CellDifference": "audit",
    "CheckResult": "audit",
    "Example": "example",
    "Operand": "steps",
    "Step": "steps",
    "Trace": "steps",
    "check": "checking",
    "load": "toml_format",
    "parse": "toml_format",
    "trace": "tracing",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'clearhead.explain' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"clearhead.explain.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
