"""Patch of Whisper's `generate` that keeps the model on clearhead.

`generate` requires attention weights for token timestamps. It therefore sets the implementation to "eager" and never
resets it. clearhead also provides the weights, so the patch keeps "clearhead" during the call and afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from clearhead.huggingface._transformers_internals import get_implementation, set_implementation
from clearhead.huggingface.modules import NAME


def keep_implementation() -> None:
    """Wrap the `generate` of all Whisper models."""
    WhisperGenerationMixin.generate = _wrap_generate(WhisperGenerationMixin.generate)


def _wrap_generate(generate: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(generate)
    def wrapped(self: PreTrainedModel, *args: Any, **options: Any) -> Any:
        if get_implementation(self.config) != NAME:
            return generate(self, *args, **options)
        with _kept_on_clearhead(self):
            return generate(self, *args, **options)

    return wrapped


@contextmanager
def _kept_on_clearhead(model: PreTrainedModel) -> Iterator[None]:
    """Undo the change to "eager" before each submodel runs, and at the end."""
    parts = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    with ExitStack() as stack:
        for part in parts:
            stack.callback(_undo_eager, part)
            stack.callback(part.register_forward_pre_hook(_undo_eager).remove)
        yield


def _undo_eager(part: nn.Module, *_: object) -> None:
    config: Any = part.config
    # undo only what `generate` sets: a `watch` that ends meanwhile may set another implementation
    if get_implementation(config) == "eager":
        set_implementation(config, NAME)
