"""Masks: which keys a query **may attend to** (True = may).

    Causal() & Documents([3, 5])          packed sequences, each causal
    Window(before=255) | (Causal() & Prefix(4))    a sliding window that keeps the first four tokens

Every mask but `Dense` allows each query contiguous ranges of keys (see `ranges.py`), so a mask costs O(n) and kernels
know one mask form. Positions count from `query_start`, which defaults to `kv_len - q_len`: the last query meets the
last key.

    Causal, q_len=4, kv_len=2, query_start=-2 (the default):
        . .      a query with no key gives output 0 and lse -inf
        . .
        x .
        x x

Values are checked when a mask is built, and lengths are copied, so they need no checks later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from clearhead._utils.checks import check_choice, check_int, describe
from clearhead._utils.tensor_checks import check_dense_tensor, check_int_tensor, check_query_start, has_readable_values
from clearhead.ops import key_ranges as key_ranges
from clearhead.ops.key_ranges import KeyRanges

_LENGTHS_SHOWN = 8
_PICTURE_LIMIT = 64
_FAR = 2**31  # beyond any position; adding it cannot overflow


def query_positions(
    q_len: int, kv_len: int, query_start: int | Tensor | None = None, device: torch.device | str | None = None
) -> Int[Tensor, "batch q_len"]:
    """Where each query stands among the keys: `[1, q_len]`, or `[batch, q_len]` for one start per sequence."""
    if isinstance(query_start, Tensor):
        return query_start.to(device).long()[:, None] + torch.arange(q_len, device=device)
    start = kv_len - q_len if query_start is None else query_start
    return torch.arange(start, start + q_len, device=device)[None]


class Mask:
    """What all masks share: `&`, `|`, `ranges`, `dense` and `picture`."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The user's own tensors that take part: those of `Dense`."""
        return ()

    @property
    def version(self) -> tuple[int, ...]:
        """How often its own tensors were changed in place."""
        lengths = getattr(self, "lengths", None)
        return () if lengths is None or lengths.is_inference() else (lengths._version,)

    @property
    def relative(self) -> bool:
        """Whether it looks at the distance between query and key only, wherever keys are counted from."""
        return False

    @property
    def device(self) -> torch.device | None:
        """Where a `Dense` part lives; None without one: lengths follow the queries to wherever they are."""
        return self.tensors[0].device if self.tensors else None

    def __and__(self, other: Mask) -> Mask:
        return And(self, _operand("&", other))

    def __or__(self, other: Mask) -> Mask:
        return Or(self, _operand("|", other))

    def lower(self, positions: Int[Tensor, "batch q_len"], kv_len: int) -> LoweredMask:
        """The form kernels read, for queries that stand at `positions`."""
        raise NotImplementedError

    def shape_error(self, batch: int, heads: int, q_len: int, kv_len: int) -> str | None:
        """Why this mask cannot serve a problem of this shape; None if it can."""
        return None

    def ranges(self, q_len: int, kv_len: int, query_start: int | Tensor | None = None) -> KeyRanges:
        """The key ranges `[first, last)` of each query: int32 `[ranges, 2, batch or 1, q_len]`."""
        lowered = self.lower(self._positions(q_len, kv_len, query_start), kv_len)
        if lowered.dense is not None or lowered.ranges is None:
            raise ValueError(f"{self} has no key ranges, because a Dense mask takes part in it; use .dense()")
        return lowered.ranges

    def dense(
        self, q_len: int, kv_len: int, query_start: int | Tensor | None = None
    ) -> Bool[Tensor, "batch heads q_len kv_len"]:
        """The whole mask as a bool tensor, with batch and heads of 1 where they do not matter."""
        lowered = self.lower(self._positions(q_len, kv_len, query_start), kv_len)
        return lowered.allowed(q_len, torch.arange(kv_len, device=self.device))

    def picture(self, q_len: int, kv_len: int | None = None, query_start: int | Tensor | None = None) -> str:
        """Queries down, keys across, `x` where a query may attend; of the first sequence and head.

        >>> print(Window(before=1).picture(4))
        x . . .
        x x . .
        . x x .
        . . x x
        """
        q_len = check_int("q_len", q_len, least=0)
        kv_len = q_len if kv_len is None else check_int("kv_len", kv_len, least=0)
        if max(q_len, kv_len) > _PICTURE_LIMIT:
            raise ValueError(f"q_len is {q_len} and kv_len {kv_len}; expected at most {_PICTURE_LIMIT} to be readable")
        rows = self.dense(q_len, kv_len, query_start)[0, 0].tolist()
        return "\n".join(" ".join("x" if cell else "." for cell in row) for row in rows)

    def _positions(self, q_len: int, kv_len: int, query_start: int | Tensor | None) -> Int[Tensor, "batch q_len"]:
        """Return the positions of queries after checking the lengths a user gave."""
        q_len, kv_len = check_int("q_len", q_len, least=0), check_int("kv_len", kv_len, least=0)
        start = None if query_start is None else check_query_start(query_start)
        if isinstance(start, Tensor):
            if start.ndim > 1:
                raise ValueError(f"query_start has shape {tuple(start.shape)}; expected [batch], one per sequence")
            if start.is_meta:
                raise ValueError("query_start is on the meta device, which holds no numbers; expected it on the CPU")
            start = start if start.ndim else start[None]
        return query_positions(q_len, kv_len, start, self.device)


