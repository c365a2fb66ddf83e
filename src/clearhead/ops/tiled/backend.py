"""Backend `streaming`: plain torch over tiles, in O(n) memory, on any device. Supports every call."""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Float, Int
from torch import Tensor

from clearhead.ops._custom_op import custom_op
from clearhead.ops.call import AttentionCall
from clearhead.ops.gradients import CellGradient, Gradients
from clearhead.ops.statistics import AttentionStatistics, PoolSpec, StatisticsRequest
from clearhead.ops.tiled import attention, cells, pooling, products, single_query
from clearhead.ops.tiled import divergence as divergence_sweep
from clearhead.ops.tiled import statistics as statistics_sweep
from clearhead.ops.tiled.logits import FoldedCall

_attend = custom_op("streaming_forward", attention.forward, attention.backward)


def unsupported_reasons(call: AttentionCall, task: str = "output") -> list[str]:
    return []


def attend(
    call: AttentionCall, with_lse: bool
) -> tuple[Float[Tensor, "batch heads q_len value_dim"], Float[Tensor, "batch heads q_len"]]:
    """Return output and log-sum-exp; both are differentiable."""
    return _attend(call)


def log_sum_exp(call: AttentionCall) -> Float[Tensor, "batch heads q_len"]:
    """Return log-sum-exp, differentiable, from attention with values of width 0."""
    return _attend(replace(call, value=call.key[..., :0]))[1]


def transposed_product(
    call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], rows: Float[Tensor, "batch heads q_len width"]
) -> Float[Tensor, "batch heads kv_len width"]:
    """Return Aᵀ · rows for each head, without gradients."""
    return products.transposed_product(FoldedCall.from_call(call), lse, rows)


def entropy_and_product(
    call: AttentionCall,
    lse: Float[Tensor, "batch heads q_len"],
    columns: Float[Tensor, "batch kv_heads kv_len width"],
) -> tuple[Float[Tensor, "batch heads q_len"], Float[Tensor, "batch heads q_len width"]]:
    """Return the entropy of each row, and A · columns, in one pass and without gradients."""
    return statistics_sweep.entropy_and_product(FoldedCall.from_call(call), lse, columns)


def divergence(
    call: AttentionCall,
    lse: Float[Tensor, "batch heads q_len"],
    groups: int,
    student: AttentionCall,
    student_lse: Float[Tensor, "batch heads q_len"],
    with_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return KL(call ‖ student) of each row, and the gradients of the sum of all rows: of the query and of the key.

    The gradient of the key has the key heads of the student, or its query heads. Without `with_gradient`, the gradients
    are empty. Both calls have the same mask and the same number of heads, which is also `groups`. The student has
    neither softcap nor bias.
    """
    return divergence_sweep.divergence(*_with_same_key_heads(call, lse, student, student_lse), with_gradient)


def divergence_key_gradient(
    call: AttentionCall,
    lse: Float[Tensor, "batch heads q_len"],
    groups: int,
    student: AttentionCall,
    student_lse: Float[Tensor, "batch heads q_len"],
    grad: Float[Tensor, "batch heads q_len"],
) -> Float[Tensor, "batch key_heads kv_len key_dim"]:
    """Return the gradient of a loss with respect to the student's keys, from that of `divergence`."""
    return divergence_sweep.key_gradient(*_with_same_key_heads(call, lse, student, student_lse), grad)


def _with_same_key_heads(
    call: AttentionCall, lse: Tensor, student: AttentionCall, student_lse: Tensor
) -> tuple[AttentionCall, Tensor, AttentionCall, Tensor]:
    """Repeat the keys of both calls if they have different numbers of key heads."""
    if call.key.shape[1] != student.key.shape[1]:
        call, student = call.ungrouped(), student.ungrouped()
    return call, lse, student, student_lse


def score_gradients(
    call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], gradient: CellGradient, need_bias: bool
) -> Gradients:
    """Return the gradients of everything that the scores depend on, from the gradient of the weights."""
    return attention.score_gradients(call, lse, gradient, need_bias=need_bias)


def statistics(
    call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], request: StatisticsRequest
) -> AttentionStatistics:
    """Return the statistics requested; pooling takes a separate pass."""
    if call.shape[2] == 1 and call.shape[3] and request.pool is None:
        return single_query.compute_statistics(call, lse, request)
    folded = FoldedCall.from_call(call)
    results = AttentionStatistics()
    if any(request.requests(name) for name in ("entropy", "received", "distance", "mass", "top")):
        results = statistics_sweep.compute_statistics(folded, lse, request)
    if request.pool is not None:
        results |= AttentionStatistics(pooled=pooling.pool(folded, lse, request.pool))
    return results


def largest_cells(
    call: AttentionCall,
    lse: Float[Tensor, "batch heads q_len"],
    rows: slice,
    keys: slice,
    size: tuple[int, int],
) -> cells.LargestCells:
    """Return the largest weight of each bin of some rows and keys, with its row and key in the whole matrix."""
    largest = cells.largest_cells(FoldedCall.from_call(call).window(rows, keys), lse[..., rows], *size)
    return largest._replace(rows=largest.rows + rows.start, keys=largest.keys + keys.start)


def cells_above(
    call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], threshold: float, limit: int
) -> tuple[Int[Tensor, "4 count"], int]:
    """Return the indices of all weights above a threshold, incomplete after `limit` of them, and their number."""
    return cells.cells_above(FoldedCall.from_call(call), lse, threshold, limit)


def pool(
    call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], rows: slice, keys: slice, spec: PoolSpec
) -> Float[Tensor, "batch heads rows cols"]:
    """Return the weights of some rows and keys, pooled into bins."""
    return pooling.pool(FoldedCall.from_call(call).window(rows, keys), lse[..., rows], spec)
