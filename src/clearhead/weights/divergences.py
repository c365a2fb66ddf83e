"""Kullback–Leibler divergence of the rows of two matrices, without either matrix.

For a teacher without gradients and a student with the same mask, fused kernels compute it, tile by tile. Otherwise
KL(P ‖ Q) = −H(P) + m · lse_Q − Σⱼ P[j] · s_Q[j], with m = Σⱼ P[j]. Without softcap and bias, the last sum is
scale · q · (P K), a product of the teacher and the student's keys.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.checks import check_bool, describe
from clearhead.ops import dispatch
from clearhead.ops.call import AttentionCall
from clearhead.ops.gradients import CellGradient
from clearhead.ops.masks import PrecomputedMask
from clearhead.ops.tiled import backend as tiled
from clearhead.weights import autograd
from clearhead.weights.autograd import Grads, Lse, Tensors
from clearhead.weights.cells import finite_lse
from clearhead.weights.differentiable_statistics import row_sums
from clearhead.weights.fused_divergence import divergence, fused_backend
from clearhead.weights.gather import log_sum_exp
from clearhead.weights.matrix import AttentionWeights
from clearhead.weights.mean_heads import MeanHeads
from clearhead.weights.strips import WeightRows, by_strips, log_of_positive

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}  # of a sum of weights


def kl(teacher: AttentionWeights | MeanHeads, student: object, ignore: bool) -> Float[Tensor, "batch heads q_len"]:
    """Return KL(teacher ‖ student) of each row; differentiable in both."""
    student = _checked_student(teacher, student)
    check_bool("ignore", ignore)
    call = student._checked()
    source, groups = _source(teacher), teacher.shape[1]
    plain = call.softcap is None and call.bias is None and not _differs_by_head(teacher, call)
    if plain and not teacher.requires_grad and _identical_masks(source, call):
        backend = fused_backend(source._checked(), groups, call)
        if backend is not None:
            return divergence(backend, source._checked(), source.lse, groups, call, student.lse)
    same_mask = _same_mask(source, call)
    if plain and (same_mask or not ignore):
        if not same_mask:
            _refuse_forbidden(teacher, call)
        return _by_products(teacher, student)
    return _by_strips(teacher, student, ignore)


def _by_products(teacher: AttentionWeights | MeanHeads, student: AttentionWeights) -> Lse:
    """Compute the divergence by the formula above."""
    call = student._checked()
    query, key = call.query.to(call.compute_dtype), call.key.to(call.compute_dtype)
    heads, teacher_heads = query.shape[1], teacher.shape[1]
    if teacher_heads not in (1, heads) or (teacher_heads > 1 and teacher.key_heads != key.shape[1]):
        key = key.repeat_interleave(call.group, dim=1)
    entropy, products = _entropy_and_product(teacher, key)  # the second [batch, heads or key heads, q_len, key_dim]
    if products.shape[1] not in (1, max(heads, teacher_heads)):
        products = products.repeat_interleave(heads // products.shape[1], dim=1)
    crossed = (query * products).sum(dim=-1) * call.scale
    return _row_sums(teacher) * finite_lse(log_sum_exp(call, student.lse)) - crossed - entropy


def _entropy_and_product(teacher: AttentionWeights | MeanHeads, key: Tensor) -> tuple[Tensor, Tensor]:
    """Return the entropy of the teacher's rows, and its product with the student's keys."""
    fits = key.shape[1] == teacher.key_heads and key.dtype == teacher.dtype and teacher.device.type != "cuda"
    if isinstance(teacher, MeanHeads) or teacher.requires_grad or not fits:
        return teacher.entropy(), teacher @ key
    entropy, products = autograd.apply(_FixedTerms(), teacher._checked(), teacher.lse, key)
    return entropy, products


class _FixedTerms:
    """Entropy and A · key of a teacher without gradients, in one pass over its weights."""

    def compute(self, call: AttentionCall, lse: Lse, inputs: Tensors) -> tuple[Tensor, ...]:
        return tiled.entropy_and_product(call, lse, inputs[0])

    def cell_gradient(
        self, call: AttentionCall, lse: Lse, inputs: Tensors, results: Tensors, grads: Grads
    ) -> tuple[CellGradient, Grads]:
        _, grad = grads
        if grad is None:
            return CellGradient(torch.zeros_like(lse)), (None,)
        columns = dispatch.transposed_product(call, lse, grad).unflatten(1, (call.key.shape[1], -1)).sum(dim=2)
        return CellGradient(torch.zeros_like(lse)), (columns,)


def _by_strips(teacher: AttentionWeights | MeanHeads, student: AttentionWeights, ignore: bool) -> Lse:
    call = student._checked()
    student_rows = WeightRows(call, student.lse)
    teacher_rows = teacher._rows() if isinstance(teacher, MeanHeads) else teacher._strips()

    def compute(rows: slice) -> Tensor:
        weights, logs = teacher_rows(rows), student_rows.scores(rows) - student_rows.lse[:, :, rows, None]
        forbidden = logs == -torch.inf
        if not ignore:
            _refuse((weights.detach() * forbidden).sum(dim=-1), 0.0)
        logs = logs.masked_fill(forbidden, 0.0)
        weights = torch.where(forbidden, 0.0, weights)
        return (weights * (log_of_positive(weights) - logs)).sum(dim=-1)

    batch, heads, q_len, kv_len = student.shape
    source = _source(teacher)
    with_grad = teacher.requires_grad or student.requires_grad
    return by_strips(compute, (batch, max(heads, source.shape[1]), q_len, kv_len), with_grad=with_grad)


def _checked_student(teacher: AttentionWeights | MeanHeads, student: object) -> AttentionWeights:
    if not isinstance(student, AttentionWeights):
        raise TypeError(f"student is {describe(student)}; expected an AttentionWeights")
    source = _source(teacher)
    for name, weights in (("the teacher", source), ("student", student)):
        if not weights._normalized:
            raise ValueError(f"{name} is a scaled matrix or hides keys; expected rows of a softmax")
    (batch, heads, *lengths), (other_batch, other_heads, *other) = teacher.shape, student.shape
    if batch != other_batch or lengths != other or (heads != other_heads and 1 not in (heads, other_heads)):
        expected = (
            f"[{batch}, {heads} or 1, {lengths[0]}, {lengths[1]}]"
            if heads > 1
            else f"[{batch}, any, {lengths[0]}, {lengths[1]}]"
        )
        raise ValueError(f"student has shape {list(student.shape)}; expected {expected}, that of the teacher")
    if student.device != teacher.device:
        raise ValueError(f"student is on {student.device}; expected {teacher.device}, the device of the teacher")
    return student


def _source(teacher: AttentionWeights | MeanHeads) -> AttentionWeights:
    """Return the weights of all heads."""
    return teacher._weights if isinstance(teacher, MeanHeads) else teacher


def _same_mask(teacher: AttentionWeights, call: AttentionCall) -> bool:
    """Return whether the student may certainly attend to everything that the teacher attends to."""
    return call.mask is None or _identical_masks(teacher, call)


def _identical_masks(teacher: AttentionWeights, call: AttentionCall) -> bool:
    """Return whether teacher and student certainly may attend to the same keys."""
    if call.mask is None or call.mask is teacher.mask:
        return call.mask is teacher.mask and (call.mask is None or call.positions().equal(teacher._call.positions()))
    lowered, other = call.lower(), teacher.lowered_mask
    pairs = ((lowered.ranges, other.ranges), (lowered.dense, other.dense))
    return all((a is None) == (b is None) and (a is None or b is None or torch.equal(a, b)) for a, b in pairs)


def _differs_by_head(teacher: AttentionWeights | MeanHeads, call: AttentionCall) -> bool:
    """Return whether the student's heads have different masks that are not compared head by head."""
    dense = call.lower().dense
    heads = 1 if dense is None else dense.shape[1]
    return heads > 1 and (isinstance(teacher, MeanHeads) or teacher.shape[1] != heads)


