"""`AttentionWeights`: the attention matrix, held as the vectors from which any part of it follows exactly.

The weight of query i and key j is `A[i, j] = exp(s[i, j] − lse[i])`, with `s` the scaled, capped, biased and masked
score and `lse[i]` its log-sum-exp over the row. So (query, key, lse), O(n · d) numbers, is the n × n matrix.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._pytree import tree_map

from clearhead._utils.checks import MAX_INT, check_bool, check_choice, check_int, check_path, describe
from clearhead._utils.tensor_checks import check_axis, check_dense_tensor, check_device, check_float_tensor
from clearhead.ops import reference
from clearhead.ops.alibi import ALiBi
from clearhead.ops.call import AttentionCall
from clearhead.ops.key_ranges import single_range
from clearhead.ops.masks import Dense, LoweredMask, Mask, PrecomputedMask
from clearhead.ops.observing import observe, pool, rounds_otherwise
from clearhead.ops.tiled import attention as streaming
from clearhead.ops.tiled.pooling import PoolSpec, Reduce
from clearhead.ops.tiled.statistics import AttentionStatistics, TopK
from clearhead.weights import notebook, serialization
from clearhead.weights.indexing import Selection, neighbours, numbers, select
from clearhead.weights.mutation import fingerprint, unchanged

LIMIT = 2**28  # cells of a tensor made without being asked twice: 1 GiB in float32
Choice = int | slice | Sequence[int]
STRIP = 2**22  # cells computed at a time


class AttentionWeights:
    """A lazy attention matrix `[batch, heads, q_len, kv_len]`. Made by `attention(..., return_weights=True)`.

    Indexing with integers and slices gives exact weights as plain tensors; `entropy`, `received`, `distance`, `topk`
    and `pool` sweep over it in O(n) memory. Where a plain tensor is expected (numpy, torch functions) it becomes one,
    up to a size limit.
    """

    def __init__(self, problem: AttentionCall, lse: Float[Tensor, "batch heads q_len"]) -> None:
        if not isinstance(problem, AttentionCall):
            raise TypeError(
                f"problem is {describe(problem)}; expected attention(…, return_weights=True) to make weights"
            )
        if isinstance(problem.query_start, Tensor):  # the caller may count it up in place
            problem = replace(problem, query_start=problem.query_start.clone())
        lse = check_float_tensor("lse", lse, "[batch, heads, q_len]")
        if lse.shape != problem.shape[:3]:
            raise ValueError(f"lse has shape {tuple(lse.shape)}; expected {tuple(problem.shape[:3])}")
        self._problem = problem
        self._lse = lse.detach()
        self._fingerprints = tuple(fingerprint(tensor) for _, tensor in _held(problem))

    # -- what it is ----------------------------------------------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        """batch, heads, q_len, kv_len"""
        return torch.Size(self._problem.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and statistics: float32, or float64 for float64 inputs."""
        return self._problem.compute_dtype

    @property
    def device(self) -> torch.device:
        return self._problem.query.device

    @property
    def ndim(self) -> int:
        return 4

    def dim(self) -> int:
        return 4

    def size(self, dim: int | None = None) -> torch.Size | int:
        return self.shape if dim is None else self.shape[check_axis("dim", dim, 4)]

    def numel(self) -> int:
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient would flow through weights taken now."""
        return self._problem.differentiable()

    @property
    def lse(self) -> Float[Tensor, "batch heads q_len"]:
        """Log-sum-exp of each row's scores, sink included; −inf where a query may attend to nothing."""
        return self._lse

    @property
    def query(self) -> Float[Tensor, "batch heads q_len key_dim"] | None:
        """Queries; None if the matrix holds scores instead (as in decoding, where they are fewer numbers)."""
        return None if self._holds_scores() else self._problem.query

    @property
    def key(self) -> Float[Tensor, "batch kv_heads kv_len key_dim"] | None:
        """Keys; None if the matrix holds scores instead."""
        return None if self._holds_scores() else self._problem.key

    @property
    def scale(self) -> float:
        """Factor of Q Kᵀ; 1 if the matrix holds scores instead."""
        return self._problem.scale

    @property
    def softcap(self) -> float | None:
        """Bound of the scaled scores; None if the matrix holds scores, which are capped already."""
        return self._problem.softcap

    @property
    def mask(self) -> Mask | None:
        return self._problem.mask

    @property
    def bias(self) -> Tensor | ALiBi | None:
        """Bias added to the scores; None if the matrix holds scores, which include it."""
        return self._problem.bias if self._biased() else None

    @property
    def lowered_mask(self) -> LoweredMask:
        """The mask as key ranges and a dense part; neither if there is no mask, or if the scores held include it."""
        return self._problem.lower()

    @property
    def value(self) -> Float[Tensor, "batch kv_heads kv_len value_dim"] | None:
        """The values the weights were applied to, where they were kept."""
        return self._problem.value

    @property
    def key_heads(self) -> int:
        """How many heads the keys have: groups of neighbouring heads share them."""
        return self._problem.key.shape[1]

    def __repr__(self) -> str:
        batch, heads, q_len, kv_len = self.shape
        held = sum(t.numel() * t.element_size() for _, t in _held(self._problem))
        dense = math.prod(self.shape) * self.dtype.itemsize
        problem = self._problem
        options = [f"mask={problem.mask}"] if problem.mask is not None else []
        options += [f"bias={problem.bias}" if problem.slopes is not None else "bias"] if self._biased() else []
        options += [f"softcap={problem.softcap:g}"] if problem.softcap is not None else []
        options += ["sinks"] if problem.sinks is not None else []
        form = "scores" if self._holds_scores() else "query and key"
        return (
            f"AttentionWeights({batch} × {heads} heads × {q_len} queries × {kv_len} keys, {self.dtype}, {self.device}"
            f"{', ' if options else ''}{', '.join(options)}; holds {form}, {_bytes(held)}; dense {_bytes(dense)})"
        )

    def _repr_html_(self) -> str:
        return notebook.of_weights(self)

    # -- exact weights -------------------------------------------------------------------------------------------

    def __getitem__(self, index: object) -> Tensor:
        """Exact weights, computed now; differentiable. Integers and slices on all four axes."""
        return self._rectangle(select(index, self.shape), LIMIT, self._weights)

    @property
    def scores(self) -> Scores:
        """The same matrix before the softmax: `weights.scores[0, 5, 7, :9]`; −inf where masked."""
        return Scores(self)

    def dense(self, *, limit: int = LIMIT) -> Float[Tensor, "batch heads q_len kv_len"]:
        """All of it as a plain tensor, if it has at most `limit` cells; differentiable."""
        return self._rectangle(select(..., self.shape), check_int("limit", limit, 0, None), self._weights)

    def diagonal(self, offset: int = 0) -> Float[Tensor, "batch heads q_len"]:
        """The weight each query gives the key `offset` positions from it, 0 where there is none; differentiable."""
        problem = self._checked()
        if isinstance(offset, bool) or not isinstance(offset, int | np.integer):
            raise TypeError(f"offset is {describe(offset)}; expected an int, such as -1 for the previous token")
        offset = max(-MAX_INT, min(int(offset), MAX_INT))  # there is no key beyond either
        lse = streaming.log_sum_exp(problem) if problem.differentiable() else self._lse
        return torch.exp(reference.diagonal_scores(problem, problem.lower(), offset) - _finite(lse))

    # -- statistics, in O(n) memory and without gradient ---------------------------------------------------------

    def entropy(self) -> Float[Tensor, "batch heads q_len"]:
        """−Σ A ln A of each row, in nats; over real keys, not renormalised by a sink's share; 0 for an empty row."""
        return self._sweep(entropy=True).entropy  # pyright: ignore[reportReturnType]

    def received(self) -> Float[Tensor, "batch heads kv_len"]:
        """How much attention each key receives: the column sums."""
        return self._sweep(received=True).received  # pyright: ignore[reportReturnType]

    def distance(self) -> Float[Tensor, "batch heads q_len"]:
        """Σ A · |position of query − key| of each row."""
        return self._sweep(distance=True).distance  # pyright: ignore[reportReturnType]

    def topk(self, k: int) -> TopK:
        """The `k` largest weights of each query and their keys, largest first; key −1 where a row has fewer."""
        return self._sweep(top=check_int("k", k, most=None)).top  # pyright: ignore[reportReturnType]

    def observe(
        self,
        *,
        entropy: bool = False,
        received: bool = False,
        distance: bool = False,
        top: int = 0,
        pool: tuple[int, int] | None = None,
        reduce: Reduce = "mean",
    ) -> AttentionStatistics:
        """Several statistics in one sweep; fields that were not asked for are None.

        `pool=(rows, cols)` asks for a map of the whole matrix too, as `pool(rows, cols, reduce=…)` gives it.
        """
        wanted = {"entropy": entropy, "received": received, "distance": distance}
        wanted = {name: check_bool(name, value) for name, value in wanted.items()}
        check_choice("reduce", reduce, ("mean", "max"))
        picture = None if pool is None else self._map(*_pair("pool", pool), reduce)
        return self._sweep(**wanted, top=check_int("top", top, least=0, most=None), picture=picture)

    def pool(
        self,
        rows: int,
        cols: int,
        *,
        reduce: Reduce = "mean",
        window: tuple[tuple[int, int], tuple[int, int]] | None = None,
    ) -> Float[Tensor, "batch heads rows cols"]:
        """The matrix, or the rectangle `window=((row, end), (key, end))` of it, in `rows` × `cols` bins.

        Bins are drawn as adaptive pooling draws them, so the sizes need not divide. "max" keeps thin diagonals that a
        mean would wash out.
        """
        _, _, q_len, kv_len = self.shape
        picture = self._map(rows, cols, reduce)
        if 0 in (q_len, kv_len):
            return self._nothing(picture)
        row, row_end, key, key_end = _corners(window, q_len, kv_len)
        with torch.no_grad():
            return pool(self._checked(), self._lse, slice(row, row_end), slice(key, key_end), picture)

    # -- parts, devices, files -----------------------------------------------------------------------------------

    def part(
        self, *, batch: Choice | None = None, heads: Choice | None = None, queries: slice | None = None
    ) -> AttentionWeights:
        """A lazy matrix of fewer sequences, heads or (a slice of) queries. Nothing is computed, and both axes stay."""
        sequences, chosen = numbers(batch, self.shape[0], 0), numbers(heads, self.shape[1], 1)
        problem = self._checked().part(sequences, chosen)
        device = self._lse.device
        lse = self._lse[torch.tensor(sequences, device=device)][:, torch.tensor(chosen, device=device)]
        if queries is not None:
            rows = neighbours(queries, self.shape[2], 2)
            problem, lse = problem.rows(rows), lse[:, :, rows]
        return AttentionWeights(problem, lse)

    def hiding(self, keys: Choice) -> AttentionWeights:
        """The same with the columns of some keys 0, such as a sink's, and without gradient.

        All other weights stay as they are, so rows then sum to less than 1.
        """
        hidden = numbers(keys, self.shape[3], 3)
        seen = torch.ones(1, 1, 1, self.shape[3], dtype=torch.bool, device=self.device)
        seen[..., torch.tensor(hidden, device=self.device)] = False
        problem = self._checked().map(Tensor.detach)
        mask = Dense(seen) if problem.mask is None else problem.mask & Dense(seen)
        return AttentionWeights(replace(problem, mask=mask), self._lse)

    def hiding_queries(self, hidden: Bool[Tensor, "batch q_len"]) -> AttentionWeights:
        """Return the matrix with the rows of some queries 0, such as padding, and without gradient.

        Such a query counts as one that may attend to nothing.
        """
        batch, _, q_len, kv_len = self.shape
        expected = f"a bool tensor ({batch}, {q_len}), True for hidden queries"
        hidden = check_dense_tensor("hidden", hidden, expected)
        if hidden.shape != (batch, q_len) or hidden.dtype != torch.bool:
            raise ValueError(f"hidden has shape {tuple(hidden.shape)} and dtype {hidden.dtype}; expected {expected}")
        if hidden.is_meta and self.device.type != "meta":
            raise ValueError(f"hidden is on the meta device; expected {expected} with values")
        hidden = hidden.to(self.device)
        problem = self._checked().map(Tensor.detach)
        last = torch.where(hidden, 0, kv_len)
        seen = PrecomputedMask(LoweredMask(single_range(torch.zeros_like(last), last, kv_len)), "visible queries")
        mask = seen if problem.mask is None else problem.mask & seen
        return AttentionWeights(replace(problem, mask=mask), self._lse.masked_fill(hidden[:, None], -torch.inf))

    def attending(self) -> Bool[Tensor, "batch q_len"]:
        """Return which queries may attend to a key, in any head."""
        batch, _, q_len, kv_len = self.shape
        bias = self._problem.tensor_bias
        lowered = self._problem.lower()
        if self._problem.sinks is None:
            found = (self._lse > -torch.inf).any(dim=1)
        # a sink makes lse finite also where there is no key, so the mask has to say
        elif lowered.dense is not None:
            found = lowered.allowed(q_len, torch.arange(kv_len, device=self.device)).any(dim=-1).any(dim=1)
        elif lowered.ranges is not None:
            found = (lowered.ranges[:, 1] > lowered.ranges[:, 0]).any(dim=0)
        else:
            found = torch.ones(1, 1, dtype=torch.bool, device=self.device)
        if bias is not None:  # models hide keys by the lowest number too, which leaves lse finite
            found = found & (bias > torch.finfo(bias.dtype).min / 2).any(dim=-1).any(dim=1)
        return found.expand(batch, q_len)

    def to(self, device: torch.device | str) -> AttentionWeights:
        """The same on another device. Its dtype follows from the queries and cannot be changed."""
        target = check_device("device", device)
        if target is None:
            raise TypeError("device is None; expected a device such as 'cpu' or 'cuda:0'")
        return AttentionWeights(self._checked().map(lambda t: t.to(target)), self._lse.to(target))

    def cpu(self) -> AttentionWeights:
        return self.to("cpu")

    def detach(self) -> AttentionWeights:
        """The same without gradients."""
        return AttentionWeights(self._checked().map(Tensor.detach), self._lse)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to one safetensors file: O(n · d) numbers, whatever the size of the matrix."""
        serialization.save(check_path("path", path), self._checked(), self._lse)

    def pack(self) -> tuple[dict[str, Tensor], serialization.Facts]:
        """What a file holds of it, as `serialization.unpack` reads it."""
        return serialization.pack(self._checked(), self._lse)

    def without_values(self) -> AttentionWeights:
        """The same without the values the weights were applied to."""
        return AttentionWeights(replace(self._checked(), value=None), self._lse)

    def __reduce__(self) -> tuple:
        # a copy's tensors count their versions anew
        return AttentionWeights, (self._checked(), self._lse)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> AttentionWeights:
        """Read a file written by `save`."""
        return cls(*serialization.load(check_path("path", path), check_device("device", device) or "cpu"))

    # -- where a plain tensor is expected ------------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("a lazy attention matrix cannot become an array without being computed")
        return np.asarray(self.dense().detach().cpu().numpy(), dtype=dtype)

    @classmethod
    def __torch_function__(cls, function: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> Any:
        plain = tree_map(lambda x: x.dense() if isinstance(x, cls) else x, (args, kwargs or {}))
        return function(*plain[0], **plain[1])

    def __getattr__(self, name: str) -> Any:
        # methods of a tensor that do not change it, so that code written for plain attentions keeps working
        if name.startswith("_") or name.endswith("_") or not callable(getattr(Tensor, name, None)):
            raise AttributeError(f"AttentionWeights has no attribute {name!r}")

        def method(*args: Any, **kwargs: Any) -> Any:
            return getattr(self.dense(), name)(*args, **kwargs)

        return method

    # -- inside --------------------------------------------------------------------------------------------------

    def _checked(self) -> AttentionCall:
        """The problem, after making sure that what it holds is still what the weights were made from."""
        if torch.compiler.is_compiling():
            return self._problem  # within one graph nothing changes behind its back
        for (name, tensor), then in zip(_held(self._problem), self._fingerprints, strict=True):
            if not unchanged(tensor, then):
                raise RuntimeError(
                    f"{name} was changed in place after attention() made these weights, so they can no longer be"
                    f" computed; give attention() a clone of {name}, or read the weights before changing it"
                )
        return self._problem

    def _holds_scores(self) -> bool:
        return self._problem.query.shape[3] == 0

    def _biased(self) -> bool:
        return self._problem.bias is not None and not self._holds_scores()

    def _map(self, rows: int, cols: int, reduce: Reduce) -> PoolSpec:
        rows, cols = check_int("rows", rows, most=2**16), check_int("cols", cols, most=2**16)
        check_choice("reduce", reduce, ("mean", "max"))
        _refuse_above(LIMIT, (*self.shape[:2], rows, cols))
        return PoolSpec(rows, cols, reduce)

    def _nothing(self, picture: PoolSpec) -> Float[Tensor, "batch heads rows cols"]:
        """The map of a matrix without cells."""
        return torch.zeros((*self.shape[:2], picture.rows, picture.cols), dtype=self.dtype, device=self.device)

    def _sweep(self, **wanted: Any) -> AttentionStatistics:
        asked, kv_len = wanted.get("top", 0), self.shape[3]
        _refuse_above(LIMIT, (*self.shape[:3], asked))
        picture = wanted.pop("picture", None)
        empty = 0 in self.shape[2:]
        with torch.no_grad():
            wanted = {**wanted, "top": min(asked, kv_len), "picture": None if empty else picture}
            found = observe(self._checked(), self._lse, **wanted)
        if picture is not None and empty:
            found = replace(found, pooled=self._nothing(picture))
        missing = asked - kv_len
        if missing <= 0:
            return found
        weights, keys = found.top or TopK(*self._lse.new_empty((2, *self.shape[:3], 0)))
        return replace(found, top=TopK(pad(weights, (0, missing)), pad(keys.long(), (0, missing), value=-1)))

    def _rectangle(
        self, selection: Selection, limit: int, compute: Callable[[AttentionCall, LoweredMask, Selection], Tensor]
    ) -> Tensor:
        """Cells computed a strip of rows at a time, or all at once where a gradient is to flow through them."""
        problem = self._checked()
        lengths = selection.lengths
        _refuse_above(limit, lengths)
        lowered = problem.lower()
        if problem.differentiable() and 0 not in lengths:
            result = compute(problem, lowered, selection)
        else:
            result = torch.empty(lengths, dtype=self.dtype, device=self.device)
            strip = max(1, STRIP // max(1, lengths[0] * lengths[1] * lengths[3]))
            batch, heads, rows, keys = selection.slices
            for start in range(0, lengths[2], strip):
                places = range(rows.start, rows.stop, rows.step)[start : start + strip]
                band = slice(places.start, places.stop, places.step)
                cells = compute(problem, lowered, Selection((batch, heads, band, keys), ()))
                result[:, :, start : start + strip] = cells
        for axis in reversed(selection.dropped):
            result = result.squeeze(axis)
        return result

    def _weights(
        self, problem: AttentionCall, lowered: LoweredMask, selection: Selection
    ) -> Float[Tensor, "batch heads rows keys"]:
        batch, heads, rows, keys = selection.slices
        if problem.differentiable():  # the rows' log-sum-exp anew, over all their keys
            sequences, chosen = (range(part.start, part.stop, part.step) for part in (batch, heads))
            own = problem.part(sequences, chosen).rows(slice(rows.start, rows.stop))
            lse = streaming.log_sum_exp(own)[:, :, :: rows.step]
        else:
            lse = self._lse[batch, heads, rows]
            if rows.step == keys.step == 1 and 0 not in selection.lengths and rounds_otherwise(problem):
                return self._by_our_kernel(problem, selection)
        return torch.exp(_scores(problem, lowered, selection) - _finite(lse)[..., None])

    def _by_our_kernel(self, problem: AttentionCall, selection: Selection) -> Float[Tensor, "batch heads rows keys"]:
        batch, heads, rows, keys = selection.slices
        own = problem.part(*(range(part.start, part.stop, part.step) for part in (batch, heads)))
        _, _, down, across = selection.lengths
        rectangle = (slice(rows.start, rows.start + down), slice(keys.start, keys.start + across))
        return pool(own, self._lse[batch, heads], *rectangle, PoolSpec(down, across, "mean"))


class Scores:
    """The scores behind an `AttentionWeights`: scaled, capped, biased, −inf where masked. Indexed like the weights."""

    def __init__(self, weights: AttentionWeights) -> None:
        self._owner = weights

    @property
    def shape(self) -> torch.Size:
        return self._owner.shape

    def __getitem__(self, index: object) -> Tensor:
        return self._owner._rectangle(select(index, self.shape), LIMIT, _scores)

    def __repr__(self) -> str:
        return f"Scores of {self._owner!r}"


def _scores(
    problem: AttentionCall, lowered: LoweredMask, selection: Selection
) -> Float[Tensor, "batch heads rows keys"]:
    batch, heads, rows, keys = selection.slices
    return reference.scores(problem, lowered, batch=batch, heads=heads, rows=rows, keys=keys)


def _finite(lse: Float[Tensor, "*rows"]) -> Float[Tensor, "*rows"]:
    """Rows without a key have lse −inf and scores −inf; subtracting would give nan."""
    return torch.where(lse == -torch.inf, 0.0, lse)


def _held(problem: AttentionCall) -> list[tuple[str, Tensor]]:
    """The user's tensors that the weights follow from."""
    named = [("query", problem.query), ("key", problem.key), ("sinks", problem.sinks)]
    named += [("bias", problem.tensor_bias if problem.slopes is None else problem.slopes)]
    named += [("mask", tensor) for tensor in (() if problem.mask is None else problem.mask.tensors)]
    return [(name, tensor) for name, tensor in named if tensor is not None]


