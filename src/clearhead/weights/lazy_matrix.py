"""`LazyMatrix`: a matrix of weights that is computed on demand, with torch's names for shape, reductions and products.

Reductions over queries or keys are streamed. Everything else of a tensor calls `dense()`, which raises an error above
its size limit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.checks import check_bool, check_int, describe
from clearhead._utils.tensor_checks import check_axis
from clearhead.ops.spans import SpansLike
from clearhead.ops.statistics import TopK
from clearhead.weights.cells import MAX_CELLS
from clearhead.weights.indexing import Selection
from clearhead.weights.lookup import Cells, lookup
from clearhead.weights.products import TransposedWeights, check_factor, fold_broadcast
from clearhead.weights.target import parse_target
from clearhead.weights.tensor_like import TensorLike

Dims = int | Sequence[int] | None
QUERIES, KEYS = 2, 3  # axes
P = ParamSpec("P")
R = TypeVar("R")


class MaxResult(NamedTuple):
    """Largest weights along an axis, and their indices."""

    values: Tensor
    indices: Tensor


def _streamed(method: Callable[P, R]) -> Callable[P, R]:
    """Return a reduction that is streamed if called with `dim` and `keepdim`, and otherwise takes the dense matrix.

    torch's reductions take other arguments too: `axis`, `dtype`, `out`, or a second tensor.
    """
    name = getattr(method, "__name__")  # noqa: B009, a Callable need not have one

    @functools.wraps(method)
    def reduce(*args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs.keys() <= {"dim", "keepdim"} and not isinstance(args[-1] if args[1:] else None, Tensor | TensorLike):
            return method(*args, **kwargs)
        matrix: Any = args[0]
        return getattr(matrix.dense(), name)(*args[1:], **kwargs)

    return reduce


class LazyMatrix(TensorLike):
    """Matrix `[batch, heads, q_len, kv_len]` that is computed on demand. A subclass defines how."""

    # -- defined by a subclass -----------------------------------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        """Size `[batch, heads, q_len, kv_len]`."""
        raise NotImplementedError

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights and statistics: float32, or float64 for float64 inputs."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        raise NotImplementedError

    @property
    def key_heads(self) -> int:
        """Number of key heads. Each is shared by a group of consecutive query heads."""
        raise NotImplementedError

    @property
    def requires_grad(self) -> bool:
        """True if weights computed now carry gradients."""
        raise NotImplementedError

    def detach(self) -> LazyMatrix:
        """Return the matrix without gradients."""
        raise NotImplementedError

    def received(self) -> Float[Tensor, "batch heads kv_len"]:
        """Return the attention that each key receives: the column sums."""
        raise NotImplementedError

    def mass(self, spans: SpansLike) -> Float[Tensor, "batch heads q_len spans"]:
        """Return the attention of each row that falls on spans of keys."""
        raise NotImplementedError

    def topk(self, k: int) -> TopK:
        """Return the `k` largest weights of each query and their keys, largest first; key −1 if a row has fewer."""
        raise NotImplementedError

    def _block(self, selection: Selection) -> Float[Tensor, "batch heads rows keys"]:
        """Return the weights of an outer selection; differentiable."""
        raise NotImplementedError

    def _cells(self) -> Cells:
        """Return a function that computes single weights from their indices `[4, count]`; differentiable."""
        raise NotImplementedError

    def _map_tensors(self, function: Callable[[Tensor], Tensor]) -> LazyMatrix:
        """Return the matrix with a function applied to every tensor, such as a move to another device."""
        raise NotImplementedError

    def _matmul(self, other: Tensor) -> Tensor:
        """Return A · other for a checked factor."""
        raise NotImplementedError

    def _transposed_matmul(self, other: Tensor) -> Tensor:
        """Return Aᵀ · other for a checked factor."""
        raise NotImplementedError

    def _column_maxima(self) -> tuple[Tensor, Tensor]:
        """Return the largest weight of each key over the queries, and its query, `[batch, heads, 1, kv_len]`."""
        raise NotImplementedError

    # -- shape ---------------------------------------------------------------------------------------------------

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

    # -- weights -------------------------------------------------------------------------------------------------

    def __getitem__(self, index: object) -> Tensor:
        """Compute the exact weights of an index, as torch indexes a dense matrix; differentiable.

        Takes integers, slices with a positive step, `...`, None, lists, integer tensors and bool masks. Memory is
        proportional to the size of the result, which has a limit.
        """
        return lookup(self, index)

    def dense(self, *, limit: int = MAX_CELLS) -> Float[Tensor, "batch heads q_len kv_len"]:
        """Return the whole matrix as a plain tensor, or raise if it has more than `limit` cells; differentiable."""
        return lookup(self, ..., limit=check_int("limit", limit, 0, None))

    # -- devices and dtypes --------------------------------------------------------------------------------------

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def data(self) -> LazyMatrix:
        """Matrix without gradients."""
        return self.detach()

    def to(
        self,
        *target: object,
        device: object = None,
        dtype: object = None,
        non_blocking: bool = False,
        copy: bool = False,
    ) -> Any:
        """Return the matrix on another device, or converted to another dtype, as `Tensor.to`.

        Args:
            *target: a device, a dtype, both in this order, or a tensor that has them.
            device: default: that of the matrix.
            dtype: default: that of the matrix.
            non_blocking: copy asynchronously to or from pinned memory.
            copy: copy tensors that are on the device already.

        Returns:
            The lazy matrix, whose dtype follows from the queries. For another dtype, the dense matrix as a plain
            tensor, up to the size limit of `dense`.
        """
        to_device, to_dtype = parse_target(target, device, dtype)
        to_device = self.device if to_device is None else to_device
        flags = check_bool("non_blocking", non_blocking), check_bool("copy", copy)
        if to_dtype is None or to_dtype == self.dtype:
            return self._map_tensors(lambda tensor: tensor.to(to_device, tensor.dtype, *flags))
        return self.dense().to(to_device, to_dtype, *flags)

    def cpu(self) -> Self:
        return self.to("cpu")

    # -- products ------------------------------------------------------------------------------------------------

    def __matmul__(self, other: Tensor | TensorLike) -> Float[Tensor, "batch heads q_len *width"]:
        """Compute A · other without the matrix: attention with other values; differentiable.

        Args:
            other: `[kv_len, width]`, or `[batch, heads, kv_len, width]` with heads, key heads or 1 on its heads axis.

        Returns:
            The product in the dtype of `other`.
        """
        factor = other.dense() if isinstance(other, TensorLike) else other
        return fold_broadcast(self._matmul, check_factor("the right factor", factor, self, KEYS), self)

    def matmul(self, other: Tensor | TensorLike) -> Float[Tensor, "batch heads q_len *width"]:
        """Compute `self @ other`."""
        return self @ other

    @property
    def mT(self) -> TransposedWeights:  # noqa: N802, torch's name
        """Lazy transpose: supports `weights.mT @ y`, `shape` and indexing."""
        return TransposedWeights(self)

    # -- torch's reductions, streamed where queries or keys are reduced ------------------------------------------

    @_streamed
    def sum(self, dim: Dims = None, keepdim: bool = False) -> Tensor:
        """Return the sum over some axes, as `torch.sum`; differentiable."""
        axes = _axes(dim)
        check_bool("keepdim", keepdim)
        if KEYS in axes:
            kv_len = self.shape[3]
            rows = self.mass([(0, kv_len)]) if kv_len else self.received().new_zeros((*self.shape[:3], 1))
            sums = rows.sum(dim=axes, keepdim=True)
        elif QUERIES in axes:
            sums = self.received().unsqueeze(QUERIES).sum(dim=axes, keepdim=True)
        else:  # queries and keys both remain, so the result is as large as the matrix
            return self.dense().sum(axes, keepdim)
        return sums if keepdim else sums.squeeze(axes)

    @_streamed
    def mean(self, dim: Dims = None, keepdim: bool = False) -> Tensor:
        """Return the mean over some axes, as `torch.mean`; differentiable."""
        return self.sum(dim, keepdim) / math.prod(self.shape[axis] for axis in _axes(dim))

    @_streamed
    def amax(self, dim: Dims = (), keepdim: bool = False) -> Tensor:
        """Return the largest weight over some axes, as `torch.amax`; differentiable."""
        axes = _axes(dim)
        check_bool("keepdim", keepdim)
        if KEYS not in axes and QUERIES not in axes:
            return self.dense().amax(axes, keepdim)
        along = self._max_along(KEYS if KEYS in axes else QUERIES)
        values = along.values.amax(dim=axes, keepdim=True)
        return values if keepdim else values.squeeze(axes)

    @_streamed
    def max(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """Return the largest weight, or with `dim` the `(values, indices)` along an axis, as `torch.max`."""
        if dim is None:
            return self.amax()
        axis = check_int("dim", dim, -4, 3) % 4
        check_bool("keepdim", keepdim)
        if axis not in (QUERIES, KEYS):
            return MaxResult(*self.dense().max(axis, keepdim))
        along = self._max_along(axis)
        return along if keepdim else MaxResult(*(result.squeeze(axis) for result in along))

    @_streamed
    def argmax(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """Return the index of the largest weight, as `torch.argmax`; 0 for a query without a key."""
        with torch.no_grad():
            if dim is not None:
                return self.max(dim, keepdim).indices
            along = self._max_along(KEYS)
            row = along.values.argmax()
            index = row * self.shape[3] + along.indices.flatten()[row]
        return index.view(1, 1, 1, 1) if check_bool("keepdim", keepdim) else index

    def _max_along(self, axis: int) -> MaxResult:
        """Return the largest weights along queries or keys; the axis has size 1."""
        if self.shape[axis] == 0:
            raise IndexError(f"axis {axis} has size 0; expected a maximum over at least one weight")
        if axis == QUERIES:
            return MaxResult(*self._column_maxima())
        top = self.topk(1)
        return MaxResult(top.weights, top.keys.long().clamp(min=0))


def _axes(dim: Dims) -> tuple[int, ...]:
    """Return the axes of a reduction, from 0 to 3; None and () are all axes, as in torch."""
    dims = list(dim) if isinstance(dim, Sequence) else [dim]
    if dim is None or not dims:
        return (0, 1, 2, 3)
    axes: list[int] = []
    for axis in dims:
        if isinstance(axis, bool) or not isinstance(axis, int | np.integer):
            raise TypeError(f"dim is {describe(dim)}; expected an axis, several axes or None")
        if not -4 <= axis < 4:
            raise IndexError(f"dim is {axis}; expected an axis from −4 to 3 of [batch, heads, q_len, kv_len]")
        axes.append(int(axis) % 4)
    if len(set(axes)) < len(axes):
        raise ValueError(f"dim is {describe(dim)}; expected each axis once")
    return tuple(sorted(axes))
