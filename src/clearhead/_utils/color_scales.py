"""A matrix as shades and colours: for worked examples and first looks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, UInt8

SHADE_CHARACTERS = " ░▒▓█"


def text_shades(weights: Float[np.ndarray, "rows cols"]) -> list[str]:
    """One line per row, two characters per cell, darker for more; a row's largest weight is darkest."""
    matrix = np.asarray(weights, dtype=float)
    if matrix.ndim != 2:
        raise ValueError(f"weights has {matrix.ndim} axes; expected 2: rows and columns")
    row_max = matrix.max(axis=1, keepdims=True, initial=0.0)
    level = np.ceil(matrix / np.where(row_max > 0, row_max, 1.0) * (len(SHADE_CHARACTERS) - 1)).astype(int)
    return ["".join(SHADE_CHARACTERS[cell] * 2 for cell in row) for row in level]


def signed_shades(values: Float[np.ndarray, "rows cols"]) -> Float[np.ndarray, "rows cols"]:
    """How warm each cell is: from -1 to 1, where 1 is the largest size in the matrix; NaN where it is infinite."""
    matrix = np.asarray(values, dtype=float)
    sizes = np.abs(matrix[np.isfinite(matrix)])
    largest = sizes.max(initial=0.0)
    return np.where(np.isfinite(matrix), matrix, np.nan) / (largest if largest > 0 else 1.0)


def labeled_shades(weights: Float[np.ndarray, "rows cols"], rows: Sequence[str]) -> str:
    """`text_shades` with a token before each row."""
    width = max((len(token) for token in rows), default=0)
    return "\n".join(f"{token:>{width}} {line}" for token, line in zip(rows, text_shades(weights), strict=True))


def weight_floor(keys: int) -> float:
    """The weight that is shown as nothing: a tenth of what each key would have if all were alike."""
    return 0.1 / max(1, keys)


def log_shades(weights: Float[np.ndarray, "*cells"], keys: int) -> UInt8[np.ndarray, "*cells"]:
    """Weights as shades from 0 to 255, on a logarithmic scale over `keys` keys."""
    low = math.log(weight_floor(keys))
    with np.errstate(divide="ignore"):
        shades = (np.log(weights) - low) / -low
    return (shades.clip(0, 1) * 255).round().astype(np.uint8)
