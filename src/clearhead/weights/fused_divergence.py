"""Kullback–Leibler divergence of the rows of two matrices in fused kernels, with gradients of the student."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ops import dispatch
from clearhead.ops.call import PARTS, AttentionCall
from clearhead.ops.tiled import backend as tiled
from clearhead.ops.triton import backend as triton
from clearhead.weights.autograd import Lse, call_of, join_tensors, refusing_second_derivative, split_tensors
from clearhead.weights.differentiable_statistics import row_sums


class Backend(Protocol):
    """Functions of a backend module that computes the divergence of two calls with the same mask."""

    def divergence(
        self, call: AttentionCall, lse: Lse, groups: int, student: AttentionCall, student_lse: Lse, with_gradient: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the divergence of each row, and the gradients of the query and, or None, of the key.

        The gradients are those of the sum of all rows.
        """
        ...

    def divergence_key_gradient(
        self, call: AttentionCall, lse: Lse, groups: int, student: AttentionCall, student_lse: Lse, grad: Lse
    ) -> Float[Tensor, "batch any_heads kv_len key_dim"]:
        """Return the gradient of the key, from the gradient of each row's divergence."""
        ...


def fused_backend(teacher: AttentionCall, groups: int, student: AttentionCall) -> Backend | None:
    """Return the backend that computes the divergence of two calls with the same mask; None if none supports it.

    Args:
        teacher: call whose heads are averaged.
        groups: number of groups of consecutive heads that are averaged; the number of heads if none are.
        student: call without softcap and bias.
    """
    same_dtype = teacher.query.dtype == student.query.dtype
    if same_dtype and student.sinks is None and dispatch.uses_triton(teacher) and dispatch.uses_triton(student):
        return triton
    same_heads = teacher.shape[1] == groups == student.shape[1]
    # on CUDA, tiles in plain torch are slower than the teacher's entropy and product in other kernels
    if same_heads and teacher.compute_dtype == student.compute_dtype and teacher.query.device.type != "cuda":
        return tiled
    return None


def divergence(
    backend: Backend, teacher: AttentionCall, lse: Lse, groups: int, student: AttentionCall, student_lse: Lse
) -> Float[Tensor, "batch heads q_len"]:
    """Return KL(mean over groups of the teacher's heads ‖ student) of each row; differentiable in the student."""
    teacher, student = (replace(call.without_dropout(), value=None) for call in (teacher, student))
    if not student.scores_require_grad():
        with torch.no_grad():
            return backend.divergence(teacher, lse, groups, student, student_lse, False)[0]
    return _apply(backend, groups, lse, student_lse, *teacher.parts().values(), *student.parts().values())


class _Divergence(torch.autograd.Function):
    """The forward pass computes the gradients too, up to a factor for each row, which the loss determines."""

    @staticmethod
    def forward(ctx, backend: Backend, groups: int, lse: Lse, student_lse: Lse, *parts: Any) -> Tensor:
        teacher, student = call_of(parts[: len(PARTS)]), call_of(parts[len(PARTS) :])
        result, *gradients = backend.divergence(teacher, lse, groups, student, student_lse, True)
        ctx.backend, ctx.groups = backend, groups
        tensors, ctx.scalars = split_tensors(parts)
        ctx.save_for_backward(lse, student_lse, *gradients, *tensors)
        return result

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        saved = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return _Divergence.gradients(ctx, saved, grad)
        with torch.no_grad():
            gradients = _Divergence.gradients(ctx, saved, grad)
        return refusing_second_derivative(gradients, (*saved, grad))

    @staticmethod
    def gradients(ctx, saved: tuple[Tensor, ...], grad: Tensor) -> tuple[Tensor | None, ...]:
        lse, student_lse, grad_query, grad_key, *tensors = saved
        parts = join_tensors(tensors, ctx.scalars)
        teacher, student = call_of(parts[: len(PARTS)]), call_of(parts[len(PARTS) :])
        needs = dict(zip(PARTS, ctx.needs_input_grad[-len(PARTS) :], strict=True))
        grads: dict[str, Tensor] = {}
        if needs["query"]:
            rows = grad[..., None] * grad_query
            grads["query"] = _sum_heads(rows, student.query.shape[1]).to(student.query.dtype)
        if needs["key"]:
            columns = None if grad_key is None else _times_equal_factors(grad_key, grad)
            if columns is None:
                columns = ctx.backend.divergence_key_gradient(teacher, lse, ctx.groups, student, student_lse, grad)
            grads["key"] = _sum_heads(columns, student.key.shape[1]).to(student.key.dtype)
        if needs["sinks"]:
            assert student.sinks is not None
            shares = torch.exp(student.sinks.to(lse.dtype)[:, None] - student_lse)  # of the sink in each row
            grads["sinks"] = (grad * row_sums(teacher, lse) * shares).sum(dim=(0, 2)).to(student.sinks.dtype)
        return (None,) * (len(ctx.needs_input_grad) - len(PARTS)) + tuple(grads.get(name) for name in PARTS)


_apply: Any = torch.compiler.disable(_Divergence.apply)


def _times_equal_factors(
    columns: Float[Tensor, "batch key_heads kv_len key_dim"], grad: Float[Tensor, "batch heads q_len"]
) -> Float[Tensor, "batch key_heads kv_len key_dim"] | None:
    """Multiply sums over rows by the factor of these rows; None if the factors of a sum differ.

    In the mean or sum of all rows they are equal.
    """
    factors = grad.unflatten(1, (columns.shape[1], -1)).flatten(2)  # of all rows that read a key head
    first = factors[..., :1]
    return columns * first[..., None] if grad.numel() and bool((factors == first).all()) else None


def _sum_heads(tensor: Float[Tensor, "batch heads *rest"], count: int) -> Float[Tensor, "batch count *rest"]:
    """Add up consecutive heads, so that `count` of them remain."""
    return tensor if tensor.shape[1] == count else tensor.unflatten(1, (count, -1)).sum(dim=2)
