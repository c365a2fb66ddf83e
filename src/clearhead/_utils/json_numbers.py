"""Numbers for JSON files: rounded, and None for NaN and infinities, which JSON does not have."""

from __future__ import annotations

import math
from typing import Any

SIGNIFICANT_DIGITS = 6


def json_numbers(values: Any) -> Any:
    """Round a number, or the numbers of nested lists, to six significant digits. NaN and infinities become None."""
    if isinstance(values, list):
        return [json_numbers(value) for value in values]
    return float(f"{values:.{SIGNIFICANT_DIGITS}g}") if math.isfinite(values) else None