@dataclass(frozen=True, eq=False)
class LoweredMask:
    """A mask as kernels read it: a key is allowed where a range and `dense` both allow it; None leaves a part out."""

    ranges: KeyRanges | None = None
    dense: Bool[Tensor, "#batch #heads #q_len #kv_len"] | None = None

    def allowed(self, q_len: int, keys: Int[Tensor, " keys"]) -> Bool[Tensor, "#batch #heads q_len keys"]:
        """Which of `keys` each query may attend to."""
        allowed = keys.new_ones((1, 1, q_len, keys.shape[0]), dtype=torch.bool)
        if self.ranges is not None:
            allowed = allowed & key_ranges.contains(self.ranges, keys)[:, None]
        if self.dense is not None:
            allowed = allowed & (self.dense if self.dense.shape[-1] == 1 else self.dense[..., keys])
        return allowed

    def rows(self, rows: slice) -> LoweredMask:
        """The same for some of the queries."""
        dense = self.dense if self.dense is None or self.dense.shape[-2] == 1 else self.dense[..., rows, :]
        return LoweredMask(None if self.ranges is None else self.ranges[..., rows], dense)


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """No key after the query's position."""

    @property
    def relative(self) -> bool:
        return True

    def lower(self, positions: Int[Tensor, "batch q_len"], kv_len: int) -> LoweredMask:
        return LoweredMask(key_ranges.single_range(torch.zeros_like(positions), positions + 1, kv_len))


@dataclass(frozen=True, eq=False, repr=False)
class Window(Mask):
    """Keys from `before` positions before the query to `after` after it, its own position included."""

    before: int
    after: int = 0

    @property
    def relative(self) -> bool:
        return True

    def __post_init__(self) -> None:
        object.__setattr__(self, "before", check_int("Window: before", self.before, 0, None))
        object.__setattr__(self, "after", check_int("Window: after", self.after, 0, None))

    def __repr__(self) -> str:
        return f"Window(before={self.before}{f', after={self.after}' if self.after else ''})"

    def lower(self, positions: Int[Tensor, "batch q_len"], kv_len: int) -> LoweredMask:
        before, after = min(self.before, _FAR), min(self.after, _FAR)
        return LoweredMask(key_ranges.single_range(positions - before, positions + after + 1, kv_len))


