"""Base class `Mask`, its lowered form for kernels, and the operators `&` and `|`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from clearhead._utils.checks import check_int, describe
from clearhead._utils.tensor_checks import check_query_start
from clearhead.ops import key_ranges
from clearhead.ops.key_ranges import KeyRanges

_MAX_PICTURE_SIDE = 64


def query_positions(
    q_len: int, kv_len: int, query_start: int | Tensor | None = None, device: torch.device | str | None = None
) -> Int[Tensor, "batch q_len"]:
    """Return the positions of queries among the keys: `[1, q_len]`, or `[batch, q_len]` with a start per sequence."""
    if isinstance(query_start, Tensor):
        return query_start.to(device).long()[:, None] + torch.arange(q_len, device=device)
    start = kv_len - q_len if query_start is None else query_start
    return torch.arange(start, start + q_len, device=device)[None]


class Mask:
    """Base class of all masks. Masks combine with `&` and `|`."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Tensors of the user that the mask reads: those of its `Dense` parts."""
        return ()

    @property
    def version(self) -> tuple[int, ...]:
        """Version counters of the mask's tensors, which every in-place change increments."""
        return ()

    @property
    def relative(self) -> bool:
        """True if the mask depends only on the distance between query and key."""
        return False

    @property
    def device(self) -> torch.device | None:
        """Device of the `Dense` parts; None without one, because lengths are moved to the device of the queries."""
        return self.tensors[0].device if self.tensors else None

    def __and__(self, other: Mask) -> Mask:
        return And(self, _operand("&", other))

    def __or__(self, other: Mask) -> Mask:
        return Or(self, _operand("|", other))

    def lower(self, positions: Int[Tensor, "batch q_len"], kv_len: int) -> LoweredMask:
        """Return the form that kernels read, for queries at `positions`."""
        raise NotImplementedError

    def shape_error(self, batch: int, heads: int, q_len: int, kv_len: int) -> str | None:
        """Return why this mask does not fit a matrix of this shape; None if it does."""
        return None

    def ranges(self, q_len: int, kv_len: int, query_start: int | Tensor | None = None) -> KeyRanges:
        """Return the key ranges `[first, last)` of each query: int32 `[ranges, 2, batch or 1, q_len]`.

        Raises:
            ValueError: the mask contains a `Dense` mask.
        """
        lowered = self.lower(self._positions(q_len, kv_len, query_start), kv_len)
        if lowered.dense is not None or lowered.ranges is None:
            raise ValueError(f"{self} has no key ranges, because it contains a Dense mask; use .dense()")
        return lowered.ranges

    def dense(
        self, q_len: int, kv_len: int, query_start: int | Tensor | None = None
    ) -> Bool[Tensor, "batch heads q_len kv_len"]:
        """Return the mask as a bool tensor. Batch and heads are 1 if the mask does not depend on them."""
        lowered = self.lower(self._positions(q_len, kv_len, query_start), kv_len)
        return lowered.allowed(q_len, torch.arange(kv_len, device=self.device))

    def picture(self, q_len: int, kv_len: int | None = None, query_start: int | Tensor | None = None) -> str:
        """Draw the mask of the first sequence and head: queries down, keys across, `x` for each allowed key.

        Examples:
            >>> from clearhead import Window
            >>> print(Window(before=1).picture(4))
            x . . .
            x x . .
            . x x .
            . . x x
        """
        q_len = check_int("q_len", q_len, least=0)
        kv_len = q_len if kv_len is None else check_int("kv_len", kv_len, least=0)
        if max(q_len, kv_len) > _MAX_PICTURE_SIDE:
            raise ValueError(
                f"q_len is {q_len} and kv_len {kv_len}; expected at most {_MAX_PICTURE_SIDE} for a readable picture"
            )
        rows = self.dense(q_len, kv_len, query_start)[0, 0].tolist()
        return "\n".join(" ".join("x" if cell else "." for cell in row) for row in rows)

    def _positions(self, q_len: int, kv_len: int, query_start: int | Tensor | None) -> Int[Tensor, "batch q_len"]:
        """Validate a user's lengths and return the positions of the queries."""
        q_len, kv_len = check_int("q_len", q_len, least=0), check_int("kv_len", kv_len, least=0)
        start = None if query_start is None else check_query_start(query_start)
        if isinstance(start, Tensor):
            if start.ndim > 1:
                raise ValueError(f"query_start has shape {tuple(start.shape)}; expected [batch], one per sequence")
            if start.is_meta:
                raise ValueError("query_start is on the meta device, which stores no values; expected it on the CPU")
            start = start if start.ndim else start[None]
        return query_positions(q_len, kv_len, start, self.device)


