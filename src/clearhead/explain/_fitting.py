"""Is a printed matrix X·W for any W at all? The W that misses its worst cell by least, and how much that is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.explain._grids import Grid

_ROUNDS = 500
_CLOSE = 1e-3  # how near the two bounds must come, relative to the larger


@dataclass(frozen=True)
class Fit:
    """`missed`: no W comes nearer to some printed number than this."""

    missed: float
    possible: bool  # False: every W misses some printed number by more than its tolerance


def best_fit(x: Float[Tensor, "rows input"], printed: Grid) -> Fit:
    """Column by column, by Lawson's reweighting: where a fit misses, its weight grows. Blanks do not count.

    A weighted least-squares error is never more than the worst error of the best fit, so that a miss is never
    exaggerated, whenever the rounds stop.
    """
    missed, possible = 0.0, True
    for column in range(printed.shape[1]):
        kept = ~printed.blank[:, column]
        if not kept.any():
            continue
        rows, target, tolerance = x[kept], printed.values[kept, column], printed.tolerance[kept, column]
        missed = max(missed, _least_miss(rows, target))
        # in units of each number's own tolerance
        possible = possible and _least_miss(rows / tolerance[:, None], target / tolerance) <= 1 + _CLOSE
    return Fit(missed, possible)


def _least_miss(x: Float[Tensor, "rows input"], target: Float[Tensor, " rows"]) -> float:
    """The worst error of the W whose worst error is least."""
    share = torch.full_like(target, 1 / len(target))
    low, high = 0.0, float("inf")
    for _ in range(_ROUNDS):
        root = share.sqrt()[:, None]
        weights = torch.linalg.lstsq(root * x, root * target[:, None], driver="gelsd").solution[:, 0]
        missed = (x @ weights - target).abs()
        low, high = max(low, float((share * missed.square()).sum().sqrt())), min(high, float(missed.max()))
        share = share * missed
        if high - low <= _CLOSE * high or not share.sum() > 0:
            break
        share = share / share.sum()
    return low
