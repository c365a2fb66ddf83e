"""Statistics, maps and largest weights, by our kernels on CUDA and tile by tile elsewhere."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ops._precision import tf32
from clearhead.ops.call import AttentionCall
from clearhead.ops.tiled import attention as streaming
from clearhead.ops.tiled import pooling
from clearhead.ops.tiled.pooling import PoolSpec
from clearhead.ops.tiled.statistics import AttentionStatistics, compute_statistics
from clearhead.ops.triton import backend as triton_backend


def observe(
    problem: AttentionCall,
    lse: Float[Tensor, "batch heads q_len"],
    *,
    entropy: bool = False,
    received: bool = False,
    distance: bool = False,
    top: int = 0,
    picture: PoolSpec | None = None,
) -> AttentionStatistics:
    """Entropy, column sums, mean distance, the `top` largest weights of each row and a map, whichever are asked for."""
    wanted = {"entropy": entropy, "received": received, "distance": distance, "top": top}
    if _on_gpu(problem):
        return triton_backend.observe(problem, lse, **wanted, picture=picture)
    found = (
        compute_statistics(streaming.scoring(problem), lse, **wanted) if any(wanted.values()) else AttentionStatistics()
    )
    return found if picture is None else replace(found, pooled=pooling.pool(streaming.scoring(problem), lse, picture))


def pool(
    problem: AttentionCall, lse: Float[Tensor, "batch heads q_len"], rows: slice, keys: slice, picture: PoolSpec
) -> Float[Tensor, "batch heads rows cols"]:
    """The rectangle of some rows and keys, in bins."""
    if _on_gpu(problem):
        return triton_backend.pool(problem, lse, rows, keys, picture)
    return pooling.pool(streaming.scoring(problem).window(rows, keys), lse[..., rows], picture)


def rounds_otherwise(problem: AttentionCall) -> bool:
    """Whether torch's own product would round scores otherwise than our kernels do, so that rows would not sum to 1.

    It does in TF32; then exact weights are a map with one cell in each bin.
    """
    if torch.compiler.is_compiling() or problem.query.dtype != torch.float32 or not _on_gpu(problem):
        return False  # the setting cannot be traced
    return tf32()


def _on_gpu(problem: AttentionCall) -> bool:
    there = problem.query.device.type == "cuda" and 0 not in problem.shape  # a kernel without programs is an error
    return there and not triton_backend.unsupported_reasons(problem)
