"""Kullback–Leibler divergence of the rows of two matrices in Triton, and entropy of the mean over heads.

The teacher's weights may be the mean over groups of consecutive heads: a program adds up the heads of a group for each
tile. The gradient of the student's scores is the difference of two weights, rounded only after the subtraction.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false, reportAssignmentType=false

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from clearhead.ops.call import AttentionCall
from clearhead.ops.triton.block_ranges import transpose_block_ranges
from clearhead.ops.triton.config import TileConfig, block_count, constants, matmul_precision, padded_width
from clearhead.ops.triton.launch import launch, layout_of_call
from clearhead.ops.triton.logits import (
    LN_2,
    LogitParams,
    StridedTensor,
    dot,
    key_length,
    load_rows,
    prepare_lse,
    prepared_rows,
    query_length,
    row_reader,
    store_rows,
)
from clearhead.ops.triton.mean_weights import mean_weights, tile_logarithms
from clearhead.ops.triton.schedule import loop_over_keys, loop_over_queries, program_block, range_ends


@dataclass(frozen=True, eq=False)
class Teacher:
    """Weights to compare with: the mean over groups of consecutive heads."""

    call: AttentionCall
    lse: Tensor
    groups: int

    @property
    def members(self) -> int:
        """Heads per group."""
        return self.call.shape[1] // self.groups


@dataclass(frozen=True, eq=False)
class Student:
    """Weights that are compared: of a call without softcap, bias and sinks, with the same mask as the teacher."""

    call: AttentionCall
    lse: Tensor


def entropy(teacher: Teacher) -> Tensor:
    """Return the entropy of each row, `[batch, groups, q_len]`."""
    return -_launch_rows(teacher, None, teacher.groups, False)[0]


def divergence(teacher: Teacher, student: Student, with_gradient: bool) -> tuple[Tensor, Tensor]:
    """Return KL(teacher ‖ student) of each row, and its gradient with respect to the row's query.

    The results have the larger number of heads of both. Without `with_gradient`, the second has size 0.
    """
    return _launch_rows(teacher, student, max(teacher.groups, student.call.shape[1]), with_gradient)


def _launch_rows(teacher: Teacher, student: Student | None, heads: int, with_gradient: bool) -> tuple[Tensor, Tensor]:
    batch, _, q_len, _ = teacher.call.shape
    arguments = _Arguments.build(teacher, student, heads)
    sums = teacher.lse.new_empty((batch, heads, q_len))
    query = arguments.student_call.query
    grad = query.new_empty((batch, heads, q_len, query.shape[3]) if with_gradient else (1, 1, 1, 0))

    def given(tile: TileConfig) -> tuple[int, tuple]:
        return block_count(q_len, tile.queries) * heads * batch, (
            *arguments.given(tile),
            sums,
            StridedTensor.from_tensor(grad) if with_gradient else None,
        )

    layout = (*arguments.layout, with_gradient)
    launch("divergence", _divergence_rows, arguments.call, layout, given, arguments.constants)
    return sums, grad


def key_gradient(teacher: Teacher, student: Student, grad: Tensor) -> Tensor:
    """Return the gradient of the divergence with respect to the keys, in float32, `[batch, heads, kv_len, dim]`.

    Args:
        teacher: weights to compare with.
        student: weights that are compared.
        grad: gradient of each row's divergence, `[batch, heads, q_len]`.
    """
    batch, heads, _ = grad.shape
    kv_len, width = student.call.key.shape[2:]
    arguments = _Arguments.build(teacher, student, heads)
    result = grad.new_empty((batch, heads, kv_len, width), dtype=torch.float32)
    row_grad = _prepared(grad)

    def given(tile: TileConfig) -> tuple[int, tuple]:
        return block_count(kv_len, tile.keys) * heads * batch, (
            *arguments.given(tile),
            row_grad,
            StridedTensor.from_tensor(result),
            transpose_block_ranges(teacher.call, arguments.logit_params, tile),
        )

    launch("divergence_key", _divergence_keys, arguments.call, arguments.layout, given, arguments.constants)
    return result


@dataclass(frozen=True, eq=False)
class _Arguments:
    """Arguments that both kernels take."""

    call: AttentionCall  # of the teacher, with the student's queries in place of values: the tile depends on both
    student_call: AttentionCall
    layout: tuple[Hashable, ...]
    heads: int
    members: int
    logit_params: LogitParams
    shift: Tensor
    student: tuple  # parameters of logits, log-sum-exp, scale and number of heads; all None to compute an entropy
    mass: Tensor | None  # sum of each of the teacher's rows, if it has sinks

    @classmethod
    def build(cls, teacher: Teacher, student: Student | None, heads: int) -> _Arguments:
        call = teacher.call
        mass = None
        parameters: tuple = (None, None, None, None)
        if student is not None:
            other = student.call
            parameters = (LogitParams.from_call(other), prepare_lse(student.lse), other.scale, other.shape[1])
            if call.sinks is not None:
                shares = 1 - torch.exp(call.sinks.float()[:, None] - teacher.lse)
                shares = shares.unflatten(1, (teacher.groups, -1)).mean(dim=2)
                mass = _prepared(shares.expand(-1, heads, -1))
        student_call = call if student is None else student.call
        return cls(
            replace(call, value=student_call.query),
            student_call,
            (*layout_of_call(call), *layout_of_call(student_call), student is None, heads, teacher.groups),
            heads,
            teacher.members,
            LogitParams.from_call(call),
            prepare_lse(teacher.lse),
            parameters,
            mass,
        )

    def given(self, tile: TileConfig) -> tuple:
        call, other = self.call, self.student_call
        return (
            row_reader(call.query, tile.queries),
            row_reader(call.key, tile.keys),
            self.logit_params,
            self.shift,
            row_reader(other.query, tile.queries),
            row_reader(other.key, tile.keys),
            *self.student,
            self.mass,
            self.heads,
        )

    def constants(self, tile: TileConfig) -> dict[str, Any]:
        width = padded_width(self.student_call.query.shape[3])
        precision = matmul_precision(self.call.query.dtype)
        return {"BLOCK_S": width, "OPTIONS": (precision, self.members), **constants(self.call, tile)}


def _prepared(rows: Tensor) -> Tensor:
    """Return a value for each row, followed by zeros, for `load_row_values`."""
    prepared = rows.new_zeros((*rows.shape[:2], prepared_rows(rows.shape[2])), dtype=torch.float32)
    prepared[..., : rows.shape[2]] = rows
    return prepared


@triton.jit
def _divergence_rows(
    query,
    key,
    logit_params,
    shift,
    student_query,
    student_key,
    student_params,
    student_shift,
    scale,
    student_heads,
    mass,
    heads,
    sums,
    grad_query,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    RANGES: tl.constexpr,
    BLOCK_S: tl.constexpr,
    OPTIONS: tl.constexpr,
):
    block, head, batch = program_block(query_length(logit_params), heads, logit_params.batches, BLOCK_Q)
    start = (tl.cdiv(query_length(logit_params), BLOCK_Q) - 1 - block) * BLOCK_Q
    rows = start + tl.arange(0, BLOCK_Q)
    MEMBERS: tl.constexpr = OPTIONS[1]
    COMPARED: tl.constexpr = student_heads is not None
    GRADIENT: tl.constexpr = grad_query is not None
    group = head % (logit_params.heads // MEMBERS)  # a single group serves all heads
    held, student = 0, 0
    if MEMBERS == 1:
        held = load_rows(query, batch, group, start, BLOCK_Q, BLOCK_D)
    if COMPARED:
        student_head = head % student_heads
        tile = load_rows(student_query, batch, student_head, start, BLOCK_Q, BLOCK_S)
        row_mass = _row_mass(mass, logit_params, heads, batch, head, rows)
        student = (tile, student_key, student_params, student_shift, student_head, row_mass)
    fixed = (held, query, key, logit_params, shift, student, batch, group, start)
    state = tl.zeros([BLOCK_Q], dtype=tl.float32)
    if GRADIENT:
        state = (state, tl.zeros([BLOCK_Q, BLOCK_S], dtype=tl.float32))
    state = loop_over_keys(
        _add_keys, state, fixed, logit_params, batch, rows, 0, key_length(logit_params), BLOCK_K, RANGES,
        (OPTIONS, BLOCK_Q, BLOCK_D, COMPARED, GRADIENT))  # fmt: skip
    sum_of_rows = state
    if GRADIENT:
        sum_of_rows = state[0]
        store_rows(grad_query, batch, head, rows, state[1] * scale)
    pointers = sums + (batch * heads + head) * query_length(logit_params) + rows
    tl.store(pointers, sum_of_rows * LN_2, rows < query_length(logit_params))


@triton.jit
def _row_mass(mass, logit_params, heads, batch, head, rows):
    """Return the sum of each of the teacher's rows: 1 without sinks."""
    if mass is None:
        return tl.full(rows.shape, 1.0, dtype=tl.float32)
    else:
        return tl.load(mass + (batch * heads + head) * logit_params.length + rows)


