"""Statistics of every row and column, by our kernels on CUDA and tile by tile elsewhere."""

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from clearhead.kernels import streaming, triton_backend
from clearhead.kernels.sweep import Observation, sweep
from clearhead.problem import Problem


def observe(
    problem: Problem,
    lse: Float[Tensor, "batch heads q_len"],
    *,
    entropy: bool = False,
    received: bool = False,
    distance: bool = False,
    top: int = 0,
) -> Observation:
    """Entropy, column sums, mean distance and the `top` largest weights of each row, whichever are asked for."""
    wanted = {"entropy": entropy, "received": received, "distance": distance}
    if problem.query.device.type != "cuda" or triton_backend.refuse(problem):
        return sweep(streaming.scoring(problem), lse, **wanted, top=top)
    found = triton_backend.observe(problem, lse, **wanted) if any(wanted.values()) else Observation()
    return replace(found, top=sweep(streaming.scoring(problem), lse, top=top).top) if top else found
