"""Course on attention: twelve pages with live calculations and questions, written as self-contained HTML files."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clearhead.explain.course.build import build_course

__all__ = ["build_course"]


def __getattr__(name: str) -> Any:
    # imported on first use, because the command line lists pages without torch
    if name != "build_course":
        raise AttributeError(f"module 'clearhead.explain.course' has no attribute {name!r}")
    return importlib.import_module("clearhead.explain.course.build").build_course
