"""Taps: observers of a model's attention modules, and changes to their outputs, while the model runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn

from clearhead.weights import AttentionWeights

TAPPINGS = "_clearhead_tappings"  # the attribute of an attention module that holds its tappings
_LOCK = threading.Lock()


class Tap(Protocol):
    """An observer of one attention module, or a change to its output.

    `repeat` counts the earlier calls of the module in the same pass of the model: layers may share a module. It is None
    where a checkpoint computes a layer again in the backward pass.
    """

    looks: bool  # at the weights; a tap that does not look changes the output
    keeps: bool  # the weights, beyond its call

    def __call__(
        self, repeat: int | None, weights: AttentionWeights | None, output: Tensor
    ) -> Tensor:  # [batch, q_len, heads, value_dim]
        ...


@dataclass(frozen=True, eq=False)
class Tapping:
    """The taps that one `watch` or `ablate` puts on a model, by module."""

    taps: Mapping[nn.Module, Tap]
    _runs: dict[tuple[int, nn.Module], int] = field(default_factory=dict)  # in this pass, by thread and module

    def start_pass(self, modules: list[nn.Module]) -> None:
        """Count the calls of these modules from 0 again, in this thread."""
        for module in modules:
            self._runs.pop((threading.get_ident(), module), None)

    def count_call(self, module: nn.Module) -> int:
        """Return how often a module has run before in this pass, and count this call."""
        key = (threading.get_ident(), module)
        self._runs[key] = self._runs.get(key, 0) + 1
        return self._runs[key] - 1


_entered: ContextVar[tuple[Tapping, ...]] = ContextVar("entered tappings", default=())


@contextmanager
def attached(tapping: Tapping) -> Iterator[None]:
    """Attach taps to their modules, for as long as the context lasts."""
    with _LOCK:
        for module in tapping.taps:
            module.__dict__[TAPPINGS] = (*module.__dict__.get(TAPPINGS, ()), tapping)
    _entered.set((*_entered.get(), tapping))
    try:
        yield
    finally:
        # not by a token: a notebook may enter in one context and leave in another
        _entered.set(tuple(other for other in _entered.get() if other is not tapping))
        with _LOCK:
            for module in tapping.taps:
                module.__dict__[TAPPINGS] = tuple(t for t in module.__dict__[TAPPINGS] if t is not tapping)


def tappings_of(module: nn.Module) -> tuple[Tapping, ...]:
    """Return the tappings that see this call of a module.

    In a thread that has entered some on this module, only those: two threads that watch one model each see their own
    calls. Calls in any other thread, such as autograd's, are seen by all.
    """
    attached_here: tuple[Tapping, ...] = getattr(module, TAPPINGS, ())
    if not attached_here:
        return ()
    entered = _entered.get()
    return tuple(tapping for tapping in attached_here if tapping in entered) or attached_here
