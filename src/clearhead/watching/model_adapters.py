"""Registry of adapters for the models of a library: stacks, layers and padding."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from jaxtyping import Bool
from torch import Tensor, nn

from clearhead.watching.observed import ObservedCall

Address = tuple[str, int]  # stack and layer


class ModelAdapter(Protocol):
    """Stacks, layers and padding of one watched model."""

    def addresses(self) -> dict[str, Address]:
        """Return stack and layer of attention modules, by name. Modules may be missing."""
        ...

    def attached(self) -> AbstractContextManager[None]:
        """Return a `with` block in which the model runs."""
        ...

    def padding(self, module: nn.Module, observed: ObservedCall) -> Bool[Tensor, "batch q_len"] | None:
        """Return which queries of a call are padding; None if there is no padding, or if it is unknown."""
        ...


_factories: list[Callable[[nn.Module], ModelAdapter | None]] = []


def register_models(factory: Callable[[nn.Module], ModelAdapter | None]) -> None:
    """Register a function that returns the adapter of a model, or None if the model is of another library."""
    _factories.append(factory)


def adapter_of(model: nn.Module) -> ModelAdapter | None:
    """Return the adapter of a model."""
    return next((adapter for factory in _factories if (adapter := factory(model)) is not None), None)
