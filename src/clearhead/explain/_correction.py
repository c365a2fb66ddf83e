"""Correction of a text: the TOML file of an example with computed numbers in place of the wrong ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from decimal import Context, Decimal
from typing import Any

from torch import Tensor

from clearhead._utils.extras import needs_extra
from clearhead._utils.text import count_noun, visible_text
from clearhead.explain._claims import SHARED_MATRICES, Claim, head_count
from clearhead.explain._error_propagation import CellIndex, cell_indices, is_source
from clearhead.explain._printed_matrix import BLANK, PrintedMatrix
from clearhead.explain._recompute import Recomputation, source_matrices
from clearhead.explain._toml_text import toml_matrix
from clearhead.explain.audit import Audit, CheckResult, MatrixComparison
from clearhead.explain.checking import check, computed_count
from clearhead.explain.example import Example
from clearhead.explain.steps import STEP_NAMES
from clearhead.explain.toml_format import parse

with needs_extra("explain", "the TOML format"):
    import tomlkit
    from tomlkit.items import InlineTable, Item

_EXACT = Context(prec=800)  # enough for every float64 with all its digits
_MAX_DIGITS = 17  # after the decimal point; a float64 with more is written in full
_DEFAULT_EXPONENT = -3  # for a matrix that prints no finite number


def corrected_toml(example: Example, audit: Audit) -> str:
    """Return the file of an example with its wrong numbers corrected, and comments on every change.

    Given matrices are corrected first, because later matrices are computed from them.
    """
    if audit.agrees:
        return example.source
    correction = _Correction(example)
    if correction.correct_given(audit):
        example = parse(correction.document.as_string(), example.title)
        audit = check(example)
    correction.correct_claims(example, audit)
    header = ["Corrected by clearhead check.", *correction.notes]
    return "".join(f"# {line}\n" for line in header) + correction.document.as_string()


class _Correction:
    """TOML document of an example, in which numbers are replaced; its comments and layout are kept."""

    def __init__(self, example: Example) -> None:
        self.document: Any = tomlkit.parse(example.source)
        self._notes: list[tuple[int, str]] = []  # position of a claim, 0 for a given matrix, and a note on it

    @property
    def notes(self) -> list[str]:
        """One line for each change, and for each claim that cannot be corrected, in the order of the file."""
        return [note for _, note in sorted(self._notes, key=lambda entry: entry[0])]

    def correct_given(self, audit: Audit) -> bool:
        """Replace wrong cells of given matrices by the product X·W, if W is stated. Return whether one was replaced."""
        changed = False
        for result in audit.findings:
            if result.kind != "given" or result.verdict == "agrees":
                continue
            if result.comparison is None:
                self._note(result, "given", result.step, f"not corrected: {result.message}")
                continue
            raw = self.document["given"][result.step]
            # the matrix of a single head may be given without a list; a head that is not given is "_"
            nested = any(isinstance(entry, list) and isinstance(entry[0], list) for entry in raw)
            rows = raw[result.head or 0] if nested else raw
            cells = [(cell.row, cell.column) for cell in result.cells]
            for (row, column), item in _corrected_cells(result.comparison, cells, None):
                rows[row][column] = item
            self._note(result, "given", result.step, f"{count_noun(len(cells), 'cell')} corrected")
            changed = True
        return changed

    def correct_claims(self, example: Example, audit: Audit) -> None:
        """Replace wrong values, shapes, counts and sums in the claims."""
        matrices = Recomputation(example, example.given_values)
        claims = {claim.position: claim for claim in example.claims}
        changed: list[Claim] = []
        for result in sorted(audit.findings, key=lambda result: len(source_matrices(result.step))):
            if result.claim is None:
                continue
            claim = claims[result.claim]
            follows = any(is_source(earlier, claim) for earlier in changed)
            note = self._correct_claim(claim, result, follows, list(_matrices_of(claim, matrices)))
            if note:
                self._note(result, "claims", claim.position - 1, note, key=_key(claim))
                changed.append(claim)

    def _correct_claim(self, claim: Claim, result: CheckResult, follows: bool, matrices: list[Tensor]) -> str:
        """Correct one claim. Return a note on it, or an empty string if it did not change."""
        table = self.document["claims"][claim.position - 1]
        comparison = result.comparison
        if comparison is not None:
            wrong = [(cell.row, cell.column) for cell in result.cells]
            # cells that follow from rounded numbers, which the correction of an earlier claim may have changed
            rounded = cell_indices(comparison.rounded) if follows else []
            if comparison.transposed:
                _replace(table, "values", toml_matrix(comparison.claimed.printed))
            for cell, item in _corrected_cells(comparison, [*wrong, *rounded], claim.tolerance):
                _place(table, claim, cell, item)
            changes = ["transposed"] if comparison.transposed else []
            changes += [f"{count_noun(len(wrong), 'cell')} corrected"] if wrong else []
            changes += [f"{count_noun(len(rounded), 'cell')} rounded again"] if rounded else []
            return ", ".join(changes)
        if result.verdict == "agrees":
            return ""
        if matrices and claim.values is not None:
            _replace(table, "values", toml_matrix(_printed_like(matrices[0], claim.values, claim.tolerance)))
            return "matrix of another shape replaced"
        if matrices and claim.shape is not None:
            _replace(table, "shape", str(list(matrices[0].shape)))
            return f"corrected from {list(claim.shape)}"
        if matrices and claim.count is not None:
            _replace(table, "count", str(computed_count(claim, matrices)[0]))
            return f"corrected from {claim.count}"
        if claim.total is not None and result.cells and math.isfinite(result.cells[0].computed):
            [[printed]], [cell] = claim.total.printed, result.cells
            _replace(table, "sum", _number_text(cell.computed, _usual_exponent(claim.total), claim.tolerance))
            return f"corrected from {printed}"
        other = "rows" if claim.sum == "columns" else "columns"
        if matrices and claim.sum is not None and _sum_to_1(other, matrices, claim.tolerance):
            _replace(table, "sum", f'"{other}"')
            return f'corrected from "{claim.sum}"'
        return f"not corrected: {result.message}"

    def _note(self, result: CheckResult, section: str, entry: str | int, note: str, key: str | None = None) -> None:
        """Add a note to the list, and as a comment where the document allows one."""
        name = result.step if result.claim is None else f"claim {result.claim} ({result.step})"
        head = "" if result.head is None else f", head {result.head + 1}"
        note = visible_text(note)
        self._notes.append((result.claim or 0, f"{name}{head}: {note}"))
        table = self.document[section] if key is None else self.document[section][entry]
        if isinstance(table, InlineTable) or key not in (None, *table):
            return  # TOML has no comments inside an inline table
        item = table[entry if key is None else key]
        written = item.trivia.comment.lstrip("# ")
        item.comment(f"{note}; {written}" if written else note)


def _key(claim: Claim) -> str:
    """Return the key of a claim's table that holds what is claimed."""
    is_cell = claim.row is not None and claim.column is not None
    return "value" if is_cell else claim.kind


