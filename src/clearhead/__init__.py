"""clearhead: multi-head attention you can see through.

Public names are imported on first use, so that `import clearhead` and `clearhead --help` do not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from clearhead._utils.version import __version__ as __version__

__all__ = [  # noqa: RUF022, operator first, then layers, then tools
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
    "watch",
    "view",
    "report",
]

if TYPE_CHECKING:
    from clearhead.explain.checking import check
    from clearhead.explain.tracing import trace
    from clearhead.functional import attention
    from clearhead.models import record
    from clearhead.nn.attention import MultiHeadAttention
    from clearhead.nn.kv_cache import KVCache
    from clearhead.ops.alibi import ALiBi
    from clearhead.ops.masks import Causal, Dense, Documents, Padding, Prefix, Window
    from clearhead.recording.recording import Recording
    from clearhead.viewer.report.export import report
    from clearhead.viewer.server.serve import view
    from clearhead.watching.watcher import watch
    from clearhead.weights.matrix import AttentionWeights

_MODULES = {
    "attention": "functional",
    "AttentionWeights": "weights.matrix",
    "Causal": "ops.masks",
    "Window": "ops.masks",
    "Padding": "ops.masks",
    "Documents": "ops.masks",
    "Prefix": "ops.masks",
    "Dense": "ops.masks",
    "ALiBi": "ops.alibi",
    "MultiHeadAttention": "nn.attention",
    "KVCache": "nn.kv_cache",
    "trace": "explain.tracing",
    "check": "explain.checking",
    "record": "models",
    "Recording": "recording.recording",
    "watch": "watching.watcher",
    "view": "viewer.server.serve",
    "report": "viewer.report.export",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'clearhead' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"clearhead.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