@dataclass(frozen=True, eq=False, repr=False)
class Padding(Mask):
    """The first `lengths[b]` keys of sequence b are real; with `Padding.left` the last. Hides keys, never queries."""

    lengths: Int[Tensor, " batch"]
    side: str = "right"

    def __init__(self, lengths: Tensor | Sequence[int], side: str = "right") -> None:
        object.__setattr__(self, "side", check_choice("Padding: side", side, ("left", "right")))
        object.__setattr__(self, "lengths", _lengths("Padding", lengths, ranks=(1,)))

    @classmethod
    def left(cls, lengths: Tensor | Sequence[int]) -> Padding:
        """Padding that stands before the real keys: the last `lengths[b]` are real."""
        return cls(lengths, side="left")

    def __repr__(self) -> str:
        return f"Padding{'.left' if self.side == 'left' else ''}({_show(self.lengths)})"

    def shape_error(self, batch: int, heads: int, q_len: int, kv_len: int) -> str | None:
        return _batch_misfit("Padding", self.lengths.shape[0], batch)

    def lower(self, positions: Int[Tensor, "batch q_len"], kv_len: int) -> LoweredMask:
        lengths = self.lengths.to(positions.device)[:, None].expand(-1, positions.shape[1])
        if self.side == "left":
            return LoweredMask(key_ranges.single_range(kv_len - lengths, torch.full_like(lengths, kv_len), kv_len))
        return LoweredMask(key_ranges.single_range(torch.zeros_like(lengths), lengths, kv_len))


@dataclass(frozen=True, eq=False, repr=False)
class Documents(Mask):
    """Packed sequences: a query sees the keys of the document that contains its position.

    `lengths` is one list for every sequence, or a list of lists (a tensor `[batch, documents]`), one per sequence.
    A position or key beyond the sum of the lengths belongs to no document.
    """

    lengths: Int[Tensor, "*batch documents"]

    def __init__(self, lengths: Tensor | Sequence[int] | Sequence[Sequence[int]]) -> None:
        object.__setattr__(self, "lengths", _lengths("Documents", lengths, ranks=(1, 2)))

    def __repr__(self) -> str:
        return f"Documents({_show(self.lengths)})"

    def shape_error(self, batch: int, heads: int, q_len: int, kv_len: int) -> str | None:
        return _batch_misfit("Documents", self.lengths.shape[0], batch) if self.lengths.ndim == 2 else None

    def lower(self, positions: Int[Tensor, "batch q_len"], kv_len: int) -> LoweredMask:
        lengths = self.lengths.to(positions.device)
        ends = (lengths if lengths.ndim == 2 else lengths[None]).cumsum(dim=1)  # [batch or 1, documents]
        batch = max(ends.shape[0], positions.shape[0])
        ends, positions = ends.expand(batch, -1), positions.expand(batch, -1)
        # a last, empty document takes the positions beyond the sum; `right` steps over documents of length 0
        edges = torch.cat([ends.new_zeros(batch, 1), ends, ends[:, -1:]], dim=1)
        document = torch.searchsorted(ends.contiguous(), positions.contiguous(), right=True)
        first, last = edges.gather(1, document), edges.gather(1, document + 1)
        return LoweredMask(key_ranges.single_range(first, torch.where(positions < 0, first, last), kv_len))


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """The first `length` keys."""

    length: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", check_int("Prefix: length", self.length, 0, None))

    def __repr__(self) -> str:
        return f"Prefix({self.length})"

    def lower(self, positions: Int[Tensor, "batch q_len"], kv_len: int) -> LoweredMask:
        first = torch.zeros_like(positions)
        return LoweredMask(key_ranges.single_range(first, first + min(self.length, kv_len), kv_len))


