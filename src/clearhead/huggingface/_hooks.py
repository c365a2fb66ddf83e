"""Hooks on attention modules, which read the weights or change the output while a model runs."""

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

HOOK_SETS = "_clearhead_hook_sets"  # attribute of an attention module: its hook sets
_LOCK = threading.Lock()


@runtime_checkable
class AttentionHook(Protocol):
    """Hook on one attention module, which reads its weights or changes its output.

    `repeat` is the number of earlier calls of the module in the same forward pass, because layers may share a module.
    It is None if gradient checkpointing is running the layer again in the backward pass.
    """

    needs_weights: bool  # False for a hook that changes the output
    retains_weights: bool  # True for a hook that uses the weights after its call

    @property
    def keep_qk(self) -> bool:
        """True if the weights must keep query and key even if the scores take less memory."""
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
    """Hooks that one `watch` or `ablate` attaches to a model, by module."""

    hooks: Mapping[nn.Module, AttentionHook]
    _call_counts: dict[tuple[int, nn.Module], int] = field(default_factory=dict)  # in this pass, by thread and module
    # the thread that attached the hooks, and threads that started a pass after that
    _threads: set[int] = field(default_factory=lambda: {threading.get_ident()})

    def start_pass(self, modules: list[nn.Module]) -> None:
        """Reset the call counts of these modules in this thread."""
        self._threads.add(threading.get_ident())
        for module in modules:
            self._call_counts.pop((threading.get_ident(), module), None)

    def count_call(self, module: nn.Module) -> int:
        """Return the number of earlier calls of a module in this pass, and count this call."""
        key = (threading.get_ident(), module)
        self._call_counts[key] = self._call_counts.get(key, 0) + 1
        return self._call_counts[key] - 1

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

    In a thread that has entered hook sets on this module, only those run. Two threads that watch the same model
    therefore observe their own calls only. In any other thread, such as autograd's, all hook sets run.
    """
    attached: tuple[HookSet, ...] = getattr(module, HOOK_SETS, ())
    if not attached:
        return ()
    entered = _entered.get()
    return tuple(hook_set for hook_set in attached if hook_set in entered) or tuple(attached)
