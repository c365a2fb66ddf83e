"""Attention call that interventions change: its mask, the pattern of its heads, and their outputs."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ops import dispatch, reference
from clearhead.ops.call import AttentionCall
from clearhead.ops.masks import LoweredMask, PrecomputedMask
from clearhead.watching.observed import ObservedCall
from clearhead.weights.cells import MAX_CELLS, finite_lse
from clearhead.weights.gather import log_sum_exp

if TYPE_CHECKING:
    from clearhead.watching.running import EditTarget

Rows = slice | Sequence[int]
ALL_ROWS = slice(None)


class Stage(IntEnum):
    """Order in which the edits of a call run, whatever the order of their `with` blocks.

    An ablated head is ablated whether its edges are cut in an inner or in an outer block.
    """

    MASK = 0
    PATTERN = 1
    OUTPUT = 2
    READ = 3


class Edit(NamedTuple):
    """Change of a call."""

    stage: Stage
    apply: Callable[[EditedCall], None]


@dataclass(frozen=True, eq=False)
class Cut:
    """Edges of a call that are removed.

    Attributes:
        heads: the heads whose edges are removed; None for all.
        remaining: the edges that remain.
        renormalize: whether the softmax is over the remaining edges. Otherwise it is over all of them, and the weights
            of the removed ones are then set to 0.
    """

    heads: Sequence[int] | None
    remaining: LoweredMask
    renormalize: bool


class _State(threading.local):
    collected: list[EditedCall] | None = None


_state = _State()


class _PatternEdit(NamedTuple):
    head: int
    rows: Rows
    weights: Callable[[], Float[Tensor, "#batch rows kv_len"]]


class EditedCall:
    """Attention call of a module while interventions change it.

    Attributes:
        output: output of each head `[batch, heads, q_len, value_dim]`, before the output projection.
        kv_len: number of keys.
    """

    def __init__(
        self, output: Float[Tensor, "batch heads q_len value_dim"], kv_len: int, build: Callable[[], AttentionCall]
    ) -> None:
        """Hold a call.

        Args:
            output: what the model computed.
            kv_len: number of keys.
            build: returns the call, with gradients. It raises ValueError if the call is not supported.
        """
        self.output, self.kv_len = output, kv_len
        self._build, self._owns_output = build, False
        self._cuts: list[Cut] = []
        self._patterns: list[_PatternEdit] = []

    @cached_property
    def call(self) -> AttentionCall:
        """The call as the model makes it, with gradients."""
        return self._build()

    @property
    def changes_weights(self) -> bool:
        """True if the weights are not those that the model computed."""
        return bool(self._cuts or self._patterns)

    def write(self, head: int, rows: Rows, output: Float[Tensor, "#batch #rows value_dim"]) -> None:
        """Replace the output of a head, for some of the queries."""
        if not self._owns_output:
            self.output, self._owns_output = self.output.clone(), True
        self.output[:, head, rows] = output.to(self.output.dtype)

    def write_pattern(
        self,
        head: int,
        rows: Rows,
        weights: Callable[[], Float[Tensor, "#batch rows kv_len"]],
        output: Float[Tensor, "#batch rows value_dim"],
    ) -> None:
        """Replace the pattern of a head, for some of the queries.

        Args:
            head: the head.
            rows: the queries.
            weights: returns the pattern, which observers read.
            output: product of the pattern and the values.
        """
        self._patterns.append(_PatternEdit(head, rows, weights))
        self.write(head, rows, output)

    def add_cut(self, cut: Cut) -> None:
        """Remove edges. `apply_cuts` computes the outputs, because several cuts may concern the same head."""
        self._cuts.append(cut)

    def apply_cuts(self) -> None:
        """Compute the outputs of all heads whose edges are removed."""
        for heads, softmax, visible in self._cut_groups():
            output, lse = _attend(visible, with_lse=visible is not softmax)
            if visible is not softmax:
                whole = _attend(softmax, with_lse=True)[1]
                share = log_sum_exp(visible, lse) - finite_lse(log_sum_exp(softmax, whole))
                output = output * torch.exp(share)[..., None].to(output.dtype)
            if len(heads) == self.output.shape[1]:
                self.output = output.to(self.output.dtype)  # not to be changed in place: autograd may have saved it
            else:
                for index, head in enumerate(heads):
                    self.write(head, ALL_ROWS, output[:, index])

    def value_of_head(self, head: int) -> Float[Tensor, "batch kv_len value_dim"]:
        """Return the values that a head reads."""
        assert self.call.value is not None
        return self.call.value[:, head // self.call.group]

    def call_of_head(self, head: int) -> AttentionCall:
        """Return the call of one head, without its removed edges."""
        for heads, softmax, visible in self._cut_groups():
            if head in heads:
                if visible is not softmax:
                    raise ValueError("values of a head whose edges are cut with renormalize=False cannot be replaced")
                return visible.select(range(visible.shape[0]), [heads.index(head)])
        return self.call.select(range(self.call.shape[0]), [head])

    def observed(self) -> ObservedCall:
        """Return the call with the weights that the output follows from, for observers.

        Raises:
            ValueError: if the weights of single heads are changed, and the matrix is too large to be stored.
        """
        groups = self._cut_groups()
        if not self._patterns and not groups:
            return ObservedCall(self.call.detached())
        if not self._patterns and len(groups) == 1 and len(groups[0][0]) == self.call.shape[1]:
            _, softmax, visible = groups[0]
            if visible is softmax:
                return ObservedCall(visible.detached())
            with torch.no_grad():
                lse = _attend(softmax.without_dropout(), with_lse=True)[1]
            return ObservedCall(visible.detached(), lse, normalized=False)
        with torch.no_grad():
            return self._observed_dense(groups)

    def _observed_dense(self, groups: list[tuple[list[int], AttentionCall, AttentionCall]]) -> ObservedCall:
        """Return the call with all scores, which represent any weights."""
        call = self.call.detached()
        if math.prod(call.shape) > MAX_CELLS:
            raise ValueError(
                f"heads of a matrix with {math.prod(call.shape)} cells were changed one by one; expected at most"
                f" {MAX_CELLS} to observe it. Choose fewer tokens, or cut the edges of all heads"
            )
        scores = reference.scores(call, call.lower())
        lse = reference.log_sum_exp_of_scores(scores, call.sinks)
        normalized = True
        for heads, softmax, visible in groups:
            scores[:, heads] = reference.scores(visible, visible.lower()).detach()
            of_softmax = scores[:, heads] if visible is softmax else reference.scores(softmax, softmax.lower())
            lse[:, heads] = reference.log_sum_exp_of_scores(of_softmax, softmax.sinks).detach()
            normalized &= visible is softmax
        for head, rows, weights in self._patterns:
            pattern = weights().to(scores.dtype)
            if bool((pattern < 0).any()):
                raise ValueError(f"the pattern of head {head} contains negative weights; expected at least 0")
            scores[:, head, rows], lse[:, head, rows] = pattern.log(), 0.0
            sums = pattern.sum(dim=-1)
            normalized &= call.sinks is None and torch.allclose(sums, torch.ones_like(sums))
        return ObservedCall(call.with_scores(scores), lse, normalized=normalized)

    def _cut_groups(self) -> list[tuple[list[int], AttentionCall, AttentionCall]]:
        """Return groups of heads with the same removed edges, each with two calls.

        The first has the edges that the softmax is over, the second those that remain. They are the same object if
        they have the same edges.
        """
        if not self._cuts:
            return []
        groups: dict[tuple[tuple[int, bool], ...], tuple[list[Cut], list[int]]] = {}
        for head in range(self.output.shape[1]):
            cuts = [cut for cut in self._cuts if cut.heads is None or head in cut.heads]
            if cuts:
                group = tuple((id(cut.remaining), cut.renormalize) for cut in cuts)
                groups.setdefault(group, (cuts, []))[1].append(head)
        result = []
        for cuts, heads in groups.values():
            whole = len(heads) == self.call.shape[1]
            part = self.call if whole else self.call.select(range(self.call.shape[0]), heads)
            softmax = _masked(part, [cut for cut in cuts if cut.renormalize])
            result.append((heads, softmax, _masked(softmax, [cut for cut in cuts if not cut.renormalize])))
        return result


def edit(targets: list[EditTarget], output: Tensor, kv_len: int, build: Callable[[], AttentionCall]) -> EditedCall:
    """Apply all interventions to a call.

    Args:
        targets: the interventions, each with its module.
        output: what the model computed, `[batch, heads, q_len, value_dim]`.
        kv_len: number of keys.
        build: returns the call, with gradients.
    """
    edited = EditedCall(output, kv_len, build)
    edits = [each for intervention, module in targets for each in intervention.edits(module, edited)]
    _apply(edited, (each for each in edits if each.stage == Stage.MASK))
    edited.apply_cuts()
    _apply(edited, sorted((each for each in edits if each.stage > Stage.MASK), key=lambda each: each.stage))
    if _state.collected is not None:
        _state.collected.append(edited)
    return edited


@contextmanager
def collected_edits() -> Iterator[list[EditedCall]]:
    """Collect the calls of this thread that interventions change within a `with` block."""
    before, _state.collected = _state.collected, []
    try:
        yield _state.collected
    finally:
        _state.collected = before


def _apply(edited: EditedCall, edits: Iterable[Edit]) -> None:
    for each in edits:
        each.apply(edited)


def _masked(call: AttentionCall, cuts: list[Cut]) -> AttentionCall:
    """Return the call without the edges that cuts remove."""
    for cut in cuts:
        remaining = PrecomputedMask(cut.remaining, "cut")
        call = replace(call, mask=remaining if call.mask is None else call.mask & remaining)
    return call


def _attend(call: AttentionCall, *, with_lse: bool) -> tuple[Tensor, Tensor]:
    output, lse = dispatch.choose(call)[1].attend(call, with_lse)
    return output, output.new_empty(0) if lse is None else lse
