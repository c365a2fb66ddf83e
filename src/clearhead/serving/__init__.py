"""Attention of live requests of an inference server: a plugin for vLLM.

Names are imported on first use, so that a server that is not observed imports nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

__all__ = [
    "RequestOptions",
    "SeenRequest",
    "SeenRequests",
    "Settings",
    "observe",
    "read_requests",
    "record_generation",
]

if TYPE_CHECKING:
    from clearhead.serving.engine import observe, record_generation
    from clearhead.serving.results import SeenRequest, SeenRequests, read_requests
    from clearhead.serving.settings import RequestOptions, Settings

_MODULES = {
    "observe": "engine",
    "record_generation": "engine",
    "SeenRequest": "results",
    "SeenRequests": "results",
    "read_requests": "results",
    "RequestOptions": "settings",
    "Settings": "settings",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'clearhead.serving' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"clearhead.serving.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
