"""Observed attention calls, and lazy matrices that are kept after the model has continued."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.functional import lazy_weights
from clearhead.ops.call import AttentionCall
from clearhead.weights.matrix import AttentionWeights, Choice
from clearhead.weights.mutation import Fingerprints, NamedTensors, inputs_of


class ObservedCall:
    """Attention call of a watched model, while the model is running. The matrix follows from its arguments."""

    def __init__(
        self,
        call: AttentionCall | Callable[[], AttentionCall],
        lse: Float[Tensor, "batch heads q_len"] | None = None,
        *,
        inputs: NamedTensors = (),
        normalized: bool = True,
    ) -> None:
        """Hold a call.

        Args:
            call: the call, detached, or a function that computes it.
            lse: log-sum-exp of the call, if the kernel returned it.
            inputs: tensors that the function reads.
            normalized: whether `lse` is that of the call. An intervention may remove weights without normalizing the
                rows again.
        """
        self._call, self._lse, self._inputs, self._normalized = call, lse, inputs, normalized

    @cached_property
    def call(self) -> AttentionCall:
        """The call, without dropout."""
        with torch.no_grad():
            call = self._call if isinstance(self._call, AttentionCall) else self._call()
        return call.without_dropout()

    @cached_property
    def weights(self) -> AttentionWeights:
        """Lazy matrix to read at once."""
        if not self._normalized:
            return self._unnormalized(self.call, check_mutation=False)
        with torch.no_grad():
            return lazy_weights(self.call, self._lse, check_mutation=False)

    def attending(self) -> Bool[Tensor, "batch q_len"] | None:
        """Return True for each query that may attend to a key; None if there is no mask, so that all may."""
        if self.call.mask is None and self.call.tensor_bias is None and self.call.shape[3]:
            return None
        return self.weights.attending()

    def kept(self, *, values: bool) -> KeptWeights:
        """Return the weights for later use, when the model may have overwritten a KV cache.

        Args:
            values: keep the values too, and queries and keys even if the scores take less memory.
        """
        if not isinstance(self._call, AttentionCall):
            return KeptWeights(self._call, self._inputs, keep_qk=values)
        marks = self.call.key[..., 0].clone() if self.call.key.shape[3] else None
        call = self.call if values else replace(self.call, value=None)
        q_len = call.shape[2]
        if _may_be_cache(call.key, q_len):
            call = replace(call, key=call.key.clone())
        if call.value is not None and _may_be_cache(call.value, q_len):
            call = replace(call, value=call.value.clone())
        if not self._normalized:
            return KeptWeights.of(self._unnormalized(call), marks=marks)
        if self._lse is None and (values or not call.takes_less_as_scores()):
            return KeptWeights(lambda: call, inputs_of(call), keep_qk=values, marks=marks)
        with torch.no_grad():
            return KeptWeights.of(lazy_weights(call, self._lse, keep_qk=values), marks=marks)

    def _unnormalized(self, call: AttentionCall, *, check_mutation: bool = True) -> AttentionWeights:
        assert self._lse is not None
        return AttentionWeights(call, self._lse, normalized=False, check_mutation=check_mutation)


class KeptWeights:
    """Lazy matrix, or the arguments from which it is computed on first use.

    Attributes:
        marks: first number of each key, to compare the keys of two calls; None if unknown.
        first_row: index of the first query in the call, if some queries were chosen.
    """

    def __init__(
        self,
        build: Callable[[], AttentionCall],
        inputs: NamedTensors,
        *,
        keep_qk: bool = False,
        marks: Float[Tensor, "batch kv_heads kv_len"] | None = None,
    ) -> None:
        """Hold the arguments of a call.

        Args:
            build: computes the call.
            inputs: tensors that `build` reads. Changes of them are detected.
            keep_qk: hold query and key even if the scores take less memory.
            marks: first number of each key.
        """
        self.marks, self.first_row = marks, 0
        self._read: int | None = None
        self._build, self._inputs, self._keep_qk = build, inputs, keep_qk
        self._fingerprints = Fingerprints(inputs)
        self._weights: AttentionWeights | None = None

    @classmethod
    def of(cls, weights: AttentionWeights, *, marks: Tensor | None = None) -> KeptWeights:
        """Hold a matrix."""
        kept = cls(_computed, (), marks=marks)
        kept._weights = weights
        return kept

    def weights(self) -> AttentionWeights:
        """Return the lazy matrix, without gradients."""
        if self._weights is None:
            self._fingerprints.check(self._inputs)
            with torch.no_grad():
                self._weights = lazy_weights(self._build().without_dropout(), keep_qk=self._keep_qk)
            self._build, self._inputs = _computed, ()  # releases what the matrix does not hold
        return self._weights

    def part(
        self, *, batch: int | None = None, heads: Choice | None = None, queries: slice | None = None
    ) -> KeptWeights:
        """Hold one sequence, and some of the heads and queries."""
        weights = self.weights()
        marks = self.marks if self.marks is None or batch is None else self.marks[batch : batch + 1]
        kept = KeptWeights.of(weights.part(batch=batch, heads=heads, queries=queries), marks=marks)
        kept._read = self.read
        kept.first_row = self.first_row + (0 if queries is None else queries.indices(weights.shape[2])[0])
        return kept

    @property
    def read(self) -> int:
        """Number of queries of the call, of which some may have been chosen."""
        return self.weights().shape[2] if self._read is None else self._read

    @property
    def nbytes(self) -> int:
        """Memory of the tensors. Tensors that several calls share count once for each."""
        if self._weights is None:
            return sum(tensor.nbytes for _, tensor in self._inputs)
        value = self._weights.value
        return self._weights.held_bytes + (0 if value is None else value.nbytes)


def _computed() -> AttentionCall:
    raise AssertionError("the matrix is already computed")


def _may_be_cache(tensor: Float[Tensor, "batch heads length width"], q_len: int) -> bool:
    """Return whether the next call may overwrite keys or values, because they are a buffer or part of one.

    A KV cache contains more positions than the call has queries. If it is filled for the first time, the memory of the
    positions ends before that of the next sequence or head begins.
    """
    length, step = tensor.shape[2], tensor.stride(2)
    outer = [stride for axis, stride in enumerate(tensor.stride()) if axis != 2 and stride > step]
    return length != q_len or (length > 0 and bool(outer) and min(outer) > length * step)