def _matrices_of(claim: Claim, computed: Recomputation) -> Iterator[Tensor]:
    """Yield the computed matrices that a claim is about; nothing if the calculation has no such step."""
    example = computed.example
    if claim.step in STEP_NAMES and not example.trace().named(claim.step):
        return
    one_matrix = claim.head is not None or claim.step in SHARED_MATRICES
    count = head_count(claim.step, example.heads, example.kv_heads)
    for head in [claim.head or 0] if one_matrix else range(count):
        yield computed.matrix(claim.step, head)


def _sum_to_1(axis: str, matrices: list[Tensor], tolerance: float | None) -> bool:
    allowed = 1e-6 if tolerance is None else tolerance
    return all(bool(((matrix.sum(dim=int(axis == "rows")) - 1).abs() <= allowed).all()) for matrix in matrices)


def _replace(table: Any, key: str, value: str | Item) -> None:
    """Replace the value of a key by TOML text or an item, and keep the comment behind it."""
    item, comment = tomlkit.value(value) if isinstance(value, str) else value, table[key].trivia.comment
    table[key] = item
    if comment:
        item.comment(comment.lstrip("# "))


def _place(table: Any, claim: Claim, cell: CellIndex, item: Item) -> None:
    """Put a number into the table of a claim: a row or a column is a list, and a cell is a number."""
    row, column = cell
    if claim.row is not None and claim.column is not None:
        _replace(table, "value", item)
    elif claim.row is not None:
        table["values"][column] = item
    elif claim.column is not None:
        table["values"][row] = item
    else:
        table["values"][row][column] = item


def _corrected_cells(
    comparison: MatrixComparison, cells: Iterable[CellIndex], tolerance: float | None
) -> Iterator[tuple[CellIndex, Item]]:
    """Yield the computed numbers of some cells, with the digits that the text prints."""
    claimed, usual = comparison.claimed, _usual_exponent(comparison.claimed)
    for row, column in cells:
        exponent = _exponent(claimed, row, column)
        value = float(comparison.computed[row, column])
        text = _number_text(value, usual if exponent is None else exponent, tolerance)
        yield (row, column), tomlkit.value(text)


def _printed_like(matrix: Tensor, claimed: PrintedMatrix, tolerance: float | None) -> list[list[str]]:
    """Print a computed matrix with the digits of a claimed one. It is blank if the claimed one is."""
    if claimed.blank.all():
        return [[BLANK] * matrix.shape[1]] * matrix.shape[0]
    usual = _usual_exponent(claimed)
    return [[_number_text(value, usual, tolerance) for value in row] for row in matrix.tolist()]


def _exponent(claimed: PrintedMatrix, row: int, column: int) -> int | None:
    """Return the power of ten of the last digit that counts, or None for a blank or an infinity."""
    if not claimed.values[row, column].isfinite():
        return None
    half_unit = float(claimed.tolerance[row, column])
    if half_unit > 0:
        return round(math.log10(2 * half_unit))  # the key `digits` may ask for more digits than are printed
    exponent = Decimal(claimed.printed[row][column]).as_tuple().exponent
    return exponent if isinstance(exponent, int) else None


def _usual_exponent(claimed: PrintedMatrix) -> int:
    rows, columns = claimed.shape
    exponents = Counter(_exponent(claimed, row, column) for row in range(rows) for column in range(columns))
    del exponents[None]
    return exponents.most_common(1)[0][0] or 0 if exponents else _DEFAULT_EXPONENT


def _number_text(value: float, exponent: int, tolerance: float | None) -> str:
    """Round a number to a power of ten, or to more digits if the claim's tolerance requires them."""
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    for power in range(exponent, -_MAX_DIGITS - 1, -1):
        rounded = _EXACT.quantize(Decimal(value), Decimal(1).scaleb(power))
        if tolerance is None or abs(float(rounded) - value) <= tolerance:
            return str(abs(rounded) if rounded == 0 else rounded)
    return repr(value)
