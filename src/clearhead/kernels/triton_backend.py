"""Backend `triton`: our own kernels on CUDA, for every mask, bias and option of `attention()`.

Triton itself is imported when a kernel first runs: without CUDA there may be none.
"""

import importlib.util
import os

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.kernels.operation import Gradients, Inputs, Results, operation
from clearhead.kernels.sweep import Observation
from clearhead.problem import Problem

WIDEST = 256
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
INSTALLED = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # on the CPU, as in tests


def refuse(problem: Problem) -> list[str]:
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
    problem: Problem, with_lse: bool
) -> tuple[Float[Tensor, "batch heads q_len value_dim"], Float[Tensor, "batch heads q_len"]]:
    """Output and log-sum-exp."""
    assert problem.value is not None
    return _operation(*Inputs.of(problem, problem.value))


def observe(
    problem: Problem, lse: Float[Tensor, "batch heads q_len"], *, entropy: bool, received: bool, distance: bool
) -> Observation:
    """Statistics of rows and columns, whichever are asked for."""
    from clearhead.kernels import triton_observe

    inputs = Inputs.of(problem, problem.key[..., :0])
    found = triton_observe.observe(inputs, lse, entropy=entropy, received=received, distance=distance)
    return Observation(*found)


def _forward(inputs: Inputs) -> tuple[Tensor, Tensor]:
    from clearhead.kernels.triton_forward import forward

    return forward(inputs)


def _backward(inputs: Inputs, results: Results, need_bias: bool) -> Gradients:
    from clearhead.kernels.triton_backward import backward

    return backward(inputs, results, need_bias)


_operation = operation("triton_forward", _forward, _backward)
