"""Backend `triton`: our own kernels on CUDA, for every mask, bias and option of `attention()`.

Triton itself is imported when a kernel first runs: without CUDA there may be none.
"""

import importlib.util
import os

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ops._custom_op import Gradients, Inputs, Results, operation
from clearhead.ops.call import AttentionCall
from clearhead.ops.tiled import attention as streaming
from clearhead.ops.tiled.pooling import PoolSpec
from clearhead.ops.tiled.statistics import AttentionStatistics, compute_statistics

WIDEST = 256
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TINY = 1e-37  # a scale that float32 does not hold is none
INSTALLED = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # on the CPU, as in tests


def unsupported_reasons(problem: AttentionCall) -> list[str]:
    if not INSTALLED:
        return ["triton is not installed"]
    reasons = []
    device = problem.query.device.type
    if device != "cuda" and not (device == "cpu" and INTERPRETED):
        reasons.append(f"device {device} is not cuda")
    if problem.query.dtype not in DTYPES:
        reasons.append(f"dtype {problem.query.dtype} is not float32, bfloat16 or float16")
    for name, tensor in (("key_dim", problem.query), ("value_dim", problem.value)):
        if tensor is not None and not 1 <= tensor.shape[3] <= WIDEST:
            reasons.append(f"{name} {tensor.shape[3]} is not from 1 to {WIDEST}")
    return reasons


def attend(
    problem: AttentionCall, with_lse: bool
) -> tuple[Float[Tensor, "batch heads q_len value_dim"], Float[Tensor, "batch heads q_len"]]:
    """Output and log-sum-exp."""
    assert problem.value is not None
    return _operation(*Inputs.of(problem, problem.value))


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
    """Statistics, the `top` largest weights of each row and a map, whichever are asked for."""
    from clearhead.ops.triton import pooling, statistics, topk

    inputs = _inputs(problem)
    # a map of any size may be had alone; where the sweep adds to its bins in any order, the last digits differ
    alone = not received or torch.are_deterministic_algorithms_enabled()
    fused = None if picture is None or alone or not statistics.map_fits(inputs, picture) else picture
    entropies, columns, distances, cells = statistics.observe(
        inputs, lse, entropy=entropy, received=received, distance=distance, picture=fused
    )
    if picture is not None and cells is None:
        _, _, q_len, kv_len = problem.shape
        cells = pooling.pool(inputs, lse, slice(0, q_len), slice(0, kv_len), picture)
    largest = topk.top_weights(inputs, lse, top) if 0 < top <= topk.MOST else None
    if top and largest is None:
        largest = compute_statistics(streaming.scoring(problem), lse, top=top).top
    return AttentionStatistics(entropies, columns, distances, largest, cells)


def pool(
    problem: AttentionCall, lse: Float[Tensor, "batch heads q_len"], rows: slice, keys: slice, picture: PoolSpec
) -> Float[Tensor, "batch heads rows cols"]:
    """A rectangle of the weights, in bins."""
    from clearhead.ops.triton import pooling

    return pooling.pool(_inputs(problem), lse, rows, keys, picture)


def _inputs(problem: AttentionCall) -> Inputs:
    return _rising(Inputs.of(problem, problem.key[..., :0]))[0]


def _rising(inputs: Inputs) -> tuple[Inputs, float]:
    """The same scores with a scale above 0, which a maximum can wait for: the sign goes to the queries."""
    if inputs.scale > TINY:
        return inputs, 1.0
    if inputs.scale < -TINY:
        return inputs._replace(query=-inputs.query, scale=-inputs.scale), -1.0
    return inputs._replace(query=inputs.query * 0.0, scale=1.0), 0.0


def _forward(inputs: Inputs) -> tuple[Tensor, Tensor]:
    from clearhead.ops.triton import decode, forward

    inputs, _ = _rising(inputs)
    few = 0 < inputs.query.shape[2] <= decode.MOST_QUERIES and 0 not in (
        *inputs.query.shape,
        inputs.key.shape[2],
    )
    return decode.decode(inputs) if few else forward.forward(inputs)


def _backward(inputs: Inputs, results: Results, need_bias: bool) -> Gradients:
    from clearhead.ops.triton.backward import backward
    from clearhead.ops.triton.bias_grad import grad_of_bias

    if 0 in (*inputs.query.shape[:3], inputs.key.shape[2]):
        return streaming.backward(inputs, results, need_bias)
    rising, sign = _rising(inputs)
    call, gradients = backward(rising, results)
    if need_bias:
        gradients = gradients._replace(bias=grad_of_bias(call))
    return gradients if sign > 0 else gradients._replace(query=gradients.query * sign)


_operation = operation("triton_forward", _forward, _backward)
