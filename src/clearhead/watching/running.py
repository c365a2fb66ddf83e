"""Observers of and interventions in the calls of a model, and the module whose `forward` is running."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar
from uuid import uuid4

import torch
from torch import Tensor, nn

from clearhead._utils.torch_internals import in_backward_pass, in_functorch_transform, is_fake, is_jit_tracing
from clearhead.watching.observed import ObservedCall

if TYPE_CHECKING:
    from clearhead.watching.editing import Edit, EditedCall


class Observer(Protocol):
    """Receiver of the attention calls of some modules."""

    names: dict[int, str]  # names of the modules, by id
    compiled_calls: set[str]  # names of functions that were traced into a compiled graph
    hidden_calls: set[str]  # ways in which calls ran that have no values to read

    def receive(self, module: nn.Module, observed: ObservedCall) -> None:
        """Handle a call of a module."""
        ...

    def miss(self, module: nn.Module, reason: str) -> None:
        """Handle a call that cannot be observed."""
        ...


class Intervention(Protocol):
    """Changes of the attention calls of some modules."""

    names: dict[int, str]
    compiled_calls: set[str]
    hidden_calls: set[str]

    def edits(self, module: nn.Module, edited: EditedCall) -> Iterable[Edit]:
        """Return the changes of a call of a module."""
        ...


class _State(threading.local):
    suspended = False  # True while a replaced function runs, whose inner calls are parts of the same attention
    only: Intervention | None = None  # the one that calls of this thread take part in; None for all
    capturing = False  # True while a function runs only to find its queries and keys


Participant = Observer | Intervention
P = TypeVar("P", Observer, Intervention)
Target = tuple[Observer, nn.Module]
EditTarget = tuple[Intervention, nn.Module]
_state = _State()
_entered: ContextVar[tuple[Participant, ...]] = ContextVar("entered observers and interventions", default=())
_LOCK = threading.Lock()
_last_entry = ""  # changes with every new block; graphs have a guard on it, because it is an argument of `_note`


class _Blocks(Generic[P]):
    """Observers or interventions whose `with` blocks are active."""

    def __init__(self) -> None:
        self.active: tuple[P, ...] = ()  # in the order of the blocks; replaced, because other threads iterate over it

    @contextmanager
    def entered(self, participant: P) -> Iterator[None]:
        global _last_entry
        with _LOCK:
            self.active = (*self.active, participant)
        _last_entry = uuid4().hex
        _entered.set((*_entered.get(), participant))
        try:
            yield
        finally:
            # not reset(token): a notebook may enter in one contextvars context and exit in another
            _entered.set(tuple(other for other in _entered.get() if other is not participant))
            with _LOCK:
                self.active = tuple(other for other in self.active if other is not participant)


_observers: _Blocks[Observer] = _Blocks()
_interventions: _Blocks[Intervention] = _Blocks()


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Make an observer receive calls within a `with` block."""
    with _observers.entered(observer):
        yield


@contextmanager
def intervening(intervention: Intervention) -> Iterator[None]:
    """Make an intervention change calls within a `with` block."""
    with _interventions.entered(intervention):
        yield


def is_active() -> bool:
    """Return whether any observer or intervention is active, in any thread."""
    return bool(_observers.active or _interventions.active)


def observers_of_call(tensor: object, module: nn.Module | None = None) -> list[Target]:
    """Return the observers of the call that is running, each with its innermost module that is running.

    In a thread that has entered observers of a module, only those receive its calls. Two threads that watch the same
    model therefore observe their own calls only. In any other thread all observers receive them.

    Args:
        tensor: a tensor of the call. Placeholders without values, as in a trace, are not observed.
        module: the module that makes the call. Default: determined from the Python frames.
    """
    if not _observers.active or in_backward_pass():  # gradient checkpointing runs the forward pass again
        return []
    return _visible_targets(_observers.active, tensor, module, sys._getframe(1))


def interventions_of_call(tensor: object, module: nn.Module | None = None) -> list[EditTarget]:
    """Return the interventions in the call that is running, as `observers_of_call` returns its observers.

    They also change the calls that gradient checkpointing runs again, whose outputs must be the same.
    """
    return _visible_targets(_interventions.active, tensor, module, sys._getframe(1)) if _interventions.active else []


def _visible_targets(
    participants: tuple[P, ...], tensor: object, module: nn.Module | None, frame: FrameType
) -> list[tuple[P, nn.Module]]:
    if _state.suspended or not isinstance(tensor, Tensor):
        return []
    targets = _targets_of_call(participants, module, frame)
    if _state.only is not None:
        targets = [target for target in targets if target[0] is _state.only]
    hidden = _way_without_values(tensor)
    if hidden is None:
        return targets
    for participant, _ in targets:
        participant.hidden_calls.add(hidden)
    return []


def _way_without_values(tensor: Tensor) -> str | None:
    """Return the way in which a call runs if it has no values to read; otherwise None."""
    if in_functorch_transform():
        return "under torch.vmap or a transform of torch.func"
    if is_jit_tracing():
        return "under torch.jit.trace"
    if tensor.is_meta or is_fake(tensor):
        return "on tensors without values, such as those of the meta device"
    return None


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


@contextmanager
def only(intervention: Intervention) -> Iterator[None]:
    """Ignore all observers and interventions but one in this thread, within a `with` block."""
    before, _state.only = _state.only, intervention
    try:
        yield
    finally:
        _state.only = before


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
    """Return whether the call of a function is traced into a compiled graph, and notify the observers if it is.

    Calls in a graph are not visible when it runs. A graph that was traced before the last observer became active is
    traced again, so that every observer is told.
    """
    return torch.compiler.is_compiling() and _note(name, _last_entry)


@torch.compiler.assume_constant_result
def _note(name: str, entry: str) -> bool:
    """Tell the observers that a function was traced. Runs at the time of tracing."""
    if not _state.suspended:
        for participant in (*_observers.active, *_interventions.active):
            participant.compiled_calls.add(name)
    return True


def _targets_of_call(
    participants: tuple[P, ...], module: nn.Module | None, frame: FrameType
) -> list[tuple[P, nn.Module]]:
    targets = _targets_of(participants, module) if module is not None else []
    return targets or _targets_of_frames(participants, frame)


def _targets_of(participants: tuple[P, ...], module: nn.Module) -> list[tuple[P, nn.Module]]:
    attached = [each for each in (*_observers.active, *_interventions.active) if id(module) in each.names]
    if len(attached) > 1:
        entered = _entered.get()
        attached = [each for each in attached if each in entered] or attached
    return [(each, module) for each in participants if each in attached]


def _targets_of_frames(participants: tuple[P, ...], frame: FrameType | None) -> list[tuple[P, nn.Module]]:
    """Return the targets of the innermost module whose method, or function with a module as argument, is running."""
    targets: list[tuple[P, nn.Module]] = []
    while frame is not None and len(targets) < len(participants):
        module = _module_of(frame)
        if module is not None:
            received = [each for each, _ in targets]
            targets += [target for target in _targets_of(participants, module) if target[0] not in received]
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
