"""Backend `streaming`: plain torch over tiles, in O(n) memory, on any device. Supports every call."""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from clearhead.ops._custom_op import custom_op
from clearhead.ops.call import AttentionCall
from clearhead.ops.statistics import AttentionStatistics, PoolSpec, StatisticsRequest
from clearhead.ops.tiled import attention, pooling
from clearhead.ops.tiled.logits import FoldedCall
from clearhead.ops.tiled.statistics import compute_statistics

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


def statistics(
    call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], request: StatisticsRequest
) -> AttentionStatistics:
    """Return the statistics requested; pooling takes a separate pass."""
    folded = FoldedCall.from_call(call)
    results = AttentionStatistics()
    if request != StatisticsRequest(pool=request.pool):
        results = compute_statistics(folded, lse, request)
    if request.pool is not None:
        results |= AttentionStatistics(pooled=pooling.pool(folded, lse, request.pool))
    return results


def pool(
    call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], rows: slice, keys: slice, spec: PoolSpec
) -> Float[Tensor, "batch heads rows cols"]:
    """Return the weights of some rows and keys, pooled into bins."""
    return pooling.pool(FoldedCall.from_call(call).window(rows, keys), lse[..., rows], spec)
