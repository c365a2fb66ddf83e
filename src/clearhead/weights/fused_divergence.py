"""Kullback–Leibler divergence of the rows of two matrices in fused kernels, with gradients of the student."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ops import dispatch
from clearhead.ops.call import AttentionCall
from clearhead.ops.triton import backend as triton
from clearhead.weights.autograd import Lse, refusing_second_derivative


def is_fused(teacher: AttentionCall, student: AttentionCall) -> bool:
    """Return whether fused kernels compute the divergence of two calls with the same mask."""
    same = teacher.query.dtype == student.query.dtype and student.sinks is None
    return same and dispatch.uses_triton(teacher) and dispatch.uses_triton(student)


def divergence(
    teacher: AttentionCall, lse: Lse, groups: int, student: AttentionCall, student_lse: Lse
) -> Float[Tensor, "batch heads q_len"]:
    """Return KL(mean over groups of the teacher's heads ‖ student) of each row; differentiable in the student."""
    teacher, student = teacher.without_dropout(), student.without_dropout()
    if not student.scores_require_grad():
        return triton.divergence(teacher, lse, groups, student, student_lse, False)[0]
    return _apply(teacher, groups, student, student.query, student.key, teacher.query, teacher.key, lse, student_lse)


class _Divergence(torch.autograd.Function):
    """The gradient with respect to the queries is computed in the forward pass, up to a factor for each row."""

    @staticmethod
    def forward(
        ctx, teacher: AttentionCall, groups: int, student: AttentionCall, query: Tensor, key: Tensor, *fixed: Tensor
    ) -> Tensor:
        teacher_query, teacher_key, lse, student_lse = fixed
        result, grad_query = triton.divergence(teacher, lse, groups, student, student_lse, True)
        ctx.teacher, ctx.student = (replace(call, value=None) for call in (teacher, student))
        ctx.groups = groups
        ctx.save_for_backward(query, key, teacher_query, teacher_key, lse, student_lse, grad_query)
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
        query, key, teacher_query, teacher_key, lse, student_lse, grad_query = saved
        grads: list[Tensor | None] = [None, None]
        if ctx.needs_input_grad[3]:
            rows = grad[..., None] * grad_query
            grads[0] = _sum_heads(rows, query.shape[1]).to(query.dtype)
        if ctx.needs_input_grad[4]:
            teacher = replace(ctx.teacher, query=teacher_query, key=teacher_key)
            student = replace(ctx.student, query=query, key=key)
            columns = triton.divergence_key_gradient(teacher, lse, ctx.groups, student, student_lse, grad)
            grads[1] = _sum_heads(columns, key.shape[1]).to(key.dtype)
        return (None, None, None, *grads, None, None, None, None)


_apply: Any = torch.compiler.disable(_Divergence.apply)


def _sum_heads(tensor: Float[Tensor, "batch heads *rest"], count: int) -> Float[Tensor, "batch count *rest"]:
    """Add up consecutive heads, so that `count` of them remain."""
    return tensor if tensor.shape[1] == count else tensor.unflatten(1, (count, -1)).sum(dim=2)
