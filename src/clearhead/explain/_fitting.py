"""Fit of X·W to a printed matrix: the smallest possible maximum error over all W."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.explain._printed_matrix import PrintedMatrix

_MAX_ITERATIONS = 500
_RELATIVE_GAP = 1e-3  # between the lower and the upper bound, relative to the upper


@dataclass(frozen=True)
class Fit:
    """Error of the best W for a printed matrix."""

    max_error: float  # every W has at least this error in some cell
    within_tolerance: bool  # False: every W has an error above the tolerance of the printed number in some cell


def best_fit(x: Float[Tensor, "rows input"], claimed: PrintedMatrix) -> Fit:
    """Fit each column by Lawson's algorithm, which increases the weights of rows with large errors.

    Blank cells are ignored. A weighted least-squares error never exceeds the maximum error of the best fit. The
    returned error is therefore never too large, even if the iteration stops early.
    """
    max_error, within_tolerance = 0.0, True
    for column in range(claimed.shape[1]):
        written = ~claimed.blank[:, column]
        if not written.any():
            continue
        rows, target, tolerance = x[written], claimed.values[written, column], claimed.tolerance[written, column]
        max_error = max(max_error, _minimax_error(rows, target))
        if within_tolerance:  # in units of each number's tolerance
            within_tolerance = _minimax_error(rows / tolerance[:, None], target / tolerance) <= 1 + _RELATIVE_GAP
    return Fit(max_error, within_tolerance)


def _minimax_error(x: Float[Tensor, "rows input"], target: Float[Tensor, " rows"]) -> float:
    """Return a lower bound on the maximum error of `x @ w` over all `w`, close to the best one."""
    row_weights = torch.full_like(target, 1 / len(target))
    low, high = 0.0, float("inf")
    for _ in range(_MAX_ITERATIONS):
        root = row_weights.sqrt()[:, None]
        solution = torch.linalg.lstsq(root * x, root * target[:, None], driver="gelsd").solution[:, 0]
        errors = (x @ solution - target).abs()
        low, high = max(low, float((row_weights * errors.square()).sum().sqrt())), min(high, float(errors.max()))
        row_weights = row_weights * errors
        if high - low <= _RELATIVE_GAP * high or not row_weights.sum() > 0:
            break
        row_weights = row_weights / row_weights.sum()
    return low
