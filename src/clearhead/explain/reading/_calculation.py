"""Parts of a draft: which printed matrices are the input, the weights, given, or claims."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from clearhead.explain._claims import BIASES, KEY_HEAD_MATRICES, LEARNED_MATRICES, SHARED_MATRICES
from clearhead.explain._printed_matrix import BLANK
from clearhead.explain.reading._grids import Grid
from clearhead.explain.reading._inputs import take_inputs
from clearhead.explain.reading._matching import MatchedMatrix, step_name
from clearhead.explain.reading._prose import Statements
from clearhead.explain.reading._symbols import is_row_symbol
from clearhead.explain.steps import STEP_NAMES

Key = tuple[str, int | None]  # a step and its head, counted from 1
_PROJECTIONS = {"query": "query_weight", "key": "key_weight", "value": "value_weight"}
_COMPUTED = STEP_NAMES[STEP_NAMES.index("slice") :]
_VERY_NEGATIVE = -1e4  # a mask may print −1e9 for −∞


class Calculation:
    """Calculation that a text prints: its input, mask and weights, and the role of every other matrix.

    A matrix that follows from printed ones is a claim. A matrix that does not is given: the text prints it without
    what it is computed from.
    """

    def __init__(self, matched: list[MatchedMatrix], heads: int, key_heads: int, statements: Statements) -> None:
        self.statements = statements
        self.heads, self.key_heads = heads, key_heads
        self.notes: list[tuple[int, str]] = []  # a line and a sentence
        self.printed: dict[Key, list[MatchedMatrix]] = defaultdict(list)
        self.vectors = [matrix for matrix in matched if matrix.row is not None]
        for matrix in map(self._without_placeholders, [matrix for matrix in matched if matrix.row is None]):
            self.printed[matrix.step, matrix.head].append(matrix)
        inputs = take_inputs(self.printed, adds_positions=statements.adds_positions)
        self.x, self.positions, self.memory = inputs.x, inputs.positions, inputs.memory
        self.notes += inputs.notes
        self.key_tokens = (self.memory or self.x).grid.shape[0]
        self.tokens = self._tokens()
        self.weights = self._take_weights(LEARNED_MATRICES)
        self.biases = self._take_weights(BIASES)
        self.split = self._split()
        self.mask = self._mask()
        self.given: dict[Key, MatchedMatrix] = {}
        self.claims: list[MatchedMatrix] = []
        self._sort()

    def _without_placeholders(self, matrix: MatchedMatrix) -> MatchedMatrix:
        """Read a computed matrix of zeros as blank: the zeros stand for numbers that the text leaves out."""
        if matrix.step not in _COMPUTED or matrix.grid.is_blank or not matrix.grid.is_placeholder:
            return matrix
        name = step_name(matrix.step, matrix.head)
        self.notes.append((matrix.line, f"every cell of the {name} is 0; read as blanks"))
        return replace(matrix, grid=matrix.grid.without_values())

    def _tokens(self) -> tuple[str, ...] | None:
        """Return the tokens from the row labels of X or another matrix, or from a quoted sentence."""
        count = self.x.grid.shape[0]
        others = [matrix.grid.rows for matrices in self.printed.values() for matrix in matrices]
        for labels in (self.x.grid.rows, *others):
            is_token = [bool(label) and not is_row_symbol(label) for label in labels]
            if len(labels) == count and all(is_token) and not all(label.isdecimal() for label in labels):
                return labels
        sentences = [quote.split() for quote in self.statements.quotes if len(quote.split()) == count]
        return tuple(sentences[0]) if len(sentences) == 1 else None

    def _take_weights(self, steps: tuple[str, ...]) -> dict[str, list[MatchedMatrix | None]]:
        """Return the learned matrices, one for each head, with None for a head whose matrix is not printed."""
        weights: dict[str, list[MatchedMatrix | None]] = {}
        for step in steps:
            matrices: list[MatchedMatrix | None] = []
            for head in self.heads_of(step):
                printed = self.printed[step, head]
                usable = next((matrix for matrix in printed if not matrix.grid.has_blanks), None)
                if usable is not None:
                    printed.remove(usable)
                    usable = self._bias_row(usable) if step in BIASES else usable
                matrices.append(usable)
            if any(matrix is not None for matrix in matrices):
                weights[step] = matrices
        return weights

    def heads_of(self, step: str) -> list[int | None]:
        """Return the heads of a step, counted from 1. K and V may have fewer; None stands for all heads."""
        if step in SHARED_MATRICES:
            return [None]
        return [*range(1, (self.key_heads if step in KEY_HEAD_MATRICES else self.heads) + 1)]

    def _bias_row(self, matrix: MatchedMatrix) -> MatchedMatrix | None:
        """Return a bias as one row, also where the text repeats it for each token."""
        if len(set(matrix.grid.cells)) > 1:
            self._leave_out(matrix, "its rows differ, and a bias has one row")
            return None
        return replace(matrix, grid=replace(matrix.grid, cells=matrix.grid.cells[:1], rows=()))

    def _split(self) -> str:
        width = self.x.grid.shape[1]
        if self.heads == 1 or width % self.heads:
            return "project"
        rows = {
            matrix.grid.shape[0]
            for step in LEARNED_MATRICES[:3]
            for matrix in self.weights.get(step, [])
            if matrix is not None
        }
        printed_slice = any(self.printed["slice", head] for head in range(1, self.heads + 1))
        return "slice" if rows == {width // self.heads} or (not rows and printed_slice) else "project"

    def _mask(self) -> str | list[list[str]] | None:
        """Return "causal", a matrix of TOML cells, or None."""
        causal = self.statements.causal and not self.statements.mask_denied and self.memory is None
        size = self.x.grid.shape[0]
        for matrix, is_mask in self._mask_matrices():
            allowed = _allowed_cells(matrix.grid, is_mask)
            if allowed is None or matrix.grid.shape != (size, self.key_tokens):
                continue
            is_causal = self.memory is None and allowed == [
                [column <= row for column in range(size)] for row in range(size)
            ]
            if is_causal or causal:
                return "causal"
            return [["0" if cell else "-inf" for cell in row] for row in allowed]
        if self.statements.causal and self.statements.mask_denied:
            self.notes.append((0, "the text speaks of a causal mask and of none; assumed no mask"))
        return "causal" if causal else None

    def _mask_matrices(self) -> Iterator[tuple[MatchedMatrix, bool]]:
        for matrix in list(self.printed["mask", None]):
            yield matrix, True
        for head in range(1, self.heads + 1):
            for matrix in self.printed["masked", head]:
                if any(cell == "-inf" for row in matrix.grid.cells for cell in row):
                    yield matrix, False

    def _sort(self) -> None:
        """Sort the remaining matrices into given ones and claims, in the order of calculation."""
        known: set[Key] = set()
        for head in range(1, self.heads + 1):
            self._sort_projections(head, known)
            self._sort_step("scores", head, known, ("query", "key"))
            self._sort_step("scaled", head, known, ("scores",))
            if self.mask is not None:
                self._sort_step("masked", head, known, ("scaled",))
            self._sort_step("weights", head, known, ("scaled",) if self.mask is None else ("masked",))
            self._sort_step("head_output", head, known, ("weights", "value"))
        heads_known = all(("head_output", head) in known for head in range(1, self.heads + 1))
        self._sort_shared("concat", heads_known, known)
        output_known = ("concat", None) in known and "output_weight" in self.weights
        self._sort_output(output_known)
        for matrices in self.printed.values():  # slices, masks, and matrices that are printed twice
            self.claims += [self._mask_claim(matrix) if matrix.step == "mask" else matrix for matrix in matrices]
        self._sort_vectors(known | {("input", None)} | ({("output", None)} if output_known else set()))
        self.claims = self._without_repetitions()

    def _sort_vectors(self, known: set[Key]) -> None:
        """Claim the vectors of one token where the matrix that they are a row of is known."""
        for vector in self.vectors:
            if (vector.step, vector.head) in known:
                self.claims.append(vector)
            else:
                self._leave_out(vector, "the text does not print what it is computed from")

    def _sort_projections(self, head: int, known: set[Key]) -> None:
        for step, weight in _PROJECTIONS.items():
            matrices = self.weights.get(weight)
            shared_by = self.heads // len(self.heads_of(step))
            source = (head - 1) // shared_by + 1
            if (matrices is not None and matrices[source - 1] is not None) or (step, source) in self.given:
                known.add((step, head))
            else:
                self._give(step, source, known)
                if (step, source) in self.given:
                    known.add((step, head))

    def _sort_step(self, step: str, head: int, known: set[Key], sources: tuple[str, ...]) -> None:
        if all((source, head) in known for source in sources):
            known.add((step, head))
        else:
            self._give(step, head, known)

    def _sort_shared(self, step: str, derivable: bool, known: set[Key]) -> None:
        if derivable:
            known.add((step, None))
        else:
            self._give(step, None, known)

    def _give(self, step: str, head: int | None, known: set[Key]) -> None:
        """Take a printed matrix as given if it has a number in every cell."""
        printed = self.printed[step, head]
        for matrix in printed:
            if not matrix.grid.has_blanks:
                printed.remove(matrix)
                self.given[step, head] = self._upright(matrix)
                known.add((step, head))
                return
        for matrix in [matrix for matrix in printed if not matrix.grid.is_blank]:
            printed.remove(matrix)
            self._leave_out(matrix, "it has blanks, and the text does not print what it is computed from")

    def _upright(self, matrix: MatchedMatrix) -> MatchedMatrix:
        """Transpose a given Q, K or V that has a column for each token."""
        tokens = self.x.grid.shape[0] if matrix.step == "query" else self.key_tokens
        rows, columns = matrix.grid.shape
        if matrix.step in _PROJECTIONS and rows != tokens and columns == tokens:
            return replace(matrix, grid=matrix.grid.transpose(), description=f"transpose of {matrix.description}")
        return matrix

    def _sort_output(self, derivable: bool) -> None:
        printed = self.printed["output", None]
        if derivable or not printed:
            return
        for matrix in [matrix for matrix in printed if not matrix.grid.is_blank]:
            printed.remove(matrix)
            if self.heads == 1 and "output_weight" not in self.weights:
                self.claims.append(replace(matrix, step="head_output", head=1))
            else:
                self._leave_out(matrix, "the text does not print what it is computed from")

    def _leave_out(self, matrix: MatchedMatrix, reason: str) -> None:
        self.notes.append((matrix.line, f"the {step_name(matrix.step, matrix.head)} cannot be checked: {reason}"))

    def _mask_claim(self, matrix: MatchedMatrix) -> MatchedMatrix:
        """Write 0 into the blank cells of a mask that prints only −∞."""
        cells = tuple(tuple("0" if cell == BLANK else cell for cell in row) for row in matrix.grid.cells)
        return matrix if matrix.grid.is_blank else replace(matrix, grid=replace(matrix.grid, cells=cells))

    def _without_repetitions(self) -> list[MatchedMatrix]:
        """Return the claims in the order of the text. Numbers that are printed twice are claimed once."""
        taken = [self.x, *self.given.values()]
        learned = [*self.weights.values(), *self.biases.values()]
        taken += [matrix for matrices in learned for matrix in matrices if matrix is not None]
        seen = {(matrix.step, matrix.head, matrix.row, matrix.grid.cells) for matrix in taken}
        claims = []
        for claim in sorted(self.claims, key=lambda matrix: matrix.line):
            key = (claim.step, claim.head, claim.row, claim.grid.cells)
            is_flags = claim.step == "mask" and _is_flags(claim.grid)  # 1 and 0 instead of 0 and −∞, as read above
            if key not in seen and not (is_flags and isinstance(self.mask, list)):
                claims.append(claim)
            seen.add(key)
        return claims


def _is_flags(grid: Grid) -> bool:
    cells = {cell for row in grid.cells for cell in row}
    return "1" in cells and cells <= {"0", "1"}


def _allowed_cells(grid: Grid, is_mask: bool) -> list[list[bool]] | None:
    """Return where a query may attend, or None if the matrix is not a mask."""
    if is_mask and _is_flags(grid):
        return [[cell == "1" for cell in row] for row in grid.cells]
    blocked = [[cell != BLANK and float(cell) <= _VERY_NEGATIVE for cell in row] for row in grid.cells]
    if is_mask:
        zero = all(
            stop or cell == BLANK or float(cell) == 0
            for row, stops in zip(grid.cells, blocked, strict=True)
            for cell, stop in zip(row, stops, strict=True)
        )
        if not zero or not any(any(row) for row in blocked):
            return None
    return [[not stop for stop in row] for row in blocked]
