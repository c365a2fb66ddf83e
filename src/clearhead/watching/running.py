"""Observers of the calls of a model, and the watched module whose `forward` is running."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Protocol
from uuid import uuid4

import torch
from torch import Tensor, nn

from clearhead._utils.torch_internals import in_backward_pass, in_functorch_transform, is_fake, is_jit_tracing
from clearhead.watching.observed import ObservedCall


class Observer(Protocol):
    """Receiver of the attention calls of some modules."""

    names: dict[int, str]  # names of the modules, by id
    compiled_calls: set[str]  # names of functions that were traced into a compiled graph

    def receive(self, module: nn.Module, observed: ObservedCall) -> None:
        """Handle a call of a module."""
        ...

    def miss(self, module: nn.Module, reason: str) -> None:
        """Handle a call that cannot be observed."""
        ...


class _State(threading.local):
    suspended = False  # True while a replaced function runs, whose inner calls are parts of the same attention
    capturing = False  # True while a function runs only to find its queries and keys


Target = tuple[Observer, nn.Module]
_state = _State()
_active: tuple[Observer, ...] = ()
_entered: ContextVar[tuple[Observer, ...]] = ContextVar("entered observers", default=())
_LOCK = threading.Lock()
_last_entry = ""  # changes with every new observer; graphs have a guard on it, because it is an argument of `_note`


@contextmanager
def active(observer: Observer) -> Iterator[None]:
    """Make an observer receive calls within a `with` block."""
    global _active, _last_entry
    with _LOCK:
        _active = (*_active, observer)
        _last_entry = uuid4().hex
    _entered.set((*_entered.get(), observer))
    try:
        yield
    finally:
        # not reset(token): a notebook may enter in one contextvars context and exit in another
        _entered.set(tuple(other for other in _entered.get() if other is not observer))
        with _LOCK:
            _active = tuple(other for other in _active if other is not observer)


def observers_of_call(tensor: object, module: nn.Module | None = None) -> list[Target]:
    """Return the observers of the call that is running, each with its innermost module that is running.

    In a thread that has entered observers of a module, only those receive its calls. Two threads that watch the same
    model therefore observe their own calls only. In any other thread all observers receive them.

    Args:
        tensor: a tensor of the call. Placeholders without values, as in a trace, are not observed.
        module: the module that makes the call. Default: determined from the Python frames.
    """
    if (
        not _active
        or _state.suspended
        or not isinstance(tensor, Tensor)
        or tensor.is_meta
        or is_fake(tensor)
        or in_backward_pass()  # gradient checkpointing is running the forward pass again
        or in_functorch_transform()
        or is_jit_tracing()
    ):
        return []
    targets = _targets_of(module) if module is not None else []
    return targets or _targets_of_frames(sys._getframe(1))


def deliver(targets: list[Target], observe: Callable[[], ObservedCall]) -> None:
    """Give a call to its observers.

    Args:
        targets: the observers, each with its module.
        observe: returns the call. It may raise if the call is not supported.
    """
    if not targets:
        return
    try:
        observed = observe()
    except (TypeError, ValueError, RuntimeError) as error:
        for observer, module in targets:
            observer.miss(module, str(error))
    else:
        for observer, module in targets:
            observer.receive(module, observed)


@contextmanager
def suspended() -> Iterator[None]:
    """Ignore attention calls within a `with` block: they are parts of a call that is observed as a whole."""
    before = _state.suspended
    _state.suspended = True
    try:
        yield
    finally:
        _state.suspended = before


class Captured(Exception):  # noqa: N818, it carries a result
    """Arguments of an attention call, raised instead of running it."""


@contextmanager
def capturing() -> Iterator[None]:
    """Raise `Captured` instead of running the next attention call within a `with` block."""
    _state.capturing = True
    try:
        yield
    finally:
        _state.capturing = False


def is_capturing() -> bool:
    """Return whether this thread runs a function only to find its queries and keys."""
    return _state.capturing


def is_compiling(name: str) -> bool:
    """Return whether the call of a function is traced into a compiled graph, and tell the observers if it is.

    Calls in a graph are not visible when it runs. A graph that was traced before the last observer became active is
    traced again, so that every observer is told.
    """
    return torch.compiler.is_compiling() and _note(name, _last_entry)


@torch.compiler.assume_constant_result
def _note(name: str, entry: str) -> bool:
    """Tell the observers that a function was traced. Runs at the time of tracing."""
    if not _state.suspended:
        for observer in _active:
            observer.compiled_calls.add(name)
    return True


def _targets_of(module: nn.Module) -> list[Target]:
    attached = [observer for observer in _active if id(module) in observer.names]
    if len(attached) > 1:
        entered = _entered.get()
        attached = [observer for observer in attached if observer in entered] or attached
    return [(observer, module) for observer in attached]


def _targets_of_frames(frame: FrameType | None) -> list[Target]:
    """Return the observers of the innermost module whose method, or function with a module as argument, is running."""
    targets: list[Target] = []
    while frame is not None and len(targets) < len(_active):
        module = _module_of(frame)
        if module is not None:
            received = [observer for observer, _ in targets]
            targets += [target for target in _targets_of(module) if target[0] not in received]
        frame = frame.f_back
    return targets


def _module_of(frame: FrameType) -> nn.Module | None:
    """Return the first argument of a function if it is a module."""
    code = frame.f_code
    if not code.co_argcount:
        return None
    variables = frame.f_locals
    first = variables.get(code.co_varnames[0])
    if type(variables) is dict:
        # Before Python 3.13 this is a copy that belongs to the frame and would keep its tensors alive.
        variables.clear()
    return first if isinstance(first, nn.Module) else None
