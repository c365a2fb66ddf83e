"""Start of observation in a process of vLLM: log handler, metrics, and hooks into the worker."""

# pyright: reportMissingImports=false
from __future__ import annotations

import functools
import os

from clearhead._utils.tested_versions import untested_version
from clearhead.serving._vllm_backends import attach_log_handler, log_once
from clearhead.serving.plugin import RUN_VARIABLE


@functools.cache
def start_process() -> None:
    """Prepare a process of vLLM for observation by environment variable, once."""
    attach_log_handler()
    try:
        from clearhead.serving._prometheus import install as install_collector
        from clearhead.serving._vllm_worker import install as install_hooks
        from clearhead.serving.settings import Settings

        settings = Settings.from_environment()
        assert settings is not None
        install_hooks()
        if settings.metrics:
            install_collector(settings.output, os.environ[RUN_VARIABLE])
    except Exception as error:  # a server must start in any case
        log_once(f"clearhead observes no requests: {error}")


def check_version() -> None:
    """Log a warning if the version of vLLM is later than the tested ones."""
    from vllm import __version__

    sentence = untested_version("vllm", __version__)
    if sentence is not None:
        log_once(sentence)
