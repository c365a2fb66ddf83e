"""Calls of a generation, joined into one matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.watching.observed import KeptWeights
from clearhead.weights.joining import join_rows
from clearhead.weights.matrix import AttentionWeights

Marks = Float[Tensor, "batch kv_heads kv_len"]


def join(calls: Sequence[KeptWeights]) -> AttentionWeights:
    """Return one matrix of consecutive calls, in which each continues the one before.

    Args:
        calls: either each call appends its keys to those before, of which the first may be dropped, as in a KV cache
            that grows or slides; or all calls have the same keys, as in cross-attention and with a static KV cache.

    Raises:
        ValueError: if a call does not continue the one before.
    """
    matrices = [call.weights() for call in calls]
    if len(matrices) == 1:
        return matrices[0]
    keys = _Keys(calls[0])
    for index in range(1, len(calls)):
        previous, current = matrices[index - 1].shape, matrices[index].shape
        if previous[:2] != current[:2] or current[2] >= current[3] or not keys.continue_with(calls[index]):
            raise ValueError(
                f"call {index} is {tuple(current)} and does not continue the one before, {tuple(previous)}; expected"
                " the calls of one generation, whose KV cache is not reordered as in beam search"
            )
    _, _, queries, first_keys = matrices[0].shape
    total = sum(weights.shape[2] for weights in matrices)
    if keys.fixed:  # a static KV cache contains the queries, cross-attention does not
        queries = first_keys if total <= first_keys else total
    return join_rows(matrices, keys.offsets, keys.length, first_keys - queries)


class _Keys:
    """Keys of the calls so far, by position.

    Attributes:
        length: number of keys.
        offsets: position of the first key of each call.
        fixed: True if all calls have the same keys; known after the second call.
    """

    def __init__(self, first: KeptWeights) -> None:
        _, _, self._read, self.length = first.weights().shape
        self._marks = first.marks
        self.offsets = [0]
        self.fixed: bool | None = None

    def continue_with(self, call: KeptWeights) -> bool:
        """Add a call. Return False if its keys are not those of the calls before."""
        _, _, q_len, kv_len = call.weights().shape
        offset = self.length + q_len - kv_len
        if not self.fixed and offset >= 0 and self._appends(call.marks, offset, q_len):
            self.fixed = False
            if self._marks is not None and call.marks is not None:
                self._marks = torch.cat([self._marks, call.marks[:, :, kv_len - q_len :]], dim=2)
            self.length += q_len
            self.offsets.append(offset)
        elif self.fixed is not False and kv_len == self.length and self._repeats(call.marks):
            self.fixed = True
            self._marks = call.marks
            self.offsets.append(0)
        else:
            return False
        self._read += q_len
        return True

    def _appends(self, marks: Marks | None, offset: int, q_len: int) -> bool:
        if marks is None or self._marks is None:
            return offset == 0
        return torch.equal(marks[:, :, : marks.shape[2] - q_len], self._marks[:, :, offset:])

    def _repeats(self, marks: Marks | None) -> bool:
        """Return whether the keys are the same, at least at the positions of a static KV cache that were filled."""
        if marks is None or self._marks is None:
            return True
        ends = (self.length, min(self.length, self._read))
        return any(torch.equal(marks[:, :, :end], self._marks[:, :, :end]) for end in ends)