@torch.no_grad()
def _refuse_forbidden(teacher: AttentionWeights | MeanHeads, student: AttentionCall) -> None:
    """Raise if the teacher attends to keys that the student's mask forbids."""
    source = _source(teacher)
    call = source._checked().without_dropout()
    assert student.mask is not None
    allowed_to_student = PrecomputedMask(student.lower(), student.mask)  # at the positions of the student's queries
    mask = allowed_to_student if call.mask is None else call.mask & allowed_to_student
    allowed = tiled.log_sum_exp(replace(call, mask=mask, sinks=None))
    outside = row_sums(call, source.lse) - torch.exp(allowed - finite_lse(source.lse))
    _refuse(outside, TOLERANCE[source.dtype])


def _refuse(outside: Lse, tolerance: float) -> None:
    largest = float(outside.max()) if outside.numel() else 0.0
    if largest > tolerance:
        raise ValueError(
            f"the teacher puts up to {largest:.2g} of a row on keys that the student may not attend to, so KL is"
            " infinite; pass ignore=True to leave those keys out, or give both the same mask"
        )


def _row_sums(teacher: AttentionWeights | MeanHeads) -> Lse:
    """Return the sum of each row of the teacher; differentiable."""
    if isinstance(teacher, MeanHeads):
        return teacher._mean(_row_sums(teacher._weights))
    call = teacher._checked()
    return row_sums(call, teacher.lse if call.sinks is None else log_sum_exp(call, teacher.lse))
