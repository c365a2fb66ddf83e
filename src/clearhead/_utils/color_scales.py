"""Conversion of attention weights and other matrices to shades for text and heatmaps."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float, UInt8

SHADE_CHARACTERS = " ░▒▓█"


def text_shades(weights: Float[np.ndarray, "rows cols"]) -> list[str]:
    """Return one line per row with two characters per cell. The largest weight of each row is darkest."""
    matrix = np.asarray(weights, dtype=float)
    if matrix.ndim != 2:
        raise ValueError(f"weights has {matrix.ndim} axes; expected 2: rows and columns")
    row_max = matrix.max(axis=1, keepdims=True, initial=0.0)
    level = np.ceil(matrix / np.where(row_max > 0, row_max, 1.0) * (len(SHADE_CHARACTERS) - 1)).astype(int)
    return ["".join(SHADE_CHARACTERS[cell] * 2 for cell in row) for row in level]


def signed_shades(values: Float[np.ndarray, "rows cols"]) -> Float[np.ndarray, "rows cols"]:
    """Return the values divided by the largest finite magnitude, from -1 to 1. Infinite values become NaN."""
    matrix = np.asarray(values, dtype=float)
    sizes = np.abs(matrix[np.isfinite(matrix)])
    largest = sizes.max(initial=0.0)
    return np.where(np.isfinite(matrix), matrix, np.nan) / (largest if largest > 0 else 1.0)


def weight_floor(keys: int) -> float:
    """Return the weight at the bottom of the color scale: a tenth of a uniform distribution over the keys."""
    return 0.1 / max(1, keys)


def log_shades(weights: Float[np.ndarray, "*cells"], keys: int) -> UInt8[np.ndarray, "*cells"]:
    """Return the weights as shades from 0 to 255, on a logarithmic scale from `weight_floor(keys)` to 1."""
    low = math.log(weight_floor(keys))
    with np.errstate(divide="ignore"):
        shades = (np.log(weights) - low) / -low
    return (shades.clip(0, 1) * 255).round().astype(np.uint8)


def visible_shades(weights: Float[np.ndarray, "*cells"], keys: int) -> UInt8[np.ndarray, "*cells"]:
    """Return `log_shades` with at least 1 for every weight above 0, so that 0 means masked."""
    return np.where(weights > 0, np.maximum(log_shades(weights, keys), 1), 0).astype(np.uint8)
