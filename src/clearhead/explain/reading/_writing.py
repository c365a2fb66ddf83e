"""TOML text of a draft, with the line of the source in a comment on each matrix."""

from __future__ import annotations

from collections.abc import Sequence

from clearhead._utils.text import visible_text
from clearhead.explain._claims import SHARED_MATRICES
from clearhead.explain._toml_text import Cells, toml_comment, toml_matrices, toml_matrix, toml_string
from clearhead.explain.reading._calculation import Calculation
from clearhead.explain.reading._contexts import MatrixContext
from clearhead.explain.reading._matching import MatchedMatrix, step_name
from clearhead.explain.steps import STEP_NAMES


def draft_text(
    calculation: Calculation,
    *,
    name: str,
    title: str,
    scaling: Sequence[str],
    left_out: Sequence[tuple[MatrixContext, str]],
) -> str:
    """Return the TOML file of a calculation."""
    x = calculation.x
    lines = [
        toml_comment(f"Draft from {name}. Edit it where a matrix was read wrongly, then run `clearhead check` on it."),
        f"title = {toml_string(visible_text(title))}",
    ]
    if calculation.tokens is not None:
        lines.append(f"tokens = [{', '.join(toml_string(visible_text(token)) for token in calculation.tokens)}]")
    lines += [_source(name, x), f"x = {toml_matrix(x.grid.cells)}", f"heads = {calculation.heads}"]
    if calculation.heads > 1:
        lines.append(f'split = "{calculation.split}"')
    if calculation.mask is not None:
        mask = calculation.mask
        lines.append(f"mask = {toml_string(mask) if isinstance(mask, str) else toml_matrix(mask)}")
    lines += scaling
    if calculation.weights:
        lines += ["", "[weights]"]
        for step, matrices in calculation.weights.items():
            lines += _weight_lines(name, step.removesuffix("_weight"), matrices)
    if calculation.given:
        lines += ["", "[given]", toml_comment("The text prints these without what they are computed from.")]
        lines += _given_lines(name, calculation)
    for claim in calculation.claims:
        lines += ["", "[[claims]]", _source(name, claim), f'step = "{claim.step}"']
        if claim.step not in SHARED_MATRICES:
            lines.append(f"head = {claim.head}")
        lines.append(f"values = {toml_matrix(claim.grid.cells)}")
    for context, reason in left_out:
        lines += ["", *_left_out_lines(name, context, reason)]
    return "\n".join(lines) + "\n"


def _source(name: str, matrix: MatchedMatrix) -> str:
    return toml_comment(f"{name}, line {matrix.line}: {matrix.description or step_name(matrix.step, matrix.head)}")


def _weight_lines(name: str, key: str, matrices: Sequence[MatchedMatrix | None]) -> list[str]:
    printed = [matrix for matrix in matrices if matrix is not None]
    rows, columns = printed[0].grid.shape
    zeros = [["0"] * columns] * rows
    lines = [_source(name, matrix) for matrix in printed]
    missing = [str(head) for head, matrix in enumerate(matrices, 1) if matrix is None]
    if missing:
        lines.append(
            toml_comment(f"not printed for head {', '.join(missing)}: zeros, and nothing is claimed about them")
        )
    cells: list[Cells | None] = [zeros if matrix is None else matrix.grid.cells for matrix in matrices]
    return [*lines, f"{key} = {toml_matrices(cells)}"]


def _given_lines(name: str, calculation: Calculation) -> list[str]:
    lines: list[str] = []
    for step in STEP_NAMES:
        heads = [None] if step in SHARED_MATRICES else range(1, calculation.heads + 1)
        matrices = [calculation.given.get((step, head)) for head in heads]
        printed = [matrix for matrix in matrices if matrix is not None]
        if printed:
            cells: list[Cells | None] = [None if matrix is None else matrix.grid.cells for matrix in matrices]
            lines += [*(_source(name, matrix) for matrix in printed), f"{step} = {toml_matrices(cells)}"]
    return lines


def _left_out_lines(name: str, context: MatrixContext, reason: str) -> list[str]:
    """Return a claim in comments, for the author to complete."""
    claim = f'[[claims]]\nstep = ""\nvalues = {toml_matrix(context.grid.cells)}'
    where = f"{name}, line {context.grid.line}: {context.description}"
    return [toml_comment(f"Left out, {reason}:"), toml_comment(where), *(f"# {line}" for line in claim.split("\n"))]
