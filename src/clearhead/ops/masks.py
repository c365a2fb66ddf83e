"""Masks: the keys that each query **may attend to** (True = may attend).

    Causal() & Documents([3, 5])          packed sequences, each causal
    Window(before=255) | (Causal() & Prefix(4))    a sliding window that keeps the first four tokens

Every mask except `Dense` allows each query contiguous ranges of keys (see `key_ranges.py`). So a mask takes O(n)
memory, and kernels read one mask form. Query positions start at `query_start`. Its default, `kv_len - q_len`, aligns
the last query with the last key.

    Causal, q_len=4, kv_len=2, query_start=-2 (the default):
        . .      a query with no key gives output 0 and lse -inf
        . .
        x .
        x x

Arguments are validated when a mask is built. Lengths are copied, so they cannot become invalid later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from clearhead._utils.checks import check_bool, check_choice, check_int, describe
from clearhead._utils.tensor_checks import check_dense_tensor, check_int_tensor, has_readable_values
from clearhead._utils.torch_internals import in_dispatch_mode, version_of
from clearhead.ops import key_ranges
from clearhead.ops._mask_algebra import And, LoweredMask, Mask, Or, PrecomputedMask, query_positions

__all__ = [
    "And",
    "Causal",
    "Dense",
    "Documents",
    "LoweredMask",
    "Mask",
    "Or",
    "Padding",
    "PrecomputedMask",
    "Prefix",
    "Window",
    "query_positions",
]

_MAX_LENGTHS_SHOWN = 8
_MAX_DISTANCE = 2**31  # larger than any position; adding it to one does not overflow int64


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """Causal mask: no key after the query's position."""

    @property
    def relative(self) -> bool:
        return True

    def lower(self, positions: Int[Tensor, "batch q_len"], kv_len: int) -> LoweredMask:
        return LoweredMask(key_ranges.single_range(torch.zeros_like(positions), positions + 1, kv_len))


@dataclass(frozen=True, eq=False, repr=False)
class Window(Mask):
    """Sliding window: keys from `before` positions before the query to `after` positions after it.

    The query's position is included, so `Window(before=w - 1)` is a sliding window of w keys.
    """

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
        before, after = min(self.before, _MAX_DISTANCE), min(self.after, _MAX_DISTANCE)
        return LoweredMask(key_ranges.single_range(positions - before, positions + after + 1, kv_len))


@dataclass(frozen=True, eq=False, repr=False)
class Padding(Mask):
    """Padding mask: the first `lengths[b]` keys of sequence b are valid; with `Padding.left`, the last ones.

    It masks keys, never queries: rows of padding queries are computed too.
    """

    lengths: Int[Tensor, " batch"]
    side: str = "right"

    def __init__(self, lengths: Tensor | Sequence[int], side: str = "right") -> None:
        object.__setattr__(self, "side", check_choice("Padding: side", side, ("left", "right")))
        object.__setattr__(self, "lengths", _lengths("Padding", lengths, ranks=(1,)))

    @classmethod
    def left(cls, lengths: Tensor | Sequence[int]) -> Padding:
        """Return a mask for left padding: the last `lengths[b]` keys of sequence b are valid."""
        return cls(lengths, side="left")

    @property
    def version(self) -> tuple[int, ...]:
        return _version(self.lengths)

    def __repr__(self) -> str:
        return f"Padding{'.left' if self.side == 'left' else ''}({_show(self.lengths)})"

    def shape_error(self, batch: int, heads: int, q_len: int, kv_len: int) -> str | None:
        return _batch_error("Padding", self.lengths.shape[0], batch)

    def lower(self, positions: Int[Tensor, "batch q_len"], kv_len: int) -> LoweredMask:
        lengths = self.lengths.to(positions.device)[:, None].expand(-1, positions.shape[1])
        if self.side == "left":
            return LoweredMask(key_ranges.single_range(kv_len - lengths, torch.full_like(lengths, kv_len), kv_len))
        return LoweredMask(key_ranges.single_range(torch.zeros_like(lengths), lengths, kv_len))


