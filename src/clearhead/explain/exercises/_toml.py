"""TOML text of values that `tomllib` has read, so that files can be written without the `explain` extra."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal

from torch import Tensor


def toml_text(text: str) -> str:
    """Return a TOML string. JSON escapes are valid in TOML; DEL must be escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_value(value: object, indent: str = "") -> str:
    """Return a value as TOML. A list of lists has one entry per line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return toml_text(value)
    if isinstance(value, Decimal):
        return str(value) if value.is_finite() else str(value).lower().replace("infinity", "inf")
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], list | tuple):
            inner = f"{indent}  "
            return "[\n" + "".join(f"{inner}{toml_value(entry, inner)},\n" for entry in value) + f"{indent}]"
        return f"[{', '.join(toml_value(entry) for entry in value)}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{toml_text(key)} = {toml_value(entry)}' for key, entry in value.items())} }}"
    return str(value)


def tenths(values: Tensor) -> list[object]:
    """Return a matrix, or a list of matrices, as decimal numbers with one digit after the point."""
    if values.ndim == 1:
        return [Decimal(f"{value:.1f}") for value in values.tolist()]
    return [tenths(entry) for entry in values]
