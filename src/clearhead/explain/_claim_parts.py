"""Claims about one row, one column or one cell of a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import torch

from clearhead.explain._printed_matrix import BLANK, PrintedMatrix, short_repr

_PART_KEYS = ("row", "column", "cell")


def check_parts(name: str, raw: Mapping[str, object]) -> None:
    """Raise if the keys of a claim do not fit together: a row or a column needs values or a sum, a cell a value."""
    parts = [key for key in _PART_KEYS if key in raw]
    if len(parts) > 1:
        fix = "; use cell = [row, column] for one cell" if "cell" not in parts else ""
        raise ValueError(f"{name} has {' and '.join(parts)}; expected at most one of {', '.join(_PART_KEYS)}{fix}")
    if "value" in raw and "cell" not in raw:
        raise ValueError(f"{name} has value, but no cell; expected cell = [row, column], or values for a whole matrix")
    if "cell" in raw and "value" not in raw:
        raise ValueError(f"{name} has cell, but no value; expected value, the number in that cell")
    if "value" in raw and "values" in raw:
        raise ValueError(f"{name} has value and values; expected one of them")
    if parts in (["row"], ["column"]) and not ("values" in raw or ("sum" in raw and not isinstance(raw["sum"], str))):
        raise ValueError(f"{name} has {parts[0]}; expected values, the list of its numbers, or sum, a number")


def read_indices(name: str, raw: Mapping[str, object], shape: tuple[int, int] | None) -> tuple[int | None, int | None]:
    """Read the row and the column of a claim about a part, counted from 0. In the file they count from 1."""
    if "cell" not in raw:
        row, column = (raw.get(key) for key in ("row", "column"))
        return _read_index(name, "row", row, shape, 0), _read_index(name, "column", column, shape, 1)
    cell = raw["cell"]
    if not isinstance(cell, list) or len(cell) != 2:
        raise ValueError(f"{name}: cell is {short_repr(cell)}; expected two whole numbers, [row, column]")
    row, column = cell
    return _read_index(name, "cell: row", row, shape, 0), _read_index(name, "cell: column", column, shape, 1)


def _read_index(name: str, key: str, raw: object, shape: tuple[int, int] | None, axis: int) -> int | None:
    if raw is None:
        return None
    # a matrix that does not occur has no shape: the claim about it is checked, and differs
    if type(raw) is not int or raw < 1 or (shape is not None and raw > shape[axis]):
        expected = "a whole number, 1 or more" if shape is None else f"a whole number from 1 to {shape[axis]}"
        raise ValueError(f"{name}: {key} is {short_repr(raw)}; expected {expected}")
    return raw - 1


def values_as_rows(name: str, raw: Mapping[str, object]) -> tuple[str, object]:
    """Return a name for errors, and the claimed numbers as a list of rows."""
    if "value" in raw:
        if isinstance(raw["value"], bool) or not isinstance(raw["value"], int | Decimal):
            raise ValueError(f"{name}: value is {short_repr(raw['value'])}; expected a number")
        return f"{name}: value", [[raw["value"]]]
    label, values = f"{name}: values", raw["values"]
    if "row" not in raw and "column" not in raw:
        return label, values
    key = "row" if "row" in raw else "column"
    if not isinstance(values, list) or not values or any(isinstance(cell, list) for cell in values):
        raise ValueError(f"{label} is {short_repr(values)}; expected a list of numbers, because {key} is given")
    return label, [values] if key == "row" else [[cell] for cell in values]


def placed(
    name: str, part: PrintedMatrix, row: int | None, column: int | None, shape: tuple[int, int] | None
) -> PrintedMatrix:
    """Return a matrix of the computed shape that is blank except for the claimed part."""
    if shape is None:
        return part
    rows = slice(None) if row is None else slice(row, row + 1)
    columns = slice(None) if column is None else slice(column, column + 1)
    values, tolerance = torch.full(shape, torch.nan, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    expected = tuple(values[rows, columns].shape)
    if part.shape != expected:
        count, expected_count = part.values.numel(), expected[0] * expected[1]
        line = "row" if column is None else "column"
        raise ValueError(f"{name}: values has {count} numbers; expected {expected_count}, the length of the {line}")
    values[rows, columns], tolerance[rows, columns] = part.values, part.tolerance
    printed = [[BLANK] * shape[1] for _ in range(shape[0])]
    for row_offset, texts in enumerate(part.printed):
        for column_offset, text in enumerate(texts):
            printed[row_offset + (row or 0)][column_offset + (column or 0)] = text
    return PrintedMatrix(values, tolerance, tuple(map(tuple, printed)))