@triton.jit
def _add_keys(state, fixed, key_start, first, last, BLOCK_K: tl.constexpr, OPTIONS: tl.constexpr, MASKED: tl.constexpr):
    """Add the tile of keys at `key_start`: Σ A log₂ (A / B), and (B − A) · keys for the gradient."""
    held, query, key, logit_params, shift, student, batch, group, start = fixed
    BLOCK_Q: tl.constexpr = OPTIONS[1]
    weights, logarithms = mean_weights(
        held, query, key, logit_params, shift, batch, group, start, key_start, first, last, BLOCK_Q, BLOCK_K,
        OPTIONS[2], OPTIONS[0], MASKED, False)  # fmt: skip
    COMPARED: tl.constexpr = OPTIONS[3]
    GRADIENT: tl.constexpr = OPTIONS[4]
    PRECISION: tl.constexpr = OPTIONS[0][0]
    if COMPARED:
        query_tile, student_key, student_params, student_shift, head, row_mass = student
        rows, keys = start + tl.arange(0, BLOCK_Q), key_start + tl.arange(0, BLOCK_K)
        width: tl.constexpr = query_tile.shape[1]
        key_tile = load_rows(student_key, batch, head // student_params.group, key_start, BLOCK_K, width)
        student_logarithms = tile_logarithms(
            query_tile, key_tile, student_shift, student_params, batch, head, rows, keys, first, last, PRECISION,
            MASKED, False)  # fmt: skip
        logarithms -= tl.where(weights > 0, student_logarithms, 0.0)
        added = tl.sum(weights * logarithms, 1)
        if GRADIENT:
            difference = row_mass[:, None] * tl.exp2(student_logarithms) - weights
            return state[0] + added, dot(difference.to(key_tile.dtype), key_tile, state[1], PRECISION)
        else:
            return state + added
    else:
        return state + tl.sum(weights * logarithms, 1)


@triton.jit
def _divergence_keys(
    query,
    key,
    logit_params,
    shift,
    student_query,
    student_key,
    student_params,
    student_shift,
    scale,
    student_heads,
    mass,
    heads,
    row_grad,
    grad_key,
    seen,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    RANGES: tl.constexpr,
    BLOCK_S: tl.constexpr,
    OPTIONS: tl.constexpr,
    num_stages: tl.constexpr,
):
    block, head, batch = program_block(key_length(logit_params), heads, logit_params.batches, BLOCK_K)
    key_start = block * BLOCK_K
    keys = key_start + tl.arange(0, BLOCK_K)
    MEMBERS: tl.constexpr = OPTIONS[1]
    group, student_head = head % (logit_params.heads // MEMBERS), head % student_heads
    held = 0
    if MEMBERS == 1:
        held = load_rows(key, batch, group // logit_params.group, key_start, BLOCK_K, BLOCK_D)
    tile = load_rows(student_key, batch, student_head // student_params.group, key_start, BLOCK_K, BLOCK_S)
    student = (tile, student_query, student_params, student_shift, student_head, mass, row_grad, heads)
    fixed = (held, query, key, logit_params, shift, student, batch, head, group, key_start)
    state = tl.zeros([BLOCK_K, BLOCK_S], dtype=tl.float32)
    state = loop_over_queries(
        _add_queries, state, fixed, logit_params, seen, batch, block, BLOCK_Q, BLOCK_K, RANGES,
        (OPTIONS, BLOCK_K, BLOCK_D), num_stages)  # fmt: skip
    store_rows(grad_key, batch, head, keys, state * scale)


@triton.jit
def _add_queries(state, fixed, range_index, start, BLOCK_Q: tl.constexpr, OPTIONS: tl.constexpr, MASKED: tl.constexpr):
    """Add the query block at `start`: (B − A)ᵀ · queries, times the gradient of each row."""
    held, query, key, logit_params, shift, student, batch, head, group, key_start = fixed
    key_tile, student_query, student_params, student_shift, student_head, mass, row_grad, heads = student
    BLOCK_K: tl.constexpr = OPTIONS[1]
    rows, keys = start + tl.arange(0, BLOCK_Q), key_start + tl.arange(0, BLOCK_K)
    first, last = range_ends(logit_params, range_index, batch, rows)
    weights, _ = mean_weights(
        held, query, key, logit_params, shift, batch, group, start, key_start, first, last, BLOCK_Q, BLOCK_K,
        OPTIONS[2], OPTIONS[0], MASKED, True)  # fmt: skip
    PRECISION: tl.constexpr = OPTIONS[0][0]
    query_tile = load_rows(student_query, batch, student_head, start, BLOCK_Q, key_tile.shape[1])
    logarithms = tile_logarithms(
        query_tile, key_tile, student_shift, student_params, batch, student_head, rows, keys, first, last, PRECISION,
        MASKED, True)  # fmt: skip
    row_mass = _row_mass(mass, logit_params, heads, batch, head, rows)
    grads = tl.load(row_grad + (batch * heads + head) * logit_params.length + rows)
    difference = (row_mass[None, :] * tl.exp2(logarithms) - weights) * grads[None, :]
    return dot(difference.to(query_tile.dtype), query_tile, state, PRECISION)
