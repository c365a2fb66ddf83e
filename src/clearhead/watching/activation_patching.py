"""`patching`: the effect of restoring each head of a corrupted run, exactly or by attribution patching."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from clearhead._utils.checks import check_bool, check_choice, describe
from clearhead._utils.evaluating import evaluating
from clearhead.watching._model_calls import Inputs, call_model, check_inputs
from clearhead.watching.editing import Edit, EditedCall, Stage
from clearhead.watching.intervention import ModelIntervention
from clearhead.watching.positions import ChosenPositions, Positions
from clearhead.watching.watcher import Where, name_predicate
from clearhead.weights.matrix import AttentionWeights
from clearhead.weights.products import product

What = Literal["output", "pattern", "value"]
Metric = Callable[[Any], Tensor | float]


def patching(
    model: Any,
    clean: Inputs,
    corrupted: Inputs,
    metric: Metric,
    what: What = "output",
    *,
    positions: Positions | None = None,
    where: Where | None = None,
    estimate: bool = False,
    progress: bool = True,
) -> Float[Tensor, "layers heads"]:
    """Return the metric of a corrupted run with one head restored from a clean run, for each head.

        def logit_difference(outputs):
            return outputs.logits[0, -1, mary] - outputs.logits[0, -1, john]

        patching(model, clean, corrupted, logit_difference)                  # activation patching, one run per head
        patching(model, clean, corrupted, logit_difference, estimate=True)   # attribution patching: three passes

    Row i of the result is the i-th attention call of a forward pass, so it is layer i in a model with one stack. If
    layers have different numbers of heads, the missing ones are nan.

    Args:
        model: any model that `watch` observes.
        clean: inputs whose heads are restored: a tensor, a tuple of arguments, or a dict of keyword arguments.
        corrupted: inputs of the same length.
        metric: function of what the model returns. It returns a number or a tensor with one element.
        what: what is restored of a head: its "output", its "pattern" (the values stay), or its "value"s (the pattern
            stays).
        positions: positions to restore: of queries for outputs and patterns, of keys for values. Default: all.
        where: which modules: a pattern such as `"*.self_attn"`, or a function of the name. Default: all.
        estimate: return the first-order estimate by the gradient of the metric, from one backward pass.
        progress: show a progress bar on stderr.
    """
    check_choice("what", what, ("output", "pattern", "value"))
    clean, corrupted = check_inputs("clean", clean), check_inputs("corrupted", corrupted)
    for name, flag in (("estimate", estimate), ("progress", progress)):
        check_bool(name, flag)
    if not callable(metric):
        raise TypeError(f"metric is {describe(metric)}; expected a function of what the model returns")
    if estimate and torch.is_inference_mode_enabled():
        raise ValueError("estimate is True, which requires gradients; leave torch.inference_mode()")
    source = _Source(model, what, ChosenPositions("positions", positions), where)
    with evaluating(source.model):
        with torch.no_grad(), source.active():
            call_model(model, clean)
        source.check()
        if estimate:
            return _estimated(model, source, corrupted, metric)
        return _exact(model, source, corrupted, metric, progress)


class _CleanCall(NamedTuple):
    """Call of the clean run, from which heads are restored.

    Attributes:
        name: name of the module.
        shape: batch, heads, q_len and kv_len.
        kept: the outputs `[batch, heads, q_len, value_dim]`, values `[batch, kv_heads, kv_len, value_dim]` or weights.
    """

    name: str
    shape: tuple[int, ...]
    kept: Tensor | AttentionWeights


class _Calls(ModelIntervention):
    """Calls of a forward pass, counted in order."""

    verb = "patching"

    def __init__(self, model: Any, where: Where | None) -> None:
        super().__init__(model)
        self.where = name_predicate(where, self)
        self.count, self.excluded = 0, set[str]()
        self.thread = threading.get_ident()  # other threads may run the model too
        self.is_running = True  # False while the metric is computed, which may run the model too

    def edits(self, module: nn.Module, edited: EditedCall) -> Iterable[Edit]:
        if not self.is_running or threading.get_ident() != self.thread:
            return []
        name = self.names[id(module)]
        if not self.where(name):
            self.excluded.add(name)
            return []
        self.count += 1
        return self.edits_of_call(self.count - 1, name, edited)

    @abstractmethod
    def edits_of_call(self, index: int, name: str, edited: EditedCall) -> Iterable[Edit]:
        """Return the changes of a call."""


class _Source(_Calls):
    """Clean run, from which heads are restored. Changes nothing."""

    def __init__(self, model: Any, what: What, positions: ChosenPositions, where: Where | None) -> None:
        super().__init__(model, where)
        self.what, self.chosen_positions, self.given_where = what, positions, where
        self.calls: list[_CleanCall] = []

    def edits_of_call(self, index: int, name: str, edited: EditedCall) -> Iterable[Edit]:
        return [Edit(Stage.READ, lambda call: self._keep(name, call))]

    def _keep(self, name: str, edited: EditedCall) -> None:
        shape = (*edited.output.shape[:3], edited.kv_len)
        if self.what == "output":
            kept: Tensor | AttentionWeights = edited.output.clone()
        elif self.what == "value":
            assert edited.call.value is not None
            kept = edited.call.value.clone()
        else:
            kept = edited.observed().kept(values=False).weights()
        self.calls.append(_CleanCall(name, shape, kept))

    def check(self) -> None:
        """Raise if there is nothing to restore."""
        if not self.calls:
            excluded = f"where= excludes all modules with attention, such as {min(self.excluded, default='')!r}"
            reason = excluded if self.excluded else self.reason_for_none()
            raise ValueError(f"patching found no attention of {type(self.model).__name__}: {reason}")

    def restored(self, index: int, head: int, edited: EditedCall) -> tuple[list[int], Float[Tensor, "batch rows dim"]]:
        """Return the rows of a head that are restored, and its output there."""
        kept = self.calls[index].kept
        q_len = edited.output.shape[2]
        if self.what == "value":
            assert isinstance(kept, Tensor)
            call = edited.call_of_head(head)
            assert call.value is not None
            group = self.calls[index].shape[1] // kept.shape[1]
            chosen = self.chosen_positions.within(0, edited.kv_len)
            values = call.value[:, 0].clone()
            values[:, chosen] = kept[:, head // group, chosen].to(values.dtype)
            return list(range(q_len)), product(call, values[:, None])[:, 0]
        rows = self.chosen_positions.within(0, q_len)
        if isinstance(kept, Tensor):
            return rows, kept[:, head, rows]
        value = edited.value_of_head(head)[:, None]
        return rows, (kept.part(heads=head) @ value)[:, 0, rows]

    def check_call(self, index: int, name: str, edited: EditedCall) -> None:
        """Raise if a call of the corrupted run is not that of the clean run."""
        expected = self.calls[index] if index < len(self.calls) else None
        shape = (*edited.output.shape[:3], edited.kv_len)
        if expected is None or expected.name != name:
            raise ValueError(f"patching: the clean run does not call {name} at this point; expected the same modules")
        if expected.shape != shape:
            raise ValueError(
                f"patching: {name} has a matrix {list(shape)} in the corrupted run, and {list(expected.shape)} in the"
                " clean run; expected inputs of the same length"
            )


class _Restored(_Calls):
    """One head restored from the clean run."""

    def __init__(self, model: Any, source: _Source) -> None:
        super().__init__(model, source.given_where)
        self.source, self.layer, self.head = source, 0, 0

    def edits_of_call(self, index: int, name: str, edited: EditedCall) -> Iterable[Edit]:
        self.source.check_call(index, name, edited)
        return [Edit(Stage.PATTERN, self._restore)] if index == self.layer else []

    def _restore(self, edited: EditedCall) -> None:
        rows, output = self.source.restored(self.layer, self.head, edited)
        edited.write(self.head, rows, output)


class _Traced(_Calls):
    """Calls of the corrupted run whose outputs carry a gradient. Changes nothing."""

    def __init__(self, model: Any, source: _Source) -> None:
        super().__init__(model, source.given_where)
        self.source = source
        self.zeros: list[Tensor] = []  # added to the outputs, so that their gradients are those of the outputs
        self.changes: list[list[tuple[list[int], Tensor]]] = []  # of each head, if it is restored

    def edits_of_call(self, index: int, name: str, edited: EditedCall) -> Iterable[Edit]:
        self.source.check_call(index, name, edited)
        return [Edit(Stage.READ, lambda call: self._trace(index, call))]

    def _trace(self, index: int, edited: EditedCall) -> None:
        changes = []
        with torch.no_grad():
            for head in range(edited.output.shape[1]):
                rows, output = self.source.restored(index, head, edited)
                changes.append((rows, output - edited.output[:, head, rows]))
        self.changes.append(changes)
        self.zeros.append(torch.zeros_like(edited.output, requires_grad=True))
        edited.output = edited.output + self.zeros[-1]


def _exact(model: Any, source: _Source, corrupted: Inputs, metric: Metric, progress: bool) -> Tensor:
    """Run the model once for each head."""
    heads = [(layer, head) for layer, call in enumerate(source.calls) for head in range(call.shape[1])]
    restored, values = _Restored(model, source), []
    with torch.no_grad(), restored.active():
        for layer, head in track(heads, "heads", console=Console(stderr=True), disable=not progress, transient=True):
            restored.layer, restored.head, restored.count = layer, head, 0
            restored.is_running = True
            outputs = call_model(model, corrupted)
            restored.is_running = False
            values.append(_as_scalar(metric(outputs)))
    return _by_layer(source, torch.stack(values))


def _estimated(model: Any, source: _Source, corrupted: Inputs, metric: Metric) -> Tensor:
    """Return metric + gradient · change of the output, for each head."""
    traced = _Traced(model, source)
    with torch.enable_grad(), traced.active():
        outputs = call_model(model, corrupted)
    with torch.enable_grad():
        value = metric(outputs)
        before = _as_scalar(value)
        if not isinstance(value, Tensor) or not value.requires_grad:
            raise ValueError("the metric has no gradient; expected a tensor computed from what the model returns")
        gradients = torch.autograd.grad(value.sum(), traced.zeros, allow_unused=True)
    values = [
        before if gradient is None else before + (gradient[:, head, rows] * change).sum().to(before)
        for gradient, changes in zip(gradients, traced.changes, strict=True)
        for head, (rows, change) in enumerate(changes)
    ]
    return _by_layer(source, torch.stack(values))


def _by_layer(source: _Source, values: Float[Tensor, " every_head"]) -> Float[Tensor, "layers heads"]:
    counts = [call.shape[1] for call in source.calls]
    result = values.new_full((len(counts), max(counts)), torch.nan)
    for row, part in zip(result, values.split(counts), strict=True):
        row[: len(part)] = part
    return result


def _as_scalar(value: Any) -> Float[Tensor, ""]:
    """Return a metric as a tensor on the CPU."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"the metric has shape {tuple(value.shape)}; expected one number")
        value = value.detach().reshape(()).cpu()
        return value if value.is_floating_point() else value.float()
    if not isinstance(value, Real):
        raise TypeError(f"the metric is {describe(value)}; expected a number")
    return torch.tensor(float(value))
