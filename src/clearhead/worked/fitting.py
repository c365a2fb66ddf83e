"""Is a printed matrix X·W for any W at all? The W that misses its worst cell by least, and how much that is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.worked.grids import Grid

_ROUNDS = 500
_CLOSE = 1e-3  # how near the two bounds must come, relative to the larger


@dataclass(frozen=True)
class Fit:
    """The best W misses some cell by at least `at_least` and none by more than `at_most`; nearly the same number."""

    at_least: float
    at_most: float
    possible: bool  # False: every W misses some printed number by more than its tolerance


def best_fit(x: Float[Tensor, "rows input"], printed: Grid, slack: float = 0.0) -> Fit:
    """Column by column, by Lawson's reweighting: where a fit misses, its weight grows. Blanks do not count.

    A weighted least-squares error is never more than the worst error of the best fit, and any fit's worst error is
    never less, so that both bounds hold whenever the rounds stop.
    """
    at_least = at_most = 0.0
    possible = True
    for column in range(printed.shape[1]):
        kept = ~printed.blank[:, column]
        rows, target = x[kept], printed.values[kept, column]
        if not len(target):
            continue
        low, high = _bounds(rows, target)
        allowed = float(printed.tolerance[kept, column].max()) + slack
        possible = possible and low <= allowed
        at_least, at_most = max(at_least, low), max(at_most, high)
    return Fit(at_least, at_most, possible)


def _bounds(x: Float[Tensor, "rows input"], target: Float[Tensor, " rows"]) -> tuple[float, float]:
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
    return low, high
