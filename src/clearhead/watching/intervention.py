"""Base classes of interventions in the attention of one model."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from clearhead._utils.tensor_checks import check_float_tensor
from clearhead._utils.text import count_noun
from clearhead._utils.torch_internals import in_backward_pass
from clearhead.watching import running
from clearhead.watching._multihead import without_fast_path
from clearhead.watching.editing import Edit, EditedCall
from clearhead.watching.model_observer import ModelObserver
from clearhead.watching.selectors import Chosen, Selectors, repeated_parts

T = TypeVar("T")


class ModelIntervention(ModelObserver, ABC):
    """Intervention in the attention calls of one model."""

    participle = "changed"

    @abstractmethod
    def edits(self, module: nn.Module, edited: EditedCall) -> Iterable[Edit]:
        """Return the changes of a call of a module."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Change the calls of the model within a `with` block."""
        with self.attached(), without_fast_path(self.model), running.intervening(self):
            yield
        self.check_compiled()


class HeadIntervention(ModelIntervention, Generic[T]):
    """Intervention in chosen heads or layers.

    Attributes:
        chosen: what is done to each choice.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.chosen: list[tuple[Chosen, T]] = []
        self._known = [] if self.adapter is None else self.adapter.modules()
        self._repeated = repeated_parts(self._known)
        self._order: dict[str, int] = {}  # index of each module in the order of first execution
        self._counts: dict[tuple[int, str], int] = {}  # calls of shared modules in this pass, by thread and name
        self._heads: dict[str, int] = {}
        self._applied: set[int] = set()  # indices of choices that were applied
        self._lock = threading.Lock()  # several threads may run one model

    def selectors(self, argument: str) -> Selectors:
        """Return the selectors of the model, which an argument contains."""
        return Selectors(argument, self.model, self._known)

    @abstractmethod
    def edits_of(self, chosen: Chosen, given: T, module: nn.Module, edited: EditedCall) -> Iterable[Edit]:
        """Return the changes of a call that one selector has chosen; none if they do not apply to this call."""

    def missing(self, given: T) -> str | None:
        """Return which part of a change was in no call; None if all parts were."""
        return None

    def edits(self, module: nn.Module, edited: EditedCall) -> Iterable[Edit]:
        name, heads = self.names[id(module)], edited.output.shape[1]
        with self._lock:
            order = self._order.setdefault(name, len(self._order))
            self._heads[name] = heads
        repeat = self._repeat(name) if name in self._repeated else None
        result: list[Edit] = []
        for index, (chosen, given) in enumerate(self.chosen):
            if not chosen.matches(name, order, repeat):
                continue
            if chosen.head is not None and chosen.head >= heads:
                raise ValueError(f"{self.verb}: head is {chosen.head}; expected 0 to {heads - 1} in {name}")
            edits = [*self.edits_of(chosen, given, module, edited)]
            if edits:
                self._applied.add(index)
            result += edits
        return result

    @contextmanager
    def active(self) -> Iterator[None]:
        with ExitStack() as stack:
            for part in {id(part): part for part in self._repeated.values()}.values():
                stack.callback(part.register_forward_pre_hook(self._start_pass).remove)
            with super().active():
                yield
        if self.chosen and self.was_called:
            self._check_applied()

    def _start_pass(self, part: nn.Module, _: object) -> None:
        for name, owner in self._repeated.items():
            if owner is part:
                self._counts.pop((threading.get_ident(), name), None)

    def _repeat(self, name: str) -> int:
        """Return the number of earlier calls of a shared module in this pass, and count this call."""
        if in_backward_pass():
            raise ValueError(
                f"{name} is shared by several layers, so the layer that gradient checkpointing recomputes is unknown;"
                " switch gradient checkpointing off first"
            )
        key = (threading.get_ident(), name)
        self._counts[key] = self._counts.get(key, 0) + 1
        return self._counts[key] - 1

    def _check_applied(self) -> None:
        """Raise if a choice did not apply to any call."""
        if not self._order:
            kind = type(self.model).__name__
            raise ValueError(f"{self.verb} found no attention of {kind}: {self.reason_for_none()}")
        for index, (chosen, given) in enumerate(self.chosen):
            missing = self.missing(given)
            if index not in self._applied:
                reason = self._reason_unapplied(chosen) or f"{missing or 'its positions'}, not in any call"
                raise ValueError(f"{self.verb}: {chosen.given!r} was not applied: {reason}")
            if missing is not None:
                raise ValueError(f"{self.verb}: {missing}, not in any call")

    def _reason_unapplied(self, chosen: Chosen) -> str | None:
        """Return why a choice did not apply to any call; None if its positions are the reason."""
        ran = count_noun(len(self._order), "attention module")
        if chosen.name is None:
            if chosen.layer is None or chosen.layer < len(self._order):
                return None
            return f"{ran} ran; expected a layer from 0 to {len(self._order) - 1}"
        if chosen.name not in self._order:
            names = [*self._order]
            return f"{chosen.name} computed no attention that clearhead observes; {ran} ran, such as {names[0]!r}"
        if chosen.layer is not None:
            known = next(module for module in self._known if module.name == chosen.name)
            return f"{known.stack} has no layer {known.layer + chosen.layer}"
        return None


def check_replacement(name: str, tensor: Tensor, expected: str) -> Tensor:
    """Return a tensor that replaces outputs or patterns; raise if it has no floating-point values."""
    if check_float_tensor(name, tensor, expected).is_meta:
        raise ValueError(f"{name} is on the meta device, which stores no values; expected {expected}")
    return tensor
