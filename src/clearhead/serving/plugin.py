"""Entry point of the vLLM plugin, which vLLM calls in each of its processes."""

from __future__ import annotations


def register() -> None:
    """Observe attention if the settings ask for it."""
