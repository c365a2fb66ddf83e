"""Attention modules of a transformers model by stack and layer, and hooks on them."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from clearhead.huggingface._hooks import AttentionHook, HookSet, attach_hooks
from clearhead.huggingface._transformers_internals import (
    get_implementation,
    has_implementation,
    set_implementation,
    uses_interface,
)
from clearhead.watching.model_adapters import CROSS_ATTENTION_NAMES

NAME = "clearhead"


@dataclass(frozen=True, eq=False)
class AttentionModule:
    """Attention module of a model, with its stack and layer.

    Attributes:
        stack: "encoder", "decoder" or "cross", with a prefix if the model has several of a kind.
        layer: index of the layer in its stack.
        name: name of the module in the model, as in `named_modules()`.
        module: the module itself.
        shared: True if all layers of the stack share the module.
    """

    stack: str
    layer: int
    name: str
    module: nn.Module
    shared: bool

    @property
    def is_cross(self) -> bool:
        """True for cross-attention, whose keys are not the tokens of its queries."""
        return self.stack.endswith("cross")

    @property
    def heads(self) -> int | None:
        """Number of heads; None if neither the module nor its configuration contains it."""
        config = getattr(self.module, "config", None)
        for owner in (self.module, config):
            for name in ("num_heads", "num_attention_heads", "n_heads"):
                count = getattr(owner, name, None)
                if isinstance(count, int):
                    return count
        return None


def attention_modules(model: nn.Module) -> list[AttentionModule]:
    """Return the modules of a model that use transformers' AttentionInterface, in module order.

    Stacks are "encoder", "decoder" and "cross". If a model has several of a kind, the name of the sub-configuration
    is a prefix, as in "vision encoder".

    Raises:
        ValueError: if no module uses the interface.
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"model is a {type(model).__name__}; expected a transformers model")
    named = [(name, module) for name, module in model.named_modules() if uses_interface(type(module))]
    if not named:
        raise ValueError(
            f"{type(model).__name__} does not use transformers' AttentionInterface, so clearhead cannot read its"
            " attention: it runs its own attention code and ignores attn_implementation"
        )
    _warn_of_others(model, [name for name, _ in named])
    kinds = [kind_of(name, module) for name, module in named]
    parts = [_part(model, module) for _, module in named]
    layer_counts: dict[str, int] = {}
    modules = []
    for (name, module), kind, part in zip(named, kinds, parts, strict=True):
        several = len({p for p, k in zip(parts, kinds, strict=True) if k == kind}) > 1
        stack = f"{part} {kind}" if several and part else kind
        layer = layer_counts.get(stack, 0)
        layer_counts[stack] = layer + 1
        modules.append(AttentionModule(stack, layer, name, module, shared=False))
    return [replace(a, shared=layer_counts[a.stack] == 1 and _layers_configured(a.module) > 1) for a in modules]


@contextmanager
def hooked(model: nn.Module, hooks: Mapping[nn.Module, AttentionHook]) -> Iterator[None]:
    """Run a model on clearhead, with hooks on some of its attention modules, within a `with` block."""
    modules = attention_modules(model)
    hook_set = HookSet(hooks)
    with ExitStack() as stack:
        stack.enter_context(attach_hooks(hook_set))
        for owner in {id(owner): owner for owner in (owner_of(model, attention) for attention in modules)}.values():
            stack.callback(owner.register_forward_pre_hook(functools.partial(_start_pass, hook_set)).remove)
        stack.enter_context(_on_clearhead(model, modules))
        yield


@dataclass(eq=False)
class _Switched:
    """Configuration switched to clearhead, its previous implementation, and the number of active `with` blocks."""

    config: Any
    before: str | None
    users: int = 0


_SWITCHED: dict[int, _Switched] = {}  # by the id of the configuration, which is not hashable
_LOCK = threading.Lock()


@contextmanager
def _on_clearhead(model: nn.Module, modules: list[AttentionModule]) -> Iterator[None]:
    """Run a model on clearhead. Restore the previous implementation when the last of several `with` blocks ends."""
    assert isinstance(model, PreTrainedModel)
    all_configs: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    configs = {id(config): config for config in all_configs if has_implementation(config)}
    with _LOCK:
        for key, config in configs.items():
            _SWITCHED.setdefault(key, _Switched(config, get_implementation(config))).users += 1
    try:
        with _LOCK:
            model.set_attn_implementation(NAME)
            for attention in modules:
                # a submodule built separately may have a configuration that set_attn_implementation does not reach
                config: Any = getattr(attention.module, "config", None)
                if has_implementation(config):
                    set_implementation(config, NAME)
        yield
    finally:
        with _LOCK:
            for key in configs:
                _SWITCHED[key].users -= 1
                if not _SWITCHED[key].users:
                    switched = _SWITCHED.pop(key)
                    set_implementation(switched.config, switched.before)


def owner_of(model: nn.Module, attention: AttentionModule) -> nn.Module:
    """Return the innermost transformers model that contains an attention module."""
    parts = attention.name.split(".")
    above = [model.get_submodule(".".join(parts[:depth])) for depth in range(len(parts))]
    return next(module for module in reversed(above) if isinstance(module, PreTrainedModel))


def _start_pass(hook_set: HookSet, *_: object) -> None:
    hook_set.start_pass()


def _warn_of_others(model: nn.Module, visible: list[str]) -> None:
    """Warn about attention modules that do not use the interface, such as those of LongT5's encoder."""
    others = [
        name
        for name, module in model.named_modules()
        if "Attention" in type(module).__name__
        and type(module).__module__.startswith("transformers.")
        and not any(f"{other}.".startswith(f"{name}.") or f"{name}.".startswith(f"{other}.") for other in visible)
    ]
    kinds = sorted({type(model.get_submodule(name)).__name__ for name in others})
    if kinds:
        warnings.warn(
            f"{type(model).__name__} contains {', '.join(kinds)}, which do not use AttentionInterface: the attention"
            f" of {others[0]} and similar modules is not observed",
            stacklevel=3,
        )


def _layers_configured(module: nn.Module) -> int:
    """Return the number of layers in the configuration of a module (default: 1)."""
    config = getattr(module, "config", None)
    counts = (getattr(config, name, None) for name in ("num_hidden_layers", "num_layers", "n_layers", "n_layer"))
    return next((count for count in counts if isinstance(count, int)), 1)


def kind_of(name: str, module: nn.Module) -> str:
    """Return "encoder", "decoder" or "cross" for an attention module, from its name and attributes."""
    lowered = name.lower()
    if getattr(module, "is_cross_attention", False) or any(part in lowered for part in CROSS_ATTENTION_NAMES):
        return "cross"
    parts = lowered.split(".")
    decodes = getattr(getattr(module, "config", None), "is_decoder", False) and getattr(module, "is_causal", False)
    for kind in ("decoder", "encoder"):
        if kind in parts:
            return "decoder" if decodes else kind
    return "decoder" if getattr(module, "is_causal", False) else "encoder"


def _part(model: PreTrainedModel, module: nn.Module) -> str:
    """Return the name of a module's sub-configuration: "vision" for `vision_config`; "" for the main one."""
    module_config = getattr(module, "config", None)
    for key in model.config.sub_configs:
        if getattr(model.config, key, None) is module_config:
            return key.removesuffix("_config")
    return ""
