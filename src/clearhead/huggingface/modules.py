"""The attention modules of a model, by stack and layer, and running them on clearhead for a while."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from clearhead.huggingface.forward import TAPS, Tap

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
    kinds = [_kind(name, module) for name, module in found]
    parts = [_part(model, module) for _, module in found]
    counted: dict[str, int] = {}
    modules = []
    for (name, module), kind, part in zip(found, kinds, parts, strict=True):
        several = len({p for p, k in zip(parts, kinds, strict=True) if k == kind}) > 1
        stack = f"{part} {kind}" if several and part else kind
        layer = counted.get(stack, 0)
        counted[stack] = layer + 1
        modules.append(Attention(stack, layer, name, module))
    return modules


@contextmanager
def tapped(model: nn.Module, taps: Mapping[nn.Module, Tap]) -> Iterator[None]:
    """The model on clearhead, with something that looks at some of its attention modules; as it was afterwards."""
    modules = attention_modules(model)
    assert isinstance(model, PreTrainedModel)
    configs = {
        id(c): c for c in (getattr(m, "config", None) for m in model.modules()) if hasattr(c, "_attn_implementation")
    }
    before = [(config, config._attn_implementation) for config in configs.values()]  # pyright: ignore[reportOptionalMemberAccess]
    for module, tap in taps.items():
        module.__dict__.setdefault(TAPS, []).append(tap)
    try:
        model.set_attn_implementation(NAME)
        for attention in modules:
            config = getattr(attention.module, "config", None)
            if getattr(config, "_attn_implementation", NAME) != NAME:
                raise ValueError(f"{attention.name} of {type(model).__name__} cannot be set to {NAME!r}")
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation_internal = implementation  # pyright: ignore[reportOptionalMemberAccess]
        for module, tap in taps.items():
            module.__dict__[TAPS].remove(tap)


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


def _kind(name: str, module: nn.Module) -> str:
    lowered = name.lower()
    if getattr(module, "is_cross_attention", False) or any(part in lowered for part in CROSS):
        return "cross"
    parts = lowered.split(".")
    for kind in ("decoder", "encoder"):
        if kind in parts:
            return kind
    return "decoder" if getattr(module, "is_causal", False) else "encoder"


def _part(model: PreTrainedModel, module: nn.Module) -> str:
    """The part of the model's configuration that a module was made from: "vision" for vision_config."""
    own = getattr(module, "config", None)
    for key in model.config.sub_configs:
        if getattr(model.config, key, None) is own:
            return key.removesuffix("_config")
    return ""
