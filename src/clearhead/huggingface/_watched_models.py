"""Stacks, layers and padding of transformers models, for `watch`."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from transformers import PreTrainedModel

from clearhead.huggingface._observed_masks import has_known_padding, padding_of_mask
from clearhead.huggingface.lazy_mask import LazyMask
from clearhead.huggingface.modules import attention_modules, kind_of, owner_of
from clearhead.watching.model_adapters import Address, CallPositions, KnownModule
from clearhead.watching.observed import ObservedCall


def adapter_of(model: nn.Module) -> HuggingFaceAdapter | None:
    """Return the adapter of a model; None if no part of it is a transformers model."""
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    return HuggingFaceAdapter(model, parts) if parts else None


def known_modules(model: nn.Module) -> list[KnownModule]:
    """Return the attention modules of a transformers model.

    Raises:
        ValueError: if no module uses the interface.
    """
    return [
        KnownModule(
            attention.name,
            attention.stack,
            attention.layer,
            attention.heads,
            owner_of(model, attention) if attention.shared else None,
        )
        for attention in attention_modules(model)
    ]


class HuggingFaceAdapter:
    """Stacks, layers and padding of one model. Implements `ModelAdapter`."""

    def __init__(self, model: nn.Module, parts: list[PreTrainedModel]) -> None:
        self._model, self._parts = model, parts
        # the innermost transformers model that contains a module, by the id of the module
        self._owners = {id(module): part for part in parts for module in part.modules()}
        self._cross = {id(module) for name, module in model.named_modules() if kind_of(name, module) == "cross"}
        # of the forward pass that is running, by thread and part
        self._last: dict[tuple[int, nn.Module], Bool[Tensor, "batch positions"] | None] = {}
        self._cached: dict[tuple[int, nn.Module], int] = {}

    def __deepcopy__(self, memo: object) -> HuggingFaceAdapter:
        return self  # copying a model copies its forward hooks, which refer to this object

    def modules(self) -> list[KnownModule]:
        if not isinstance(self._model, PreTrainedModel):
            return []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # modules that do not use the interface may still be observed
                return known_modules(self._model)
        except ValueError:  # no module uses the interface
            return []

    def addresses(self) -> dict[str, Address]:
        return {known.name: (known.stack, known.layer) for known in self.modules()}

    @contextmanager
    def attached(self) -> Iterator[None]:
        with ExitStack() as stack:
            for part in self._parts:
                if "attention_mask" in inspect.signature(part.forward).parameters:
                    stack.callback(part.register_forward_pre_hook(self._remember, with_kwargs=True).remove)
            yield

    def padding(self, module: nn.Module, observed: ObservedCall) -> Bool[Tensor, "batch q_len"] | None:
        batch, _, q_len, _ = observed.call.shape
        is_cross = id(module) in self._cross
        if has_known_padding() and not is_cross:
            padding = padding_of_mask()
        else:
            # the mask of a cross-attention covers the other sequence, and some models make masks themselves
            owner = self._owners.get(id(module))
            padding = None if owner is None else self._last.get((threading.get_ident(), owner))
            if padding is not None and padding.shape[1] > q_len and not is_cross:
                padding = padding[:, -q_len:]  # with a KV cache the queries are the last tokens
        return padding if padding is not None and padding.shape == (batch, q_len) else None

    def positions(self, module: nn.Module, q_len: int, kv_len: int) -> CallPositions:
        owner = self._owners.get(id(module))
        start = 0 if owner is None else self._cached.get((threading.get_ident(), owner), 0)
        end = start + q_len
        if id(module) in self._cross:
            return CallPositions(start, end, 0, kv_len)
        if not start and kv_len < end:  # the keys are not the tokens of the queries
            return CallPositions(0, q_len, 0, kv_len)
        if not start and q_len == 1 < kv_len:  # a learned query that pools a sequence
            return CallPositions(0, 1, 0, kv_len)
        return CallPositions(start, end, max(0, end - kv_len), end)

    def _remember(self, part: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            return
        arguments = inspect.signature(part.forward).bind_partial(*args, **kwargs).arguments
        valid = _valid_tokens(arguments.get("attention_mask"))
        # once per forward pass, because bool() synchronizes the device
        self._last[threading.get_ident(), part] = None if valid is None or bool(valid.all()) else ~valid
        cache: Any = arguments.get("past_key_values")
        length = cache.get_seq_length() if hasattr(cache, "get_seq_length") else 0
        self._cached[threading.get_ident(), part] = int(length)


def _valid_tokens(attention_mask: Any) -> Bool[Tensor, "batch positions"] | None:
    """Return the tokens that are not padding, from an attention mask of the user or of `generate`."""
    if isinstance(attention_mask, Mapping):  # one mask per layer type
        return next((valid for mask in attention_mask.values() if (valid := _valid_tokens(mask)) is not None), None)
    if isinstance(attention_mask, LazyMask):
        return attention_mask.valid_queries
    if not isinstance(attention_mask, Tensor):
        return None
    return attention_mask.bool() if attention_mask.ndim == 2 else None
