"""Whisper's `generate` stays on clearhead.

For token timestamps it needs attention weights, so it sets the implementation to "eager" and leaves it there. clearhead
has the weights too: under "clearhead" the model keeps its implementation, during the call and afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from clearhead.huggingface.modules import NAME


def keep_implementation() -> None:
    """Wrap the `generate` of all Whisper models."""
    WhisperGenerationMixin.generate = _keeping(WhisperGenerationMixin.generate)


def _keeping(generate: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(generate)
    def wrapped(self: PreTrainedModel, *args: Any, **options: Any) -> Any:
        if self.config._attn_implementation != NAME:
            return generate(self, *args, **options)
        with _kept(self):
            return generate(self, *args, **options)

    return wrapped


@contextmanager
def _kept(model: PreTrainedModel) -> Iterator[None]:
    """Undo the change to "eager" before each part of a model runs, and at the end."""
    parts = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    with ExitStack() as stack:
        for part in parts:
            stack.callback(_set, part)
            stack.callback(part.register_forward_pre_hook(_set).remove)
        yield


def _set(part: nn.Module, *_: object) -> None:
    config: Any = part.config
    if config._attn_implementation == "eager":  # what `generate` has set; a `watch` may end meanwhile and set another
        config._attn_implementation_internal = NAME