@dataclass(frozen=True, eq=False, repr=False)
class Dense(Mask):
    """Anything else: a bool tensor, True = may attend, that broadcasts to `[batch, heads, q_len, kv_len]`."""

    allowed: Bool[Tensor, "#batch #heads #q_len #kv_len"]

    def __init__(self, allowed: Tensor) -> None:
        allowed = check_dense_tensor("Dense: allowed", allowed, "a bool tensor, True = may attend")
        if allowed.dtype != torch.bool:
            raise TypeError(
                f"Dense: allowed has dtype {allowed.dtype}; expected torch.bool, True = may attend"
                " (a float mask to be added is `bias`)"
            )
        if allowed.ndim > 4:
            raise ValueError(f"Dense: allowed has {allowed.ndim} axes; expected at most 4: batch, heads, q_len, kv_len")
        object.__setattr__(self, "allowed", allowed[(None,) * (4 - allowed.ndim)])

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.allowed,)

    def __repr__(self) -> str:
        return f"Dense(<bool {list(self.allowed.shape)}>)"

    def shape_error(self, batch: int, heads: int, q_len: int, kv_len: int) -> str | None:
        shape = (batch, heads, q_len, kv_len)
        if any(size not in (1, wanted) for size, wanted in zip(self.allowed.shape, shape, strict=True)):
            axes = "batch, heads, q_len, kv_len"
            return f"Dense has shape {tuple(self.allowed.shape)}, which does not broadcast to {shape} ({axes})"
        return None

    def lower(self, positions: Int[Tensor, "batch q_len"], kv_len: int) -> LoweredMask:
        return LoweredMask(dense=self.allowed)


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
    """The keys both masks allow."""

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
    """The keys either mask allows. With a `Dense` on one side the result is dense."""

    symbol = "|"

    def lower(self, positions: Int[Tensor, "batch q_len"], kv_len: int) -> LoweredMask:
        left, right = self.left.lower(positions, kv_len), self.right.lower(positions, kv_len)
        if left.dense is None and right.dense is None and left.ranges is not None and right.ranges is not None:
            return LoweredMask(key_ranges.unite(left.ranges, right.ranges))
        keys, q_len = torch.arange(kv_len, device=positions.device), positions.shape[1]
        return LoweredMask(dense=left.allowed(q_len, keys) | right.allowed(q_len, keys))


@dataclass(frozen=True, eq=False, repr=False)
class PrecomputedMask(Mask):
    """A mask already lowered for the queries at hand, as a loaded file or a part of a matrix holds it."""

    lowered: LoweredMask
    original: Mask | str

    def __repr__(self) -> str:
        return str(self.original)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return () if self.lowered.dense is None else (self.lowered.dense,)

    def lower(self, positions: Int[Tensor, "batch q_len"], kv_len: int) -> LoweredMask:
        return self.lowered


def _lengths(mask: str, values: object, ranks: tuple[int, ...]) -> Tensor:
    """A copy of `values` as an int64 tensor, checked; lists of unequal length are filled up with empty documents."""
    if isinstance(values, list | tuple) and 2 in ranks and values and all(isinstance(v, list | tuple) for v in values):
        longest = max(len(v) for v in values)
        values = [[*v, *[0] * (longest - len(v))] for v in values]
    name = f"{mask}: lengths"
    try:
        lengths = values if isinstance(values, Tensor) else torch.tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} is {describe(values)}; expected whole numbers") from error
    lengths = check_dense_tensor(name, lengths, "a tensor of whole numbers")
    if lengths.is_meta:
        raise ValueError(f"{name} is on the meta device, which holds no numbers; expected it on the CPU")
    expected = "one length per sequence" if ranks == (1,) else "one list of lengths, or one list per sequence"
    if lengths.ndim not in ranks or lengths.numel() == 0:
        raise ValueError(f"{name} has shape {tuple(lengths.shape)}; expected {expected}")
    lengths = check_int_tensor(name, lengths)
    # inside a compiled graph values cannot be looked at; a negative length then counts as 0
    if has_readable_values(lengths) and bool((lengths < 0).any()):
        raise ValueError(f"{name} has {int(lengths.min())} in it; expected 0 or more everywhere")
    return lengths.detach().clamp(0, _FAR)


def _operand(symbol: str, other: object) -> Mask:
    if isinstance(other, Mask):
        return other
    raise TypeError(f"the other side of {symbol} is {describe(other)}; expected a mask; Dense(tensor) makes one")


def _batch_misfit(mask: str, count: int, batch: int) -> str | None:
    if count == batch:
        return None
    return f"{mask} has lengths for {count} sequences, but the batch is {batch}"


def _show(lengths: Tensor) -> str:
    """The lengths as a list, the middle left out where it is long."""
    shown = [_show(item) if item.ndim else str(int(item)) for item in lengths[:_LENGTHS_SHOWN]]
    left_out = f", … {len(lengths)} in all" if len(lengths) > _LENGTHS_SHOWN else ""
    return f"[{', '.join(shown)}{left_out}]"
