"""Backend `triton`: fused kernels for CUDA that support every mask, bias and option of `attention()`.

Triton itself is imported when a kernel first runs: without CUDA it may not be installed.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.torch_internals import in_functorch_transform
from clearhead.ops._custom_op import Results, custom_op
from clearhead.ops.call import AttentionCall
from clearhead.ops.gpu import gpu_of, on_device_of_query
from clearhead.ops.gradients import CellGradient, Gradients
from clearhead.ops.hopper import forward as hopper_forward
from clearhead.ops.hopper.driver import DriverError
from clearhead.ops.hopper.support import remember_failure
from clearhead.ops.statistics import AttentionStatistics, PoolSpec, StatisticsRequest
from clearhead.ops.tiled import attention as tiled_attention
from clearhead.ops.tiled import backend as tiled

if TYPE_CHECKING:
    from clearhead.ops.triton.cell_gradients import CellTerms

MAX_HEAD_DIM = 256
MIN_CAPABILITY = (8, 0)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MIN_SCALE = 1e-37  # smaller scales underflow in float32 and count as 0
INSTALLED = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's interpreter on the CPU, as in tests


def unsupported_reasons(call: AttentionCall, task: str = "output") -> list[str]:
    if not INSTALLED:
        return ["triton is not installed"]
    reasons = []
    device = call.query.device.type
    if device != "cuda" and not (device == "cpu" and INTERPRETED):
        reasons.append(f"device {device} is not cuda")
    elif device == "cuda" and gpu_of(call.query.device).capability < MIN_CAPABILITY:
        major, minor = gpu_of(call.query.device).capability
        reasons.append(f"compute capability {major}.{minor} is below 8.0; Triton would not use its tensor cores")
    if call.query.dtype not in DTYPES:
        reasons.append(f"dtype {call.query.dtype} is not float32, bfloat16 or float16")
    for name, tensor in (("key_dim", call.query), ("value_dim", call.value)):
        if tensor is not None and not 1 <= tensor.shape[3] <= MAX_HEAD_DIM:
            reasons.append(f"{name} {tensor.shape[3]} is not between 1 and {MAX_HEAD_DIM}")
    if not torch.compiler.is_compiling() and in_functorch_transform() and call.requires_grad():
        reasons.append("gradients by torch.func are not supported")
    if task == "statistics" and 0 in call.shape:
        reasons.append("the matrix is empty, and a kernel requires at least one program")
    return reasons


def attend(
    call: AttentionCall, with_lse: bool
) -> tuple[Float[Tensor, "batch heads q_len value_dim"], Float[Tensor, "batch heads q_len"]]:
    """Return output and log-sum-exp."""
    return _attend(call)


@on_device_of_query
def statistics(
    call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], request: StatisticsRequest
) -> AttentionStatistics:
    """Return the statistics requested."""
    from clearhead.ops.triton import pooling, products, topk
    from clearhead.ops.triton.statistics import can_fuse_pooling, compute_statistics

    positive, _ = _with_positive_scale(call)
    spec = request.pool
    # the fused kernel adds to its bins atomically, in any order, so the last digits differ from run to run
    fused = request.received and not torch.are_deterministic_algorithms_enabled()
    fused = fused and spec is not None and can_fuse_pooling(call, spec)
    results = compute_statistics(positive, lse, replace(request, pool=spec if fused else None))
    if spec is not None and not fused:
        _, _, q_len, kv_len = call.shape
        cells = pooling.pool(positive, lse, slice(0, q_len), slice(0, kv_len), spec)
        results |= AttentionStatistics(pooled=cells)
    if request.spans is not None:
        members = request.spans.members(call.shape[0], call.shape[3], lse)
        results |= AttentionStatistics(mass=products.mass(positive, lse, members))
    if not request.top:
        return results
    largest = topk.top_weights(positive, lse, request.top) if request.top <= topk.MAX_TOP_KEYS else None
    if largest is not None:
        return results | AttentionStatistics(top=largest)
    return results | tiled.statistics(call, lse, StatisticsRequest(top=request.top))


@on_device_of_query
def transposed_product(
    call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], rows: Float[Tensor, "batch heads q_len width"]
) -> Float[Tensor, "batch heads kv_len width"]:
    """Return Aᵀ · rows for each head, without gradients."""
    from clearhead.ops.triton import products

    if 0 in (*call.shape, rows.shape[3], call.query.shape[3]):
        return tiled.transposed_product(call, lse, rows)
    return products.transposed_product(_with_positive_scale(call)[0], lse, rows.to(call.query.dtype))


@on_device_of_query
def score_gradients(
    call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], gradient: CellGradient, need_bias: bool
) -> Gradients:
    """Return the gradients of everything that the scores depend on, from the gradient of the weights."""
    from clearhead.ops.triton.cell_gradients import CellTerms

    width = 0 if gradient.right is None else gradient.right.shape[3]
    if 0 in (*call.shape, call.query.shape[3]) or width > MAX_HEAD_DIM:
        return tiled.score_gradients(call, lse, gradient, need_bias)
    dtype, (batch, heads, q_len, kv_len) = call.query.dtype, call.shape
    zero = call.query.new_zeros((1, 1, 1, 1))
    left, right = gradient.left, gradient.right
    if left is None or right is None:
        left = zero.expand(batch, heads, q_len, 1)
        right = zero.expand(batch, call.key.shape[1], kv_len, 1)
    factors = (gradient.log, gradient.distance)
    terms = CellTerms(*(None if factor is None else factor.float().contiguous() for factor in factors))
    results = Results(zero.expand(left.shape), lse, left.to(dtype), -gradient.delta)  # delta enters with that of lse
    return _gradients(replace(call, value=right.to(dtype)), results, need_bias, terms)


@on_device_of_query
def pool(
    call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], rows: slice, keys: slice, spec: PoolSpec
) -> Float[Tensor, "batch heads rows cols"]:
    """Return the weights of some rows and keys, pooled into bins."""
    from clearhead.ops.triton import pooling

    return pooling.pool(_with_positive_scale(call)[0], lse, rows, keys, spec)


@on_device_of_query
def mean_entropy(
    call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], groups: int
) -> Float[Tensor, "batch groups q_len"]:
    """Return the entropy of each row of the mean over groups of consecutive heads."""
    from clearhead.ops.triton.divergence import Teacher, entropy

    return entropy(Teacher(_with_positive_scale(call)[0], lse, groups))


@on_device_of_query
def divergence(
    call: AttentionCall,
    lse: Float[Tensor, "batch heads q_len"],
    groups: int,
    student: AttentionCall,
    student_lse: Float[Tensor, "batch student_heads q_len"],
    with_gradient: bool,
) -> tuple[Tensor, Tensor, None]:
    """Return KL(mean over groups of heads ‖ student) of each row, and its gradient with respect to the query.

    The results have the larger number of heads of both. Without `with_gradient`, the second has size 0. The third would
    be the gradient of the key, which `divergence_key_gradient` computes. The student has the mask of the call, and
    neither softcap, bias nor sinks.
    """
    from clearhead.ops.triton.divergence import Student, Teacher
    from clearhead.ops.triton.divergence import divergence as compute

    positive, sign = _with_positive_scale(student)
    teacher = Teacher(_with_positive_scale(call)[0], lse, groups)
    result, grad_query = compute(teacher, Student(positive, student_lse), with_gradient)
    return result, grad_query if sign > 0 else grad_query * sign, None


@on_device_of_query
def divergence_key_gradient(
    call: AttentionCall,
    lse: Float[Tensor, "batch heads q_len"],
    groups: int,
    student: AttentionCall,
    student_lse: Float[Tensor, "batch student_heads q_len"],
    grad: Float[Tensor, "batch result_heads q_len"],
) -> Float[Tensor, "batch result_heads kv_len key_dim"]:
    """Return the gradient of a divergence with respect to the student's keys, for each head of the result."""
    from clearhead.ops.triton.divergence import Student, Teacher, key_gradient

    teacher = Teacher(_with_positive_scale(call)[0], lse, groups)
    return key_gradient(teacher, Student(_with_positive_scale(student)[0], student_lse), grad)


