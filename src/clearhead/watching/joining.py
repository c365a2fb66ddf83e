"""Calls of a generation, joined into one matrix."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.watching.observed import KeptWeights
from clearhead.weights.joining import join_rows
from clearhead.weights.matrix import AttentionWeights

Marks = Float[Tensor, "batch kv_heads kv_len"]


def join(calls: Sequence[KeptWeights]) -> AttentionWeights:
    """Return one matrix of consecutive calls, in which each continues the one before; see `Run`.

    Raises:
        ValueError: if a call does not continue the one before.
    """
    run = Run(calls[0])
    for index in range(1, len(calls)):
        reason = run.add(calls[index])
        if reason is not None:
            previous, current = (tuple(calls[i].weights().shape) for i in (index - 1, index))
            raise ValueError(
                f"call {index} is {current} and does not continue the one before, {previous}: {reason}; expected the"
                " calls of one generation"
            )
    return run.joined()


def split(calls: Sequence[KeptWeights], starts: Container[int] = ()) -> list[Run]:
    """Return runs of calls. A run ends before a call that does not continue it.

    Args:
        calls: consecutive calls.
        starts: indices of calls that begin a run in any case.
    """
    runs: list[Run] = []
    for index, call in enumerate(calls):
        if not runs or index in starts or runs[-1].add(call) is not None:
            runs.append(Run(call))
    return runs


def query_start(call: KeptWeights) -> int:
    """Return the position of the first query among the keys.

    Queries are the last keys, except in a static KV cache, whose end is masked. There the last key that a query may
    attend to is the one of the same token.
    """
    weights = call.weights()
    _, _, q_len, kv_len = weights.shape
    given = weights.query_start
    start = int(given[0] if isinstance(given, Tensor) else given)
    if not q_len or call.read >= kv_len or start != kv_len - call.read + call.first_row:
        return start
    visible = (weights.scores[..., -1, :] > torch.finfo(weights.dtype).min / 2).flatten(0, -2).any(dim=0).nonzero()
    return int(visible[-1]) + 1 - q_len if len(visible) else start


class Run:
    """Consecutive calls of one module, in which each continues the one before.

    Either each call appends its keys to those before, of which the first may be dropped, as in a KV cache that grows
    or slides; or a static KV cache is filled; or all calls have the same keys, as in cross-attention.

    Attributes:
        calls: the calls.
        start: position of the first query among the keys.
        reader: run of the self-attention that reads the queries of a cross-attention; None if unknown.
    """

    def __init__(self, first: KeptWeights) -> None:
        self.calls = [first]
        self.reader: Run | None = None
        self._length = first.weights().shape[3]
        self.start = query_start(first)
        self._marks = first.marks
        self._offsets = [0]  # position of the first key of each call
        self._grows = self._is_static = self._repeats = False  # one is True from the second call on
        self._end = self.start + first.weights().shape[2]  # position after the last chosen query
        self._filled = self.start - first.first_row + first.read  # position after the last query

    @property
    def is_joined(self) -> bool:
        """True if there are several calls."""
        return len(self.calls) > 1

    @property
    def kv_len(self) -> int:
        """Number of keys of all calls, without those at the end of a static KV cache that were never filled."""
        return self._filled if self._is_static else self._length

    @property
    def crosses(self) -> bool:
        """True if all of several calls have the same keys, so that the queries are not among them."""
        return self._repeats

    def add(self, call: KeptWeights) -> str | None:
        """Add a call. Return the reason if it does not continue the calls before; it is not added then."""
        shape, previous = call.weights().shape, self.calls[-1].weights().shape
        kv_len, first = shape[3], not self.is_joined
        offset = self._length + call.read - kv_len
        if shape[:2] != previous[:2]:
            return "it has other sequences or heads"
        if call.read >= kv_len:
            return "it reads a text from the start, as for another text or without a KV cache (use_cache=False)"
        if (first or self._grows) and offset >= 0 and self._appends(call, offset):
            return self._append(call, offset)
        if (first or self._repeats) and kv_len == self._length and self._has_same_keys(call.marks, kv_len):
            self._repeats = True
            self._offsets.append(0)
            self.calls.append(call)
            return None
        is_static = kv_len >= self._length if first else self._is_static and kv_len == self._length
        if is_static and self._marks is not None and self._has_same_keys(call.marks, self._filled):
            return self._fill(call)
        if offset == 0 or kv_len == self._length:
            return "it has other keys, as for another text, or if beam search reorders the KV cache"
        return f"its {kv_len} keys are not the {self._length} before and {call.read} new ones"

    def joined(self) -> AttentionWeights:
        """Return one matrix of all calls."""
        matrices = [call.weights() for call in self.calls]
        if not self.is_joined:
            return matrices[0]
        start = self.start
        if self._repeats:
            start = min(0, self.kv_len - sum(weights.shape[2] for weights in matrices))
        return join_rows(matrices, self._offsets, self.kv_len, start)

    def _append(self, call: KeptWeights, offset: int) -> str | None:
        reason = self._follow(call, offset)
        if reason is None:
            self._grows = True
            if self._marks is not None and call.marks is not None:
                known, new = _with_equal_heads(self._marks, call.marks)
                self._marks = torch.cat([known, new[:, :, self._length - offset :]], dim=2)
            self._length += call.read
            self._offsets.append(offset)
        return reason

    def _fill(self, call: KeptWeights) -> str | None:
        reason = self._follow(call, 0)
        if reason is None:
            self._is_static, self._marks, self._length = True, call.marks, call.weights().shape[3]
            self._offsets.append(0)
        return reason

    def _follow(self, call: KeptWeights, offset: int) -> str | None:
        """Add a call whose queries are the next tokens. Return a reason if queries between them were left out."""
        start = offset + query_start(call)
        if start != self._end:
            return "queries= leaves out queries between them"
        self._end = start + call.weights().shape[2]
        self._filled = start - call.first_row + call.read
        self.calls.append(call)
        return None

    def _appends(self, call: KeptWeights, offset: int) -> bool:
        if call.marks is None or self._marks is None:
            return offset == 0
        new, known = _with_equal_heads(call.marks, self._marks)
        return torch.equal(new[:, :, : self._length - offset], known[:, :, offset:])

    def _has_same_keys(self, marks: Marks | None, end: int) -> bool:
        """Return whether the keys before a position are the same. They are if they are unknown."""
        if marks is None or self._marks is None:
            return True
        new, known = _with_equal_heads(marks, self._marks)
        return torch.equal(new[:, :, :end], known[:, :, :end])


def _with_equal_heads(first: Marks, second: Marks) -> tuple[Marks, Marks]:
    """Repeat key heads, because transformers repeats them only in calls with a mask."""
    heads = math.lcm(first.shape[1], second.shape[1])
    repeated = [marks.repeat_interleave(heads // marks.shape[1], dim=1) for marks in (first, second)]
    return repeated[0], repeated[1]
