"""`AttentionCall`: the validated arguments of one attention call, the input of every backend and statistic.

`arguments.py` checks the user's arguments and builds it. `PARTS` lists its tensors and numbers. Selecting heads, moving
to another device, saving to a file and passing through a custom op are derived from that table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.ops._mask_cache import cached, current_stream, is_cacheable, keep_results_for
from clearhead.ops.alibi import ALiBi
from clearhead.ops.key_ranges import KeyRanges
from clearhead.ops.masks import LoweredMask, Mask, PrecomputedMask, query_positions

NO_MASK = LoweredMask()
MATRIX_AXES = ("batch", "heads", "q_len", "kv_len")


class Part(NamedTuple):
    """One tensor or number of a call."""

    schema: str  # its type in the schema of a custom op
    axes: tuple[str, ...] = ()
    broadcasts: bool = False  # any axis may be 1
    differentiable: bool = False

    @property
    def is_tensor(self) -> bool:
        return self.schema.startswith("Tensor")


PARTS = {
    "query": Part("Tensor", ("batch", "heads", "q_len", "key_dim"), differentiable=True),
    "key": Part("Tensor", ("batch", "kv_heads", "kv_len", "key_dim"), differentiable=True),
    "value": Part("Tensor", ("batch", "kv_heads", "kv_len", "value_dim"), differentiable=True),
    "query_start": Part("Tensor", ("batch",)),
    "ranges": Part("Tensor?", ("ranges", "ends", "batch", "q_len"), broadcasts=True),
    "dense": Part("Tensor?", MATRIX_AXES, broadcasts=True),
    "tensor_bias": Part("Tensor?", MATRIX_AXES, broadcasts=True, differentiable=True),
    "slopes": Part("Tensor?", ("heads",), differentiable=True),
    "sinks": Part("Tensor?", ("heads",), differentiable=True),
    "seed": Part("Tensor?"),
    "scale": Part("float"),
    "softcap": Part("float?"),
    "dropout": Part("float"),
}
TENSORS = tuple(name for name, part in PARTS.items() if part.is_tensor)
# options that a backend may not support; absent by default
OPTIONS = tuple(
    name
    for name, part in reversed(PARTS.items())
    if part.schema.endswith("?") and name not in ("ranges", "dense", "tensor_bias", "slopes", "seed")
)
DIFFERENTIABLE = tuple(name for name, part in PARTS.items() if part.differentiable)


@dataclass(eq=False, slots=True)
class AttentionCall:
    """One attention call: A = softmax(softcap(scale · Q Kᵀ) + bias) over the keys that the mask allows; output A V.

    Immutable by convention: a frozen dataclass takes four times as long to build.
    """

    query: Float[Tensor, "batch heads q_len key_dim"]
    key: Float[Tensor, "batch kv_heads kv_len key_dim"]
    value: Float[Tensor, "batch kv_heads kv_len value_dim"] | None
    mask: Mask | None
    bias: Float[Tensor, "#batch #heads #q_len #kv_len"] | ALiBi | None
    scale: float
    softcap: float | None
    sinks: Float[Tensor, " heads"] | None
    dropout: float
    query_start: int | Int[Tensor, " starts"]  # one for all sequences, or one per sequence
    seed: Int[Tensor, " 2"] | None  # dropout is a function of it and (batch, head, query, key)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the matrix: batch, heads, q_len, kv_len."""
        batch, heads, q_len, _ = self.query.shape
        return batch, heads, q_len, self.key.shape[2]

    @property
    def group(self) -> int:
        """Query heads per key head: query head h reads key head h // group."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def compute_dtype(self) -> torch.dtype:
        """Dtype of scores, log-sum-exp and statistics: float64 for float64, float32 for everything else."""
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32

    @property
    def slopes(self) -> Float[Tensor, " heads"] | None:
        return self.bias.slopes if isinstance(self.bias, ALiBi) else None

    @property
    def tensor_bias(self) -> Float[Tensor, "#batch #heads #q_len #kv_len"] | None:
        return None if isinstance(self.bias, ALiBi) else self.bias

    @property
    def ranges(self) -> KeyRanges | None:
        return self.lower().ranges

    @property
    def dense(self) -> Bool[Tensor, "#batch #heads #q_len #kv_len"] | None:
        return self.lower().dense

    def positions(self) -> Int[Tensor, "#batch q_len"]:
        """Return the position of each query among the keys."""
        return query_positions(self.query.shape[2], self.key.shape[2], self.query_start, self.query.device)

    def lower(self) -> LoweredMask:
        """Return the mask in the form that kernels read, cached per mask object; empty without a mask."""
        mask = self.mask
        if isinstance(mask, PrecomputedMask):
            return mask.lowered
        if mask is None:
            return NO_MASK
        start, kv_len = self.query_start, self.key.shape[2]
        if isinstance(start, Tensor) or mask.tensors or not is_cacheable(self.query):
            return mask.lower(self.positions(), kv_len)
        device = self.query.device
        key = (self.query.shape[2], kv_len, start, device, current_stream(device))
        return cached(mask, "lowered", key, lambda: self._lower_to_keep(mask))

    def _lower_to_keep(self, mask: Mask) -> LoweredMask:
        lowered = mask.lower(self.positions(), self.key.shape[2])
        if lowered.ranges is not None:
            keep_results_for(lowered.ranges)
        return lowered

    def with_lowered_mask(self) -> AttentionCall:
        """Return the call with its mask already lowered, so that it is lowered only once."""
        if self.mask is None or isinstance(self.mask, PrecomputedMask):
            return self
        mask = PrecomputedMask(self.lower(), self.mask)
        # `replace` takes seven times as long
        return AttentionCall(
            self.query, self.key, self.value, mask, self.bias, self.scale, self.softcap, self.sinks, self.dropout,
            self.query_start, self.seed,
        )  # fmt: skip

    def without_dropout(self) -> AttentionCall:
        """Return the call whose output is the product of the weights, which are those before dropout, and values."""
        return self if self.seed is None else replace(self, seed=None, dropout=0.0)

    def detached(self) -> AttentionCall:
        """Return the call without gradients."""
        value, bias, sinks = self.value, self.bias, self.sinks
        return replace(
            self,
            query=self.query.detach(),
            key=self.key.detach(),
            value=None if value is None else value.detach(),
            bias=ALiBi(bias.slopes.detach()) if isinstance(bias, ALiBi) else None if bias is None else bias.detach(),
            sinks=None if sinks is None else sinks.detach(),
        )

    def ungrouped(self) -> AttentionCall:
        """Return the call with a key head for each query head, and without values; differentiable."""
        return replace(self, key=self.key.repeat_interleave(self.group, dim=1), value=None)

    def tensors(self) -> list[Tensor]:
        """Return every tensor of the call except the seed."""
        lowered = self.lower()
        parts = (*self.differentiable(), self.query_start, lowered.ranges, lowered.dense)
        return [part for part in parts if isinstance(part, Tensor)]

    def differentiable(self) -> tuple[Tensor | None, ...]:
        """Return the tensors that may have a gradient, in the order of `DIFFERENTIABLE`; None for an absent one."""
        return self.query, self.key, self.value, self.tensor_bias, self.slopes, self.sinks

    def requires_grad(self) -> bool:
        """Return whether a gradient may flow into any part."""
        return require_grad(self.differentiable())

    def scores_require_grad(self) -> bool:
        """Return whether a gradient may flow into the scores, that is, into any part except the values."""
        return require_grad((self.query, self.key, self.tensor_bias, self.slopes, self.sinks))

    def parts(self) -> dict[str, Any]:
        """Return the tensors and numbers of the call, keyed by the names in `PARTS`."""
        call = self.with_lowered_mask()
        return {name: getattr(call, name) for name in PARTS}

    @classmethod
    def from_parts(cls, parts: dict[str, Any], original: Mask | str | None = "precomputed mask") -> AttentionCall:
        """Build a call from its parts.

        Args:
            parts: tensors and numbers, keyed by the names in `PARTS`.
            original: mask that `ranges` and `dense` were computed from, used as repr; None if the call has no mask.
        """
        fields = dict(parts)
        lowered = LoweredMask(fields.pop("ranges"), fields.pop("dense"))
        bias, slopes = fields.pop("tensor_bias"), fields.pop("slopes")
        mask = None if original is None else PrecomputedMask(lowered, original)
        return cls(**fields, mask=mask, bias=bias if slopes is None else ALiBi(slopes))

    def _map_parts(self, function: Callable[[Part, Tensor], Tensor]) -> AttentionCall:
        """Return the call with a function applied to every tensor except the seed."""
        parts = {
            name: function(PARTS[name], value) if isinstance(value, Tensor) and PARTS[name].axes else value
            for name, value in self.parts().items()
        }
        return AttentionCall.from_parts(parts, self.mask)

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> AttentionCall:
        """Return the call with a function applied to every tensor, such as a move to another device."""
        return self._map_parts(lambda _, tensor: function(tensor))

    def select(self, batch: Sequence[int], heads: Sequence[int]) -> AttentionCall:
        """Return the call for some sequences and heads: views if the indices are consecutive, otherwise copies."""
        lengths = {"batch": self.shape[0], "heads": self.shape[1], "kv_heads": self.key.shape[1]}
        indices = {"batch": batch, "heads": heads, "kv_heads": kv_heads_of(heads, self.group)}

        def cut(part: Part, tensor: Tensor) -> Tensor:
            for dim, axis in enumerate(part.axes):
                if axis in indices and (tensor.shape[dim] > 1 or lengths[axis] == 1):
                    tensor = _take(tensor, dim, indices[axis])
            return tensor

        return self._map_parts(cut)

    def slice_queries(self, rows: slice) -> AttentionCall:
        """Return the call for some of the queries (a slice with step 1)."""

        def cut(part: Part, tensor: Tensor) -> Tensor:
            if "q_len" not in part.axes:
                return tensor
            dim = part.axes.index("q_len")
            if part.broadcasts and tensor.shape[dim] == 1 and self.shape[2] > 1:
                return tensor
            return tensor[(slice(None),) * dim + (rows,)]

        return replace(self._map_parts(cut), query_start=self.query_start + rows.start)

    def takes_less_as_scores(self) -> bool:
        """Return whether the scores take less memory than the keys, as in decoding."""
        _, heads, q_len, _ = self.query.shape
        _, kv_heads, _, key_dim = self.key.shape
        return heads * q_len <= kv_heads * key_dim

    def with_scores(self, scores: Float[Tensor, "batch heads q_len kv_len"]) -> AttentionCall:
        """Return a call for the same matrix with given scores: the scores as bias, queries and keys of width 0."""
        query, key = (scores.new_empty((*tensor.shape[:3], 0)) for tensor in (self.query, self.key))
        mask = None if self.mask is None else PrecomputedMask(LoweredMask(), self.mask)  # the scores include it
        return replace(self, query=query, key=key, mask=mask, bias=scores, scale=1.0, softcap=None)


def require_grad(tensors: Sequence[Tensor | None]) -> bool:
    """Return whether a gradient may flow into any of some tensors."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _take(tensor: Tensor, dim: int, indices: Sequence[int]) -> Tensor:
    """Select some indices along an axis: a view if they are consecutive, otherwise a copy."""
    first, count = indices[0], len(indices)
    if list(indices) == list(range(first, first + count)):
        return tensor.narrow(dim, first, count)
    return tensor.index_select(dim, torch.tensor(indices, device=tensor.device))


def kv_heads_of(heads: Sequence[int], group: int) -> list[int]:
    """Return the key heads that some query heads read, repeated so that each serves the same number of them."""
    runs = [(kv_head, len(list(run))) for kv_head, run in groupby(head // group for head in heads)]
    share = math.gcd(*(count for _, count in runs))
    return [kv_head for kv_head, count in runs for _ in range(count // share)]
