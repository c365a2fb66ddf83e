"""Products of the matrix and its transpose with tensors, without the matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.tensor_checks import check_float_tensor
from clearhead.ops import dispatch
from clearhead.ops.call import AttentionCall
from clearhead.ops.gradients import CellGradient
from clearhead.ops.tiled import backend as tiled
from clearhead.weights import autograd
from clearhead.weights.autograd import Grads, Lse, Tensors
from clearhead.weights.cells import finite_lse
from clearhead.weights.indexing import Selection
from clearhead.weights.lookup import Cells, lookup

if TYPE_CHECKING:
    from clearhead.weights.lazy_matrix import LazyMatrix


def product(call: AttentionCall, tensor: Tensor, lse: Lse | None = None) -> Float[Tensor, "batch heads q_len width"]:
    """Return A · tensor for a call: its output with other values. Has the dtype of the tensor; differentiable.

    Args:
        call: the attention call.
        tensor: `[kv_len, width]`, or `[batch or 1, heads or kv_heads or 1, kv_len, width]`.
        lse: log-sum-exp by which the weights are normalized, if it is not that of the call. The call then carries no
            gradients; the tensor may.
    """
    dtype = tensor.dtype
    call = in_dtype(call.without_dropout(), dtype)
    batch, heads, _, kv_len = call.shape
    value = with_four_axes(tensor).to(call.query.dtype)
    if value.shape[1] == heads != call.key.shape[1]:
        call = call.ungrouped()
    value = value.expand(batch, call.key.shape[1], kv_len, value.shape[3])
    call = replace(call, value=value)
    backend = dispatch.choose(call)[1]
    if lse is None:
        return backend.attend(call, False)[0].to(dtype)
    output, call_lse = backend.attend(call, True)
    assert call_lse is not None
    return (output * torch.exp(call_lse.detach() - finite_lse(lse))[..., None]).to(dtype)


def product_with_fixed_weights(
    call: AttentionCall, lse: Lse, tensor: Tensor, normalized: bool = True
) -> Float[Tensor, "batch heads q_len width"]:
    """Return A · tensor as `product`, for weights without gradients and a tensor that requires one.

    The gradient is Aᵀ times that of the result. The backward pass of attention would take twice as long, because it
    also computes the gradients of queries and keys.
    """
    call, lse = _as_precise_as(tensor, call, lse, normalized)
    (result,) = autograd.apply(_FixedProduct(normalized), call, lse, with_four_axes(tensor))
    return result


@dataclass(frozen=True)
class _FixedProduct:
    """A · tensor for fixed weights."""

    normalized: bool

    def compute(self, call: AttentionCall, lse: Lse, inputs: Tensors) -> tuple[Tensor, ...]:
        return (product(call, inputs[0], None if self.normalized else lse),)

    def cell_gradient(
        self, call: AttentionCall, lse: Lse, inputs: Tensors, results: Tensors, grads: Grads
    ) -> tuple[CellGradient, Grads]:
        (tensor,), (grad,) = inputs, grads
        assert grad is not None
        columns = dispatch.transposed_product(call, lse, grad.to(call.query.dtype))  # of every query head
        if tensor.shape[1] not in (1, columns.shape[1]):
            columns = columns.unflatten(1, (tensor.shape[1], -1)).sum(dim=2)
        return CellGradient(torch.zeros_like(lse)), (columns.sum_to_size(tensor.shape).to(tensor.dtype),)


def transposed_product(
    call: AttentionCall, lse: Lse, tensor: Tensor, normalized: bool = True
) -> Float[Tensor, "batch heads kv_len width"]:
    """Return Aᵀ · tensor for each head. Has the dtype of the tensor; differentiable.

    Args:
        call: the attention call.
        lse: log-sum-exp of each row's scores.
        tensor: `[q_len, width]`, or `[batch or 1, heads or 1, q_len, width]`.
        normalized: whether `lse` is that of the call. Otherwise the call carries no gradients.
    """
    call, lse = _as_precise_as(tensor, call, lse, normalized)
    rows = with_four_axes(tensor).expand(*call.shape[:3], tensor.shape[-1])
    (result,) = autograd.apply(_TransposedProduct(normalized), call, lse, rows)
    return result.to(tensor.dtype)


@dataclass(frozen=True)
class _TransposedProduct:
    """Aᵀ · rows; a loss with gradient g depends on weight (i, j) by rows[i] · g[j]."""

    normalized: bool

    def compute(self, call: AttentionCall, lse: Lse, inputs: Tensors) -> tuple[Tensor, ...]:
        return (dispatch.transposed_product(call, lse, inputs[0]),)

    def cell_gradient(
        self, call: AttentionCall, lse: Lse, inputs: Tensors, results: Tensors, grads: Grads
    ) -> tuple[CellGradient, Grads]:
        (rows,), (grad,) = inputs, grads
        assert grad is not None
        grad = grad.to(call.query.dtype)  # a more precise one would take a slower kernel
        grad_rows = product(call, grad, None if self.normalized else lse)
        delta = (rows.to(lse.dtype) * grad_rows.to(lse.dtype)).sum(dim=-1)
        return CellGradient(delta, left=rows, right=grad), (grad_rows.to(rows.dtype),)


def in_dtype(call: AttentionCall, dtype: torch.dtype) -> AttentionCall:
    """Return the call in a dtype, if that is more precise than its own; otherwise the call itself."""
    wider = torch.promote_types(call.query.dtype, dtype)
    if wider == call.query.dtype:
        return call
    bias = call.tensor_bias
    return replace(
        call,
        query=call.query.to(wider),
        key=call.key.to(wider),
        bias=call.bias if bias is None else bias.to(wider),
        value=None if call.value is None else call.value.to(wider),
    )


def _as_precise_as(tensor: Tensor, call: AttentionCall, lse: Lse, normalized: bool) -> tuple[AttentionCall, Lse]:
    """Return a call and its log-sum-exp at least in the precision of a tensor that its weights are multiplied by."""
    call = in_dtype(call, tensor.dtype)
    if lse.dtype == call.compute_dtype:
        return call, lse
    return call, tiled.log_sum_exp(call).detach() if normalized else lse.to(call.compute_dtype)


def with_four_axes(tensor: Tensor) -> Tensor:
    """Return a tensor with leading axes of size 1, as matmul broadcasts it; a vector becomes one column."""
    return tensor[None, None, :, None] if tensor.ndim == 1 else tensor[(None,) * (4 - tensor.ndim)]


def check_factor(name: str, tensor: object, weights: LazyMatrix, axis: int) -> Tensor:
    """Return the right factor of a product if it broadcasts.

    Args:
        name: name of the argument, for errors.
        tensor: the factor.
        weights: the left factor.
        axis: axis of the weights that is summed over.
    """
    batch, heads, *lengths = weights.shape
    length, size = {2: "q_len", 3: "kv_len"}[axis], lengths[axis - 2]
    counts = dict.fromkeys((heads, weights.key_heads, 1) if axis == 3 else (heads, 1))
    several = " or ".join(map(str, counts))
    expected = f"[{length} = {size}, width] or [batch = {batch}, heads = {several}, {length} = {size}, width]"
    tensor = check_float_tensor(name, tensor, expected)
    shape = tuple(with_four_axes(tensor).shape) if 1 <= tensor.ndim <= 4 else ()
    if (
        not shape
        or shape[2] != size
        or (shape[0] not in (batch, 1) and batch > 1)
        or (shape[1] not in counts and heads > 1)
    ):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {expected}")
    if tensor.device != weights.device:
        raise ValueError(f"{name} is on {tensor.device}; expected {weights.device}, the device of the weights")
    return tensor


def fold_broadcast(multiply: Callable[[Tensor], Tensor], tensor: Tensor, weights: LazyMatrix) -> Tensor:
    """Multiply a matrix by a factor that may be a vector, or have more sequences or heads than the matrix.

    Those become columns of the factor, because the matrix is the same for all of them.
    """
    factor = with_four_axes(tensor)
    batch, heads, length, width = factor.shape
    batches, groups = batch if weights.shape[0] == 1 else 1, heads if weights.shape[1] == 1 else 1
    if batches * groups > 1:
        folded = factor.reshape(batches, batch // batches, groups, heads // groups, length, width)
        folded = folded.permute(1, 3, 4, 0, 2, 5).flatten(3)
        result = multiply(folded).unflatten(-1, (batches, groups, width))
        result = result.permute(3, 0, 4, 1, 2, 5).flatten(2, 3).flatten(0, 1)
    else:
        result = multiply(factor)
    return result.squeeze(-1) if tensor.ndim == 1 else result


class TransposedWeights:
    """Lazy transpose of an attention matrix, `[batch, heads, kv_len, q_len]`: supports `@`, `shape` and indexing."""

    def __init__(self, weights: LazyMatrix) -> None:
        self._weights = weights

    @property
    def shape(self) -> torch.Size:
        """Size `[batch, heads, kv_len, q_len]`."""
        batch, heads, q_len, kv_len = self._weights.shape
        return torch.Size((batch, heads, kv_len, q_len))

    @property
    def dtype(self) -> torch.dtype:
        return self._weights.dtype

    @property
    def device(self) -> torch.device:
        return self._weights.device

    @property
    def mT(self) -> LazyMatrix:  # noqa: N802, torch's name
        return self._weights

    def __matmul__(self, other: Tensor) -> Float[Tensor, "batch heads kv_len *width"]:
        """Compute Aᵀ · other without the matrix; differentiable. Has the dtype of `other`."""
        factor = check_factor("the right factor", other, self._weights, 2)
        return fold_broadcast(self._weights._transposed_matmul, factor, self._weights)

    def __getitem__(self, index: object) -> Tensor:
        """Compute the exact weights of an index, as torch indexes a dense matrix; differentiable."""
        return lookup(self, index, names=("batch", "heads", "kv_len", "q_len"))

    def dense(self) -> Float[Tensor, "batch heads kv_len q_len"]:
        """Return the whole matrix as a plain tensor; raises above the size limit of `AttentionWeights.dense`."""
        return self._weights.dense().mT

    def _block(self, selection: Selection) -> Float[Tensor, "batch heads keys rows"]:
        batch, heads, keys, rows = selection
        return self._weights._block(Selection(batch, heads, rows, keys)).mT

    def _cells(self) -> Cells:
        cells = self._weights._cells()
        return lambda index: cells(index[[0, 1, 3, 2]])

    def __repr__(self) -> str:
        return f"Transpose of {self._weights!r}"
