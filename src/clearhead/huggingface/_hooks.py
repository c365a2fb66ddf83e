"""Hooks on attention modules, which read the weights while a model runs on clearhead."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from torch import nn

from clearhead.weights.matrix import AttentionWeights

HOOK_SETS = "_clearhead_hook_sets"  # attribute of an attention module: its hook sets
_LOCK = threading.Lock()


class AttentionHook(Protocol):
    """Hook on one attention module, which reads its weights."""

    @property
    def keep_qk(self) -> bool:
        """True if the weights must keep query and key even if the scores take less memory."""
        ...

    def __call__(self, weights: AttentionWeights) -> None: ...


@dataclass(frozen=True, eq=False)
class HookSet:
    """Hooks that a recording attaches to a model, by module."""

    hooks: Mapping[nn.Module, AttentionHook]
    # the thread that attached the hooks, and threads that started a pass after that
    _threads: set[int] = field(default_factory=lambda: {threading.get_ident()})

    def start_pass(self) -> None:
        """Note that this thread has started a forward pass."""
        self._threads.add(threading.get_ident())

    def __deepcopy__(self, memo: object) -> HookSet:
        return self  # copying a model copies its forward hooks, which refer to this set

    def has_started(self) -> bool:
        """Return whether this thread has started a forward pass since the hooks were attached."""
        return threading.get_ident() in self._threads


class _ModuleHookSets(tuple):
    """Hook sets of a module. A copy of the module has none."""

    def __deepcopy__(self, memo: object) -> _ModuleHookSets:
        return _ModuleHookSets()

    def __reduce__(self) -> tuple:
        return _ModuleHookSets, ()


_entered: ContextVar[tuple[HookSet, ...]] = ContextVar("entered hook sets", default=())


@contextmanager
def attach_hooks(hook_set: HookSet) -> Iterator[None]:
    """Attach hooks to their modules within a `with` block."""
    with _LOCK:
        for module in hook_set.hooks:
            module.__dict__[HOOK_SETS] = _ModuleHookSets((*module.__dict__.get(HOOK_SETS, ()), hook_set))
    _entered.set((*_entered.get(), hook_set))
    try:
        yield
    finally:
        # not reset(token): a notebook may enter in one contextvars context and exit in another
        _entered.set(tuple(other for other in _entered.get() if other is not hook_set))
        with _LOCK:
            for module in hook_set.hooks:
                remaining = _ModuleHookSets(other for other in module.__dict__[HOOK_SETS] if other is not hook_set)
                if remaining:
                    module.__dict__[HOOK_SETS] = remaining
                else:
                    del module.__dict__[HOOK_SETS]


def active_hook_sets(module: nn.Module) -> tuple[HookSet, ...]:
    """Return the hook sets to run on this call of a module.

    In a thread that has entered hook sets on this module, only those run. Two threads that record the same model
    therefore read their own calls only. In any other thread, such as autograd's, all hook sets run.
    """
    attached: tuple[HookSet, ...] = getattr(module, HOOK_SETS, ())
    if not attached:
        return ()
    entered = _entered.get()
    return tuple(hook_set for hook_set in attached if hook_set in entered) or tuple(attached)
