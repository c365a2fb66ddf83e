"""Addresses of single cells, such as "weights.2:1,3": step, head, row and column, counted from 1."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from clearhead.explain._printed_matrix import short_repr
from clearhead.explain.steps import KEY_HEAD_STEPS, Step, StepKey, Trace

_ADDRESS = re.compile(r"(?P<step>[a-z_]+)(?:\.(?P<head>\d{1,9}))?:(?P<row>\d{1,9}),(?P<column>\d{1,9})")


def select_cells(trace: Trace, addresses: Sequence[str], heads: Sequence[int] = ()) -> Trace:
    """Select the steps of some cells, whose arithmetic is then shown.

    Args:
        trace: the calculation.
        addresses: cells such as "weights:1,3" or "weights.2:1,3".
        heads: heads of addresses without a head, counted from 0 (default: the only head).
    """
    selected: dict[tuple[int, str], Step] = {}  # the mask has the position of the masked scores
    cells: dict[StepKey, list[tuple[int, int]]] = {}
    for address in addresses:
        match = _ADDRESS.fullmatch(address)
        if match is None:
            raise ValueError(
                f"cell is {short_repr(address)}; expected step:row,column or step.head:row,column, counted from 1,"
                " such as weights:1,2"
            )
        chosen = trace.select([match["step"]], _heads(trace, match["step"], match["head"], heads))
        if len(chosen) > 1:
            names = " or ".join(
                f"{match['step']}.{step.head + 1}" for step in chosen.steps[:2] if step.head is not None
            )
            noun = "key heads" if _is_shared(trace, match["step"]) else "heads"
            raise ValueError(
                f"cell is {short_repr(address)}, but the step occurs once for each of {len(chosen)} {noun}; expected"
                f" {names or 'a head'} in front of the colon"
            )
        [step], [position] = chosen.steps, chosen.positions
        row, column = int(match["row"]), int(match["column"])
        if not (1 <= row <= step.shape[0] and 1 <= column <= step.shape[1]):
            raise ValueError(
                f"cell is {short_repr(address)}, but {step.symbol} is {step.shape}; expected a row from 1 to"
                f" {step.shape[0]} and a column from 1 to {step.shape[1]}"
            )
        selected.setdefault((position, step.name), step)
        cells.setdefault((step.name, step.head), []).append((row - 1, column - 1))
    ordered = sorted(selected)
    return replace(
        trace,
        steps=tuple(selected[key] for key in ordered),
        positions=tuple(position for position, _ in ordered),
        cells={key: tuple(dict.fromkeys(chosen)) for key, chosen in cells.items()},
    )


def _heads(trace: Trace, step: str, written: str | None, heads: Sequence[int]) -> Sequence[int]:
    """Return the query heads to search for a step, counted from 0; none for a step that all heads share.

    The head that an address writes is a key head for keys and values, as in `Trace.step`, TOML and JSON.
    """
    if written is None:
        shared = all(other.head is None for other in trace.steps if other.name == step)
        return () if shared else heads
    head = int(written) - 1
    if not _is_shared(trace, step):
        return [head]
    if not 0 <= head < trace.kv_heads:
        raise ValueError(f"key head {written} does not occur; expected 1 to {trace.kv_heads}, counted from 1")
    return [head * trace.group]


def _is_shared(trace: Trace, step: str) -> bool:
    """Return whether several query heads share each matrix of a step."""
    return trace.group > 1 and step in KEY_HEAD_STEPS