@dataclass(frozen=True, eq=False, repr=False)
class Documents(Mask):
    """Packed sequences: a query attends to the keys of the document that contains its position.

    `lengths` is one list for all sequences, or one list per sequence (a list of lists or a tensor
    `[batch, documents]`). Queries and keys beyond the sum of the lengths do not belong to any document.

    `attention` refuses lengths that do not fit its keys. One list must add up to the number of keys, unless `strict` is
    False; lists per sequence may add up to less, as in a padded batch. Both may add up to more if there are fewer
    queries than keys, as with a growing KV cache. Lengths on a GPU or in a compiled graph are not checked.
    """

    lengths: Int[Tensor, "*batch documents"]
    strict: bool = True

    def __init__(self, lengths: Tensor | Sequence[int] | Sequence[Sequence[int]], *, strict: bool = True) -> None:
        object.__setattr__(self, "lengths", _lengths("Documents", lengths, ranks=(1, 2)))
        object.__setattr__(self, "strict", check_bool("Documents: strict", strict))

    @property
    def version(self) -> tuple[int, ...]:
        return _version(self.lengths)

    def __repr__(self) -> str:
        return f"Documents({_show(self.lengths)}{'' if self.strict else ', strict=False'})"

    def shape_error(self, batch: int, heads: int, q_len: int, kv_len: int) -> str | None:
        packed = self.lengths.ndim == 1
        error = None if packed else _batch_error("Documents", self.lengths.shape[0], batch)
        if error is not None or not has_readable_values(self.lengths):
            return error
        if self.lengths.device.type != "cpu" or in_dispatch_mode():  # reading lengths on a GPU synchronizes
            return None
        lengths = self.lengths.tolist()
        total = sum(lengths) if packed else max(map(sum, lengths))  # summing in torch takes twice as long
        if total > kv_len and q_len >= kv_len:
            return f"the lengths of Documents add up to {total}, but kv_len is {kv_len}; expected at most {kv_len}"
        if total < kv_len and packed and self.strict:
            return (
                f"the lengths of Documents add up to {total}, but kv_len is {kv_len}; expected {kv_len}, or"
                " strict=False if the last keys belong to no document"
            )
        return None

    def lower(self, positions: Int[Tensor, "batch q_len"], kv_len: int) -> LoweredMask:
        lengths = self.lengths.to(positions.device)
        ends = (lengths if lengths.ndim == 2 else lengths[None]).cumsum(dim=1)  # [batch or 1, documents]
        batch = max(ends.shape[0], positions.shape[0])
        ends, positions = ends.expand(batch, -1), positions.expand(batch, -1)
        # positions beyond the sum fall into an extra, empty document; `right` skips documents of length 0
        edges = torch.cat([ends.new_zeros(batch, 1), ends, ends[:, -1:]], dim=1)
        document = torch.searchsorted(ends.contiguous(), positions.contiguous(), right=True)
        first, last = edges.gather(1, document), edges.gather(1, document + 1)
        return LoweredMask(key_ranges.single_range(first, torch.where(positions < 0, first, last), kv_len))


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """Prefix mask: the first `length` keys."""

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
    """Arbitrary mask: a bool tensor (True = may attend) that broadcasts to `[batch, heads, q_len, kv_len]`."""

    allowed: Bool[Tensor, "#batch #heads #q_len #kv_len"]

    def __init__(self, allowed: Tensor) -> None:
        allowed = check_dense_tensor("Dense: allowed", allowed, "a bool tensor, True = may attend")
        if allowed.dtype != torch.bool:
            raise TypeError(
                f"Dense: allowed has dtype {allowed.dtype}; expected torch.bool, True = may attend"
                " (to add a float mask to the scores, pass it as `bias`)"
            )
        if allowed.ndim > 4:
            raise ValueError(f"Dense: allowed has {allowed.ndim} axes; expected at most 4: batch, heads, q_len, kv_len")
        object.__setattr__(self, "allowed", allowed[(None,) * (4 - allowed.ndim)])

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.allowed,)

    @property
    def version(self) -> tuple[int, ...]:
        return _version(self.allowed)

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


def _lengths(mask: str, values: object, ranks: tuple[int, ...]) -> Tensor:
    """Validate `values` and copy them to an int64 tensor. Shorter lists are filled up with empty documents."""
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
        raise ValueError(f"{name} is on the meta device, which stores no values; expected it on the CPU")
    expected = "one length per sequence" if ranks == (1,) else "one list of lengths, or one list per sequence"
    if lengths.ndim not in ranks or lengths.numel() == 0:
        raise ValueError(f"{name} has shape {tuple(lengths.shape)}; expected {expected}")
    lengths = check_int_tensor(name, lengths)
    # values cannot be read in a compiled graph; there a negative length counts as 0
    if has_readable_values(lengths) and bool((lengths < 0).any()):
        raise ValueError(f"{name} contains {int(lengths.min())}; expected 0 or more everywhere")
    return lengths.detach().clamp(0, _MAX_DISTANCE)


def _version(tensor: Tensor) -> tuple[int, ...]:
    return () if tensor.is_inference() else (version_of(tensor),)


def _batch_error(mask: str, count: int, batch: int) -> str | None:
    if count == batch:
        return None
    return f"{mask} has lengths for {count} sequences, but the batch is {batch}"


def _show(lengths: Tensor) -> str:
    """Format lengths as a list, truncated if it is long. Lengths on a GPU are not shown: reading them synchronizes."""
    if lengths.device.type != "cpu":
        return f"<{' × '.join(map(str, lengths.shape))} lengths on {lengths.device}>"
    shown = lengths[:_MAX_LENGTHS_SHOWN]
    items = map(_show, shown) if lengths.ndim > 1 else map(str, shown.tolist())
    ellipsis = f", … {len(lengths)} in all" if len(lengths) > _MAX_LENGTHS_SHOWN else ""
    return f"[{', '.join(items)}{ellipsis}]"
