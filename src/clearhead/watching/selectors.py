"""Selectors of heads, such as `(18, 6)`, and the calls that they choose."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, SupportsIndex

from torch import nn

from clearhead.watching.model_adapters import KnownModule

# (layer, head), (name of a module, head), or (stack, layer, head)
HeadSelector = tuple[int | str, int] | tuple[str, int, int]


@dataclass(frozen=True)
class Chosen:
    """Heads and calls that a selector chooses.

    Attributes:
        given: the selector.
        name: name of the module; None if the layer is an index in the order of first execution.
        layer: that index, or the index among the calls of a module that several layers share; None for all calls.
        head: the head; None for all heads.
    """

    given: Any
    name: str | None
    layer: int | None
    head: int | None

    def matches(self, name: str, order: int, repeat: int | None) -> bool:
        """Return whether this is a call that the selector chooses.

        Args:
            name: name of the module.
            order: index of the module in the order of first execution.
            repeat: index of this call in a module that several layers share; None for other modules.
        """
        if self.name is None:
            return order == self.layer
        return name == self.name and (self.layer is None or repeat == self.layer)


class Selectors:
    """Selectors of one model."""

    def __init__(self, argument: str, model: nn.Module, known: list[KnownModule]) -> None:
        """Prepare to resolve selectors.

        Args:
            argument: name of the argument that contains them, for errors.
            model: the model.
            known: its attention modules; none if its library is not known.
        """
        self._argument, self._known = argument, known
        self._names = dict(model.named_modules())
        self._stacks = list(dict.fromkeys(module.stack for module in known))

    def head(self, selector: Any) -> Chosen:
        """Resolve a selector of one head.

        Raises:
            ValueError: if it has another form, or there is certainly no such head.
        """
        parts: tuple[Any, ...] = tuple(map(_as_int, selector)) if isinstance(selector, tuple) else ()
        if len(parts) not in (2, 3) or not _is_index(parts[-1]):
            raise self._malformed(selector, "head")
        return self._resolve(selector, parts[0] if len(parts) == 2 else parts[:2], parts[-1], "head")

    def layer_or_head(self, selector: Any) -> Chosen:
        """Resolve a selector of a whole layer or of one head."""
        if isinstance(selector, tuple) and not (len(selector) == 2 and self._is_stack(selector[0])):
            return self.head(selector)
        where = tuple(map(_as_int, selector)) if isinstance(selector, tuple) else _as_int(selector)
        return self._resolve(selector, where, None, "layer")

    def _resolve(self, given: Any, where: Any, head: int | None, kind: str) -> Chosen:
        if isinstance(where, str):
            if self._is_stack(where):
                raise self._malformed(given, kind)
            return self._by_name(given, where, head)
        if _is_index(where) and not self._known:
            return Chosen(given, None, where, head)
        if _is_index(where) and len(self._stacks) == 1:
            where = (self._stacks[0], where)
        if not isinstance(where, tuple) or len(where) != 2 or not _is_index(where[1]) or not self._known:
            raise self._malformed(given, kind)
        return self._by_stack(given, where[0], where[1], head)

    def _is_stack(self, name: Any) -> bool:
        """Return whether a name is that of a stack. A part of a model may have the same name."""
        return name in self._stacks and all(module.name != name for module in self._known)

    def _by_name(self, given: Any, name: str, head: int | None) -> Chosen:
        if name not in self._names:
            shown = next((module.name for module in self._known), next(reversed(self._names)))
            raise ValueError(
                f"{self._argument} contains {given!r}, but the model has no module {name!r}; expected a name such as"
                f" {shown!r}"
            )
        for module in self._known:
            if module.name == name:
                self._check_head(given, module, head)
        return Chosen(given, name, None, head)

    def _by_stack(self, given: Any, stack: str, layer: int, head: int | None) -> Chosen:
        for module in self._known:
            if module.stack != stack:
                continue
            is_shared = module.repeated_in is not None
            # the number of layers that share a module is unknown until it has run
            if module.layer == layer or (is_shared and layer > module.layer):
                self._check_head(given, module, head)
                return Chosen(given, module.name, layer - module.layer if is_shared else None, head)
        layers = {name: sum(module.stack == name for module in self._known) for name in self._stacks}
        ranges = ", ".join(f"{name} has layers 0 to {count - 1}" for name, count in layers.items())
        raise ValueError(f"{self._argument} contains {given!r}, but {ranges}")

    def _check_head(self, given: Any, module: KnownModule, head: int | None) -> None:
        if head is not None and module.heads is not None and not 0 <= head < module.heads:
            raise ValueError(f"{self._argument} contains {given!r}, but that layer has heads 0 to {module.heads - 1}")

    def _malformed(self, given: Any, kind: str) -> ValueError:
        head, named = (", head", "(name of a module, head)") if kind == "head" else ("", "the name of a module")
        if len(self._stacks) > 1:
            form = f"(stack, layer{head}), with stack one of {', '.join(self._stacks)}"
        else:
            form = f"(layer{head})" if head else "a layer"
        return ValueError(f"{self._argument} contains {given!r}; expected {form}, or {named}")


def repeated_parts(known: list[KnownModule]) -> Mapping[str, nn.Module]:
    """Return the parts that run a shared module once for each layer, by the name of the module."""
    return {module.name: module.repeated_in for module in known if module.repeated_in is not None}


def _as_int(value: Any) -> Any:
    """Return integers of numpy and torch, such as those of `topk`, as int. Return anything else unchanged."""
    if isinstance(value, bool | str) or not isinstance(value, SupportsIndex):
        return value
    try:
        return operator.index(value)
    except (TypeError, RuntimeError):  # an array with several elements, or a class
        return value


def _is_index(value: Any) -> bool:
    return type(value) is int and value >= 0
