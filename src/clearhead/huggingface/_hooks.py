"""Hooks on a model's attention modules, which read the weights or change the output while the model runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from clearhead.weights.matrix import AttentionWeights

HOOK_SETS = "_clearhead_hook_sets"  # the attribute of an attention module that holds its hook sets
_LOCK = threading.Lock()


@runtime_checkable
class AttentionHook(Protocol):
    """An observer of one attention module, or a change to its output.

    `repeat` counts the earlier calls of the module in the same pass of the model: layers may share a module. It is None
    where a checkpoint computes a layer again in the backward pass.
    """

    needs_weights: bool  # False for a hook that changes the output
    retains_weights: bool  # after its call

    @property
    def keep_qk(self) -> bool:
        """True if the weights hold query and key also where the scores are fewer numbers."""
        ...

    def __call__(
        self,
        repeat: int | None,
        weights: AttentionWeights | None,
        output: Float[Tensor, "batch q_len heads value_dim"],
        attention_mask: Tensor | None,  # as the model passes it to its attention function
    ) -> Float[Tensor, "batch q_len heads value_dim"]: ...


@dataclass(frozen=True, eq=False)
class HookSet:
    """The hooks that one `watch` or `ablate` puts on a model, by module."""

    hooks: Mapping[nn.Module, AttentionHook]
    _call_counts: dict[tuple[int, nn.Module], int] = field(default_factory=dict)  # in this pass, by thread and module
    _threads: set[int] = field(default_factory=lambda: {threading.get_ident()})  # that have started a pass since

    def start_pass(self, modules: list[nn.Module]) -> None:
        """Count the calls of these modules from 0 again, in this thread."""
        self._threads.add(threading.get_ident())
        for module in modules:
            self._call_counts.pop((threading.get_ident(), module), None)

    def count_call(self, module: nn.Module) -> int:
        """Return how often a module has run before in this pass, and count this call."""
        key = (threading.get_ident(), module)
        self._call_counts[key] = self._call_counts.get(key, 0) + 1
        return self._call_counts[key] - 1

    def __deepcopy__(self, memo: object) -> HookSet:
        return self  # a copy of a model copies its forward hooks, which hold this one

    def has_started(self) -> bool:
        """Return False in a thread that was in the middle of a pass when the hooks were attached, until the next."""
        return threading.get_ident() in self._threads


class _ModuleHookSets(tuple):
    """The hook sets of a module, which copies of the module do not have."""

    def __deepcopy__(self, memo: object) -> _ModuleHookSets:
        return _ModuleHookSets()

    def __reduce__(self) -> tuple:
        return _ModuleHookSets, ()


_entered: ContextVar[tuple[HookSet, ...]] = ContextVar("entered hook sets", default=())


@contextmanager
def attach_hooks(hook_set: HookSet) -> Iterator[None]:
    """Attach hooks to their modules, for as long as the context lasts."""
    with _LOCK:
        for module in hook_set.hooks:
            module.__dict__[HOOK_SETS] = _ModuleHookSets((*module.__dict__.get(HOOK_SETS, ()), hook_set))
    _entered.set((*_entered.get(), hook_set))
    try:
        yield
    finally:
        # not by a token: a notebook may enter in one context and leave in another
        _entered.set(tuple(other for other in _entered.get() if other is not hook_set))
        with _LOCK:
            for module in hook_set.hooks:
                remaining = _ModuleHookSets(other for other in module.__dict__[HOOK_SETS] if other is not hook_set)
                if remaining:
                    module.__dict__[HOOK_SETS] = remaining
                else:
                    del module.__dict__[HOOK_SETS]


def active_hook_sets(module: nn.Module) -> tuple[HookSet, ...]:
    """Return the hook sets that see this call of a module.

    In a thread that has entered some on this module, only those: two threads that watch one model each see their own
    calls. Calls in any other thread, such as autograd's, are seen by all.
    """
    attached: tuple[HookSet, ...] = getattr(module, HOOK_SETS, ())
    if not attached:
        return ()
    entered = _entered.get()
    return tuple(hook_set for hook_set in attached if hook_set in entered) or tuple(attached)
