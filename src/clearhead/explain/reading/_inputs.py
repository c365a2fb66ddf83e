"""Inputs of a calculation: the input X, or embeddings with a positional encoding, and the memory of cross-attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clearhead.explain.reading._matching import MatchedMatrix, step_name


@dataclass
class Inputs:
    """Printed inputs. The positional encoding is added to `x`."""

    x: MatchedMatrix
    positions: MatchedMatrix | None = None
    memory: MatchedMatrix | None = None
    notes: list[tuple[int, str]] = field(default_factory=list)  # a line and a sentence


def take_inputs(printed: Mapping[tuple[str, int | None], list[MatchedMatrix]], *, adds_positions: bool) -> Inputs:
    """Take the inputs out of the printed matrices. A further matrix X remains, as a claim.

    Args:
        printed: matrices by their step and head. Those that are taken are removed.
        adds_positions: the text says that the positional encoding is added.

    Raises:
        LookupError: the text prints no input.
        ValueError: the input has blank cells.
    """
    notes: list[tuple[int, str]] = []
    embeddings = _take(printed["embedding", None], notes)
    positions = _take(printed["positions", None], notes)
    inputs = printed["input", None]
    if not inputs and embeddings is None:
        raise LookupError
    added = positions
    if positions is not None:
        is_first = len(inputs) > 1 or (adds_positions and inputs and inputs[0].line < positions.line)
        base = embeddings or (inputs[0] if is_first else None)
        if base is None or base.grid.shape != positions.grid.shape:
            reason = "the text does not print" if base is None else f"line {base.line} prints another shape than"
            notes.append((positions.line, f"the positional encoding is left out: {reason} what it is added to"))
            added = None
        elif embeddings is None and len(inputs) == 1:
            notes.append(
                (positions.line, f"assumed that the positional encoding is added to the X of line {base.line}")
            )
    x = embeddings if embeddings is not None and (added is not None or not inputs) else inputs.pop(0)
    if embeddings is not None and embeddings is not x and embeddings.grid.cells != x.grid.cells:
        reason = "the text does not print a positional encoding" if positions is None else "X is used instead"
        notes.append((embeddings.line, f"the embeddings are left out: {reason}"))
    if x.grid.has_blanks:
        raise ValueError(f"line {x.line}: the input X has blank cells; expected a number in every cell")
    return Inputs(x, added, _take(printed["memory", None], notes), notes)


def _take(matrices: list[MatchedMatrix], notes: list[tuple[int, str]]) -> MatchedMatrix | None:
    """Return the first matrix without blanks. Others with other numbers are left out with a note."""
    usable = next((matrix for matrix in matrices if not matrix.grid.has_blanks), None)
    for matrix in matrices:
        if usable is None or matrix.grid.cells != usable.grid.cells:
            reason = "it has blanks" if usable is None else f"line {usable.line} prints another"
            notes.append((matrix.line, f"the {step_name(matrix.step, matrix.head)} is left out: {reason}"))
    matrices.clear()
    return usable
