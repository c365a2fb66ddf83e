"""Entry point of the vLLM plugin, which vLLM calls in each of its processes.

This module imports nothing but the registry of vLLM. Every attention backend is registered by the name of an attribute
of this module, which is the original class unless observation is asked for.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import os
import sys
from typing import Any

VARIABLE = "CLEARHEAD_OBSERVE"
RUN_VARIABLE = "CLEARHEAD_RUN"  # folder of the counters of one server; engine processes inherit it
_ORIGINALS: dict[str, str] = {}  # path of each backend's class before it was replaced


def register() -> None:
    """Replace the attention backends of vLLM by observed ones, which differ only if observation is asked for."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if is_asked():
        from clearhead.serving._vllm_start import start_process

        start_process()
    for backend in AttentionBackendEnum:
        try:
            path = backend.get_path()
        except ValueError:  # a backend that another plugin may define
            continue
        if not path.startswith(f"{__name__}."):
            _ORIGINALS[backend.name] = path
            register_backend(backend, f"{__name__}.{backend.name}")


def is_asked() -> bool:
    """Return whether the environment variable asks for observation."""
    return os.environ.get(VARIABLE, "").strip() not in ("", "0")


def __getattr__(name: str) -> Any:
    """Return the class of an attention backend, observed if the settings of the engine ask for it."""
    if name not in _ORIGINALS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm.config import get_current_vllm_config_or_none
    from vllm.utils.import_utils import resolve_obj_by_qualname

    _select_for_each_engine()
    original = resolve_obj_by_qualname(_ORIGINALS[name])
    config = get_current_vllm_config_or_none()
    if not (is_asked() or "clearhead" in (getattr(config, "additional_config", None) or {})):
        return original
    from clearhead.serving._vllm_backends import observed_backend

    return observed_backend(name, original, config)


def _select_for_each_engine() -> None:
    """Let vLLM select a backend for each engine of a process.

    Its cache would return the backend of the first engine, although the settings of a later one may differ.
    """
    selector: Any = sys.modules.get("vllm.v1.attention.selector")
    select = getattr(getattr(selector, "_cached_get_attn_backend", None), "__wrapped__", None)
    if select is not None:
        selector._cached_get_attn_backend = select
