"""Start of observation in a process of vLLM: log handler, metrics, and hooks into the worker."""

# pyright: reportMissingImports=false
from __future__ import annotations

import functools

from clearhead._utils.tested_versions import untested_version
from clearhead.serving._vllm_backends import attach_log_handler, log_once


@functools.cache
def start_process() -> None:
    """Prepare a process of vLLM for observation by environment variable, once."""
    attach_log_handler()
    try:
        from clearhead.serving._prometheus import install as install_collector
        from clearhead.serving._vllm_worker import install as install_hooks
        from clearhead.serving.run_folder import run_folder
        from clearhead.serving.settings import Settings

        settings = Settings.from_environment()
        assert settings is not None
        install_hooks()
        folder = run_folder()
        if settings.metrics:
            install_collector(folder)
    except Exception as error:  # a server must start in any case
        log_once(f"clearhead observes no requests: {error}")


def check_version() -> None:
    """Log a warning if the version of vLLM is later than the tested ones."""
    from vllm import __version__

    sentence = untested_version("vllm", __version__)
    if sentence is not None:
        log_once(sentence)
