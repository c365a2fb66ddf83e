"""Most probable tokens that the language-model head of a transformers model predicts, at chosen positions."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from clearhead._utils.evaluating import evaluating
from clearhead._utils.torch_internals import version_of
from clearhead.huggingface._language_heads import task_of
from clearhead.recording.next_tokens import TopTokens

MAX_LOGITS = 2**24  # logits computed at once: 64 MiB in float32
_UNUSED = ("hidden_states", "attentions", "past_key_values")  # parts of an output that heads do not read


class FinalStates:
    """Output of a model's last layer in one forward pass.

    Args:
        model: a transformers model, with or without a language-model head.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        names = (getattr(model, "base_model_prefix", ""), "model")  # Llama 4's prefix is that of another class
        named = [name for name in names if isinstance(getattr(model, name, None), nn.Module)]
        self._base = named[0] if named and task_of(model) in ("causal", "masked") else None
        self._output: Any = None

    @property
    def base(self) -> nn.Module | None:
        """Model without its head; None if it has no head that predicts tokens."""
        return None if self._base is None else getattr(self._model, self._base)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the output of the base model within a `with` block, if the model has a head."""
        base, thread = self.base, threading.get_ident()

        def keep(module: nn.Module, inputs: tuple, output: Any) -> None:
            if threading.get_ident() == thread:  # another thread may run the same model
                self._output = output

        inner = getattr(base, "decoder", None)  # OPT and BART call the decoder of their base model
        handles = [part.register_forward_hook(keep) for part in (base, inner) if isinstance(part, nn.Module)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def head(self, ids: Int[Tensor, "1 tokens"]) -> PredictingHead | None:
        """Return the head with the final states of a text; None for a model without a head."""
        if self._base is None or self._output is None:
            return None
        return PredictingHead(self._model, self._base, self._output, ids)


class PredictingHead:
    """Language-model head, with the final states of one text and without the layers of the model.

    The head runs by the model's `forward` method, in a shallow copy whose base model returns the states of the chosen
    positions. Scales and caps of the logits are therefore those of the model, and the model itself does not change.

    Args:
        model: a transformers model with a language-model head.
        base: name of its base model.
        output: output of the base model for the text.
        ids: token ids of the text.
    """

    def __init__(self, model: Any, base: str, output: Any, ids: Int[Tensor, "1 tokens"]) -> None:
        self._base, self._output, self._ids = base, output, ids
        self._model = _with_base(model, base, nn.Identity())
        self._versions = self._parameter_versions()

    @torch.no_grad()
    def predict(self, positions: Sequence[int]) -> TopTokens:
        """Return the most probable tokens at some positions. At most `MAX_LOGITS` logits exist at once.

        Raises:
            RuntimeError: if the parameters of the head have changed since the model ran.
        """
        if self._parameter_versions() != self._versions:
            raise RuntimeError(
                "the model's head was changed in place after the recording, so its next tokens can no longer be"
                " computed; save the recording before training the model"
            )
        parts, start, step = [], 0, 1  # the size of the vocabulary is known after the first step
        while start < len(positions):
            chosen = positions[start : start + step]
            logits = self._logits(torch.tensor(chosen))
            parts.append(TopTokens.of(logits[0], chosen))
            start, step = start + step, max(1, MAX_LOGITS // logits.shape[-1])
        return TopTokens.join(parts)

    def _logits(self, positions: Int[Tensor, " positions"]) -> Tensor:
        ids, states = self._ids, self._output[0]
        output = _with_states(self._output, states[:, positions.to(states.device)])
        model = _with_base(self._model, self._base, _Replay(output))
        with evaluating(model):
            # the method of the class, because accelerate replaces that of the instance by one bound to the whole model
            forward = type(model).forward
            return forward(model, input_ids=ids[:, positions.to(ids.device)], use_cache=False, return_dict=True).logits

    def _parameter_versions(self) -> list[int]:
        return [-1 if parameter.is_inference() else version_of(parameter) for parameter in self._model.parameters()]


class _Replay(nn.Module):
    """Base model that returns a given output."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self._given = output

    def forward(self, *_: object, **__: object) -> Any:
        return self._given

    @property
    def decoder(self) -> _Replay:
        return self


def _with_base(model: Any, name: str, base: nn.Module) -> Any:
    """Return a shallow copy of a model with another base model."""
    copied = copy.copy(model)
    copied._modules = {**model._modules, name: base}  # `copy` shares the dictionary of submodules
    return copied


def _with_states(output: Any, states: Tensor) -> Any:
    """Return the output of a base model with other final states."""
    if isinstance(output, tuple):
        return (states, *output[1:])
    parts = {name: part for name, part in output.items() if name not in _UNUSED}
    return type(output)(**{**parts, "last_hidden_state": states})
