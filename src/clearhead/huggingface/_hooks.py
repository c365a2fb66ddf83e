"""Taps: observers of a model's attention modules, and changes to their outputs, while the model runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn

from clearhead.weights.matrix import AttentionWeights

TAPPINGS = "_clearhead_tappings"  # the attribute of an attention module that holds its tappings
_LOCK = threading.Lock()


class Tap(Protocol):
    """An observer of one attention module, or a change to its output.

    `repeat` counts the earlier calls of the module in the same pass of the model: layers may share a module. It is None
    where a checkpoint computes a layer again in the backward pass.
    """

    looks: bool  # whether it reads the weights; otherwise it changes the output
    keeps: bool  # whether it keeps the weights after its call

    def __call__(
        self,
        repeat: int | None,
        weights: AttentionWeights | None,
        output: Tensor,  # [batch, q_len, heads, value_dim]
        attention_mask: Tensor | None,  # as the model gives it to its attention function
    ) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Tapping:
    """The taps that one `watch` or `ablate` puts on a model, by module."""

    taps: Mapping[nn.Module, Tap]
    _runs: dict[tuple[int, nn.Module], int] = field(default_factory=dict)  # in this pass, by thread and module
    _threads: set[int] = field(default_factory=lambda: {threading.get_ident()})  # that have started a pass since

    def start_pass(self, modules: list[nn.Module]) -> None:
        """Count the calls of these modules from 0 again, in this thread."""
        self._threads.add(threading.get_ident())
        for module in modules:
            self._runs.pop((threading.get_ident(), module), None)

    def count_call(self, module: nn.Module) -> int:
        """Return how often a module has run before in this pass, and count this call."""
        key = (threading.get_ident(), module)
        self._runs[key] = self._runs.get(key, 0) + 1
        return self._runs[key] - 1

    def __deepcopy__(self, memo: object) -> Tapping:
        return self  # a copy of a model copies its hooks, which hold this one

    def has_started(self) -> bool:
        """Return False in a thread that was in the middle of a pass when the taps were attached, until the next one."""
        return threading.get_ident() in self._threads


class _Attached(tuple):
    """The tappings of a module, which copies of the module do not have."""

    def __deepcopy__(self, memo: object) -> _Attached:
        return _Attached()

    def __reduce__(self) -> tuple:
        return _Attached, ()


_entered: ContextVar[tuple[Tapping, ...]] = ContextVar("entered tappings", default=())


@contextmanager
def attached(tapping: Tapping) -> Iterator[None]:
    """Attach taps to their modules, for as long as the context lasts."""
    with _LOCK:
        for module in tapping.taps:
            module.__dict__[TAPPINGS] = _Attached((*module.__dict__.get(TAPPINGS, ()), tapping))
    _entered.set((*_entered.get(), tapping))
    try:
        yield
    finally:
        # not by a token: a notebook may enter in one context and leave in another
        _entered.set(tuple(other for other in _entered.get() if other is not tapping))
        with _LOCK:
            for module in tapping.taps:
                left = _Attached(other for other in module.__dict__[TAPPINGS] if other is not tapping)
                if left:
                    module.__dict__[TAPPINGS] = left
                else:
                    del module.__dict__[TAPPINGS]


def tappings_of(module: nn.Module) -> tuple[Tapping, ...]:
    """Return the tappings that see this call of a module.

    In a thread that has entered some on this module, only those: two threads that watch one model each see their own
    calls. Calls in any other thread, such as autograd's, are seen by all.
    """
    here: tuple[Tapping, ...] = getattr(module, TAPPINGS, ())
    if not here:
        return ()
    entered = _entered.get()
    return tuple(tapping for tapping in here if tapping in entered) or tuple(here)
