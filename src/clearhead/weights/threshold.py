"""All weights above a threshold."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead._utils.checks import check_float
from clearhead.ops.call import AttentionCall
from clearhead.ops.tiled import backend as tiled
from clearhead.weights.autograd import Lse
from clearhead.weights.gather import weights_of_cells

MAX_CELLS_ABOVE = 2**24  # default limit


class CellsAbove(NamedTuple):
    """Weights above a threshold, in row-major order."""

    indices: Int[Tensor, "4 count"]  # batch, head, query, key
    values: Float[Tensor, " count"]


def cells_above(call: AttentionCall, lse: Lse, threshold: object, limit: int) -> CellsAbove:
    """Return every weight strictly above a threshold; raise, with the count, if there are more than a limit."""
    least = check_float("threshold", threshold)
    if least < 0:
        raise ValueError(f"threshold is {least:g}; expected at least 0, because weights are not negative")
    with torch.no_grad():
        index, count = tiled.cells_above(call, lse, least, limit)
    if count > limit:
        raise ValueError(
            f"{count:,} weights are above {least:g}, more than the limit of {limit:,}; raise threshold or limit"
        )
    return CellsAbove(index, weights_of_cells(call, lse, index))
