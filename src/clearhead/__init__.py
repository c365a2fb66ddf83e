"""clearhead: multi-head attention you can see through.

The public names are loaded when they are first used, so that `import clearhead` and `clearhead --help` do not wait for
torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022, in the order one meets them
    "attention",
    "AttentionWeights",
    "Causal",
    "Window",
    "Padding",
    "Documents",
    "Prefix",
    "Dense",
    "ALiBi",
    "MultiHeadAttention",
    "KVCache",
    "trace",
    "check",
    "record",
    "Recording",
    "view",
    "report",
]

if TYPE_CHECKING:
    from clearhead.biases import ALiBi
    from clearhead.cache import KVCache
    from clearhead.functional import attention
    from clearhead.layer import MultiHeadAttention
    from clearhead.masks import Causal, Dense, Documents, Padding, Prefix, Window
    from clearhead.models import record
    from clearhead.recording import Recording
    from clearhead.viewer.report import report
    from clearhead.viewer.serving import view
    from clearhead.weights import AttentionWeights
    from clearhead.worked.check import check
    from clearhead.worked.trace import trace

_HOMES = {
    "attention": "functional",
    "AttentionWeights": "weights",
    "Causal": "masks",
    "Window": "masks",
    "Padding": "masks",
    "Documents": "masks",
    "Prefix": "masks",
    "Dense": "masks",
    "ALiBi": "biases",
    "MultiHeadAttention": "layer",
    "KVCache": "cache",
    "trace": "worked.trace",
    "check": "worked.check",
    "record": "models",
    "Recording": "recording",
    "view": "viewer.serving",
    "report": "viewer.report",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'clearhead' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"clearhead.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