@dataclass(frozen=True, eq=False)
class LoweredMask:
    """Mask in the form that kernels read. A key is allowed if `ranges` and `dense` both allow it; None allows all."""

    ranges: KeyRanges | None = None
    dense: Bool[Tensor, "#batch #heads #q_len #kv_len"] | None = None

    def allowed(self, q_len: int, keys: Int[Tensor, " keys"]) -> Bool[Tensor, "#batch #heads q_len keys"]:
        """Return which of `keys` each query may attend to."""
        allowed = keys.new_ones((1, 1, q_len, keys.shape[0]), dtype=torch.bool)
        if self.ranges is not None:
            allowed = allowed & key_ranges.contains(self.ranges, keys)[:, None]
        if self.dense is not None:
            allowed = allowed & (self.dense if self.dense.shape[-1] == 1 else self.dense[..., keys])
        return allowed

    def slice_queries(self, rows: slice) -> LoweredMask:
        """Return the mask for some of the queries."""
        dense = self.dense if self.dense is None or self.dense.shape[-2] == 1 else self.dense[..., rows, :]
        return LoweredMask(None if self.ranges is None else self.ranges[..., rows], dense)


@dataclass(frozen=True, eq=False, repr=False)
class _Pair(Mask):
    left: Mask
    right: Mask

    symbol = "?"

    @property
    def relative(self) -> bool:
        return self.left.relative and self.right.relative

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.left.tensors + self.right.tensors

    @property
    def version(self) -> tuple[int, ...]:
        return self.left.version + self.right.version

    def __repr__(self) -> str:
        def operand(mask: Mask) -> str:
            return f"({mask!r})" if isinstance(mask, _Pair) and type(mask) is not type(self) else repr(mask)

        return f"{operand(self.left)} {self.symbol} {operand(self.right)}"

    def shape_error(self, batch: int, heads: int, q_len: int, kv_len: int) -> str | None:
        return self.left.shape_error(batch, heads, q_len, kv_len) or self.right.shape_error(batch, heads, q_len, kv_len)


class And(_Pair):
    """Intersection of two masks: keys that both allow."""

    symbol = "&"

    def lower(self, positions: Int[Tensor, "batch q_len"], kv_len: int) -> LoweredMask:
        left, right = self.left.lower(positions, kv_len), self.right.lower(positions, kv_len)
        if left.ranges is None or right.ranges is None:
            ranges = right.ranges if left.ranges is None else left.ranges
        else:
            ranges = key_ranges.intersect(left.ranges, right.ranges, kv_len)
        if left.dense is None or right.dense is None:
            return LoweredMask(ranges, right.dense if left.dense is None else left.dense)
        return LoweredMask(ranges, left.dense & right.dense)


class Or(_Pair):
    """Union of two masks: keys that either allows. If one of them is `Dense`, the result is dense."""

    symbol = "|"

    def lower(self, positions: Int[Tensor, "batch q_len"], kv_len: int) -> LoweredMask:
        left, right = self.left.lower(positions, kv_len), self.right.lower(positions, kv_len)
        if left.dense is None and right.dense is None and left.ranges is not None and right.ranges is not None:
            return LoweredMask(key_ranges.unite(left.ranges, right.ranges))
        keys, q_len = torch.arange(kv_len, device=positions.device), positions.shape[1]
        return LoweredMask(dense=left.allowed(q_len, keys) | right.allowed(q_len, keys))


@dataclass(frozen=True, eq=False, repr=False)
class PrecomputedMask(Mask):
    """Mask that is already lowered for specific queries, as in a loaded file or a part of a matrix."""

    lowered: LoweredMask
    original: Mask | str

    def __repr__(self) -> str:
        return str(self.original)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return () if self.lowered.dense is None else (self.lowered.dense,)

    def lower(self, positions: Int[Tensor, "batch q_len"], kv_len: int) -> LoweredMask:
        return self.lowered


def _operand(symbol: str, other: object) -> Mask:
    if isinstance(other, Mask):
        return other
    raise TypeError(f"right operand of {symbol} is {describe(other)}; expected a mask; wrap a tensor in Dense(tensor)")