def _pair(name: str, sizes: object) -> tuple[int, int]:
    try:
        first, second = sizes  # pyright: ignore[reportGeneralTypeIssues]
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {describe(sizes)}; expected (rows, cols)") from None
    return first, second


def _corners(window: object, q_len: int, kv_len: int) -> tuple[int, int, int, int]:
    """The rectangle a `window` names, checked; all of the matrix for None."""
    if window is None:
        return 0, q_len, 0, kv_len
    try:
        (row, row_end), (key, key_end) = window  # pyright: ignore[reportGeneralTypeIssues]
        row, row_end, key, key_end = (operator.index(corner) for corner in (row, row_end, key, key_end))
    except (TypeError, ValueError):
        expected = "((row, row_end), (key, key_end)), all of them ints"
        raise TypeError(f"window is {describe(window)}; expected {expected}") from None
    for name, start, end, length in (("rows", row, row_end, q_len), ("keys", key, key_end, kv_len)):
        if not 0 <= start < end <= length:
            raise ValueError(f"window takes {name} {start} to {end}; expected 0 ≤ start < end ≤ {length}")
    return row, row_end, key, key_end


def _refuse_above(limit: int, lengths: Sequence[int]) -> None:
    cells = math.prod(lengths)
    if cells > limit:
        raise ValueError(
            f"{' × '.join(str(n) for n in lengths)} = {cells:,} weights are more than the limit of {limit:,};"
            " take a .part() or fewer rows, .pool() to screen size, or .topk(); .dense(limit=…) raises the limit"
        )


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.3g} {unit}"
        count /= 1024
    raise AssertionError


def _as_tensor_operator(name: str) -> Callable[..., Any]:
    def operate(self: AttentionWeights, *others: Any) -> Any:
        others = tuple(other.dense() if isinstance(other, AttentionWeights) else other for other in others)
        return getattr(self.dense(), name)(*others)

    return operate


for _name in ("add", "sub", "mul", "truediv", "matmul", "pow"):
    setattr(AttentionWeights, f"__{_name}__", _as_tensor_operator(f"__{_name}__"))
    setattr(AttentionWeights, f"__r{_name}__", _as_tensor_operator(f"__r{_name}__"))
for _name in ("neg", "abs", "gt", "ge", "lt", "le", "eq", "ne"):
    setattr(AttentionWeights, f"__{_name}__", _as_tensor_operator(f"__{_name}__"))
AttentionWeights.__hash__ = object.__hash__  # which comparing cell by cell would take away