@functools.cache
def _kernels() -> tuple[ModuleType, ...]:
    """Import the modules of the kernels. An import statement in a function takes microseconds at every call."""
    from clearhead.ops.triton import backward, bias_grad, decode, forward

    return forward, decode, backward, bias_grad


def _with_positive_scale(call: AttentionCall) -> tuple[AttentionCall, float]:
    """Move the sign of the scale into the queries, so that scaling commutes with `max`; also return the sign."""
    if call.scale > MIN_SCALE:
        return call, 1.0
    if call.scale < -MIN_SCALE:
        return replace(call, query=-call.query, scale=-call.scale), -1.0
    return replace(call, query=call.query * 0.0, scale=1.0), 0.0


@on_device_of_query
def _forward(call: AttentionCall) -> tuple[Tensor, Tensor]:
    forward, decode, *_ = _kernels()
    call, _ = _with_positive_scale(call)
    if call.query.shape[2] <= decode.MAX_DECODING_QUERIES and 0 not in call.shape and call.query.shape[3] > 0:
        return decode.decode(call)
    if not hopper_forward.unsupported_reasons(call):
        try:
            return hopper_forward.forward(call)
        except DriverError as error:
            remember_failure(error)
    return forward.forward(call)


@on_device_of_query
def _backward(call: AttentionCall, results: Results, need_bias: bool) -> Gradients:
    if 0 in call.shape:
        return tiled_attention.backward(call, results, need_bias)
    return _gradients(call, results, need_bias)


def _gradients(call: AttentionCall, results: Results, need_bias: bool, *terms: CellTerms) -> Gradients:
    *_, backward, bias_grad = _kernels()
    positive, sign = _with_positive_scale(call)
    backward_inputs, gradients = backward.backward(positive, results, *terms)
    if need_bias:
        gradients = gradients._replace(tensor_bias=bias_grad.grad_of_bias(backward_inputs))
    return gradients if sign > 0 else gradients._replace(query=gradients.query * sign)


_attend = custom_op("triton_forward", _forward, _backward)
