"""Registry of adapters for the models of a library: stacks, layers, padding, and the shapes of calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from jaxtyping import Bool
from torch import Tensor, nn

from clearhead.watching._projections import head_counts
from clearhead.watching.observed import ObservedCall

Address = tuple[str, int]  # stack and layer
CROSS_ATTENTION_NAMES = ("cross", "encdec", "encoder_attn", "encoder_decoder")


class KnownModule(NamedTuple):
    """Attention module of a known library.

    Attributes:
        name: name of the module, as in `named_modules()`.
        stack: its stack, such as "decoder".
        layer: index of its layer in the stack; of the first layer, if several layers share the module.
        heads: number of heads; None if unknown.
        repeated_in: the part of the model that runs the module once for each of several layers; None for one layer.
    """

    name: str
    stack: str
    layer: int
    heads: int | None
    repeated_in: nn.Module | None


class ModelAdapter(Protocol):
    """Stacks, layers and padding of one watched model."""

    def modules(self) -> list[KnownModule]:
        """Return the attention modules in module order. Modules may be missing."""
        ...

    def addresses(self) -> dict[str, Address]:
        """Return stack and layer of these modules, by name."""
        ...

    def attached(self) -> AbstractContextManager[None]:
        """Return a `with` block in which the model runs."""
        ...

    def padding(self, module: nn.Module, observed: ObservedCall) -> Bool[Tensor, "batch q_len"] | None:
        """Return which queries of a call are padding; None if there is no padding, or if it is unknown."""
        ...

    def positions(self, module: nn.Module, q_len: int, kv_len: int) -> CallPositions:
        """Return the positions of the queries and keys of a call."""
        ...


class CallPositions(NamedTuple):
    """Positions of the queries and keys of a call in their sequences.

    Attributes:
        first_query: position of the first query: the number of earlier tokens in the KV cache.
        query_end: position after the last query.
        first_key: position of the first key. A sliding cache has no earlier ones.
        key_end: position after the last key. The rest of a static cache is empty.
    """

    first_query: int
    query_end: int
    first_key: int
    key_end: int


class StatedShape(NamedTuple):
    """Heads and queries of a call, as the module that makes it states them.

    Attributes:
        heads: number of query heads.
        kv_heads: number of key heads.
        q_len: number of queries; None if unknown.
    """

    heads: int
    kv_heads: int
    q_len: int | None


_factories: list[Callable[[nn.Module], ModelAdapter | None]] = []
_shapes: list[Callable[[nn.Module], StatedShape | None]] = []


def register_models(factory: Callable[[nn.Module], ModelAdapter | None]) -> None:
    """Register a function that returns the adapter of a model, or None if the model is of another library."""
    _factories.append(factory)


def adapter_of(model: nn.Module) -> ModelAdapter | None:
    """Return the adapter of a model."""
    return next((adapter for factory in _factories if (adapter := factory(model)) is not None), None)


def register_shapes(shape: Callable[[nn.Module], StatedShape | None]) -> None:
    """Register a function that returns the shape of the call that a module is making, or None if it is unknown."""
    _shapes.append(shape)


def stated_shape(module: nn.Module) -> StatedShape | None:
    """Return the shape of the call that a module is making; without an adapter, from its projections."""
    known = next((known for shape in _shapes if (known := shape(module)) is not None), None)
    if known is None and (counts := head_counts(module)) is not None:
        return StatedShape(*counts, None)
    return known


def attends_across(model: nn.Module, name: str, module: nn.Module) -> bool:
    """Return whether a module is known to attend to another sequence, from its attributes, name and parent."""
    if getattr(module, "is_cross_attention", False) is True:
        return True
    parent, _, attribute = name.rpartition(".")
    if attribute == "multihead_attn" and isinstance(model.get_submodule(parent), nn.TransformerDecoderLayer):
        return True
    inner = f"{parent.rpartition('.')[2]}.{attribute}".lower()  # outer names may be those of a whole model
    return any(part in inner for part in CROSS_ATTENTION_NAMES)
