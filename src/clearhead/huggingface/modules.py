"""The attention modules of a model, by stack and layer, and running them on clearhead for a while."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from clearhead.huggingface.forward import TAPS, Tap, Taps

NAME = "clearhead"
INTERFACE = "ALL_ATTENTION_FUNCTIONS"  # what a module looks up to find the attention function it calls
CROSS = ("cross", "encdec", "encoder_attn", "encoder_decoder")


@dataclass(frozen=True, eq=False)
class Attention:
    """One attention module of a model and its address."""

    stack: str
    layer: int
    name: str  # in the model
    module: nn.Module
    alone: bool  # in its stack, whose layers may then share it

    @property
    def heads(self) -> int | None:
        """How many there are, if it says so."""
        config = getattr(self.module, "config", None)
        for owner in (self.module, config):
            for name in ("num_heads", "num_attention_heads", "n_heads"):
                count = getattr(owner, name, None)
                if isinstance(count, int):
                    return count
        return None


def attention_modules(model: nn.Module) -> list[Attention]:
    """All that go through transformers' AttentionInterface, in module order; a model without one is refused by name.

    Stacks are "encoder", "decoder" and "cross"; where a model has several of a kind, as one for text and one for
    images, the name of the part of its configuration goes before: "vision encoder".
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"model is a {type(model).__name__}; expected a transformers model")
    found = [(name, module) for name, module in model.named_modules() if _uses_interface(type(module))]
    if not found:
        raise ValueError(
            f"{type(model).__name__} does not use transformers' AttentionInterface, so its attention cannot be seen:"
            " it runs its own code whatever attn_implementation says"
        )
    _warn_of_others(model, [name for name, _ in found])
    kinds = [_kind(name, module) for name, module in found]
    parts = [_part(model, module) for _, module in found]
    counted: dict[str, int] = {}
    modules = []
    for (name, module), kind, part in zip(found, kinds, parts, strict=True):
        several = len({p for p, k in zip(parts, kinds, strict=True) if k == kind}) > 1
        stack = f"{part} {kind}" if several and part else kind
        layer = counted.get(stack, 0)
        counted[stack] = layer + 1
        modules.append(Attention(stack, layer, name, module, alone=False))
    return [replace(attention, alone=counted[attention.stack] == 1) for attention in modules]


@contextmanager
def tapped(model: nn.Module, taps: Mapping[nn.Module, Tap]) -> Iterator[None]:
    """The model on clearhead, with something that looks at some of its attention modules; as it was afterwards."""
    modules = attention_modules(model)
    assert isinstance(model, PreTrainedModel)
    configs: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    before = {id(c): (c, c._attn_implementation) for c in configs if hasattr(c, "_attn_implementation")}
    with ExitStack() as stack:
        for module, tap in taps.items():
            own: Taps = module.__dict__.setdefault(TAPS, Taps())
            own.taps.append(tap)
            stack.callback(own.taps.remove, tap)
        for owner in {id(owner): owner for owner in (owner_of(model, attention) for attention in modules)}.values():
            parts = [module for module in owner.modules() if module in taps]
            hook = functools.partial(_new_pass, parts)
            stack.callback(owner.register_forward_pre_hook(hook).remove)
        for config, implementation in before.values():
            stack.callback(setattr, config, "_attn_implementation_internal", implementation)
        model.set_attn_implementation(NAME)
        for attention in modules:
            # a part that was put into the model ready made may hold a configuration that the model does not know of
            config: Any = getattr(attention.module, "config", None)
            if hasattr(config, "_attn_implementation"):
                config._attn_implementation_internal = NAME
        yield


def owner_of(model: nn.Module, attention: Attention) -> nn.Module:
    """The innermost transformers model that an attention module is a part of."""
    parts = attention.name.split(".")
    above = [model.get_submodule(".".join(parts[:depth])) for depth in range(len(parts))]
    return next(module for module in reversed(above) if isinstance(module, PreTrainedModel))


def layer_of(attention: Attention, repeat: int) -> int:
    """The number of the layer that runs, of a module that has run so often in this pass before."""
    if repeat and not attention.alone:
        raise ValueError(
            f"{attention.name} runs several times in one pass beside others: which layer it is is not known"
        )
    return attention.layer + repeat


def _new_pass(modules: list[nn.Module], *_: object) -> None:
    for module in modules:
        module.__dict__[TAPS].runs = 0


@functools.cache
def _uses_interface(kind: type[nn.Module]) -> bool:
    """Whether the code of a module's own methods looks the attention function up."""
    methods = (inspect.unwrap(method) for method in vars(kind).values() if inspect.isfunction(method))
    own = any(INTERFACE in method.__code__.co_names for method in methods)
    if own or "forward" in vars(kind):
        return own
    return any(
        _uses_interface(base) for base in kind.__mro__[1:] if issubclass(base, nn.Module) and "forward" in vars(base)
    )


def _warn_of_others(model: nn.Module, seen: list[str]) -> None:
    """Attention that runs code of its own beside what can be seen, such as LongT5's encoder."""
    others = [
        name
        for name, module in model.named_modules()
        if "Attention" in type(module).__name__
        and type(module).__module__.startswith("transformers.")
        and not any(f"{other}.".startswith(f"{name}.") or f"{name}.".startswith(f"{other}.") for other in seen)
    ]
    kinds = sorted({type(model.get_submodule(name)).__name__ for name in others})
    if kinds:
        warnings.warn(
            f"{type(model).__name__} has {', '.join(kinds)}, which run code of their own: {others[0]}, for one, is not"
            " seen",
            stacklevel=3,
        )


def _kind(name: str, module: nn.Module) -> str:
    lowered = name.lower()
    if getattr(module, "is_cross_attention", False) or any(part in lowered for part in CROSS):
        return "cross"
    parts = lowered.split(".")
    decodes = getattr(getattr(module, "config", None), "is_decoder", False) and getattr(module, "is_causal", False)
    for kind in ("decoder", "encoder"):
        if kind in parts:
            return "decoder" if decodes else kind
    return "decoder" if getattr(module, "is_causal", False) else "encoder"


def _part(model: PreTrainedModel, module: nn.Module) -> str:
    """The part of the model's configuration that a module was made from: "vision" for vision_config."""
    own = getattr(module, "config", None)
    for key in model.config.sub_configs:
        if getattr(model.config, key, None) is own:
            return key.removesuffix("_config")
    return ""
