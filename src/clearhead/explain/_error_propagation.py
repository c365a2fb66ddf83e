"""Error propagation in a text: separates new errors from wrong numbers that follow from an earlier error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead._utils.text import join_words
from clearhead.explain._claims import Claim
from clearhead.explain._printed_matrix import PrintedMatrix
from clearhead.explain._recompute import Recomputation, source_matrices
from clearhead.explain.example import Example

FLOAT64_ROUNDING = 1e-12  # relative to the largest number of a matrix; decides ties in rounding
_MAX_VARIED_CELLS = 2000  # cells of one matrix whose unprinted digits are varied
_MAX_BATCH_ELEMENTS = 2**22  # numbers in a batch of variations
_MAX_ERROR_SETS = 64  # with more sets of errors than this, only some sets are tried

CellIndex = tuple[int, int]


@dataclass(frozen=True, eq=False)
class CheckedMatrix:
    """A claimed matrix, its wrong cells, and the earlier errors that they follow from."""

    claim: Claim
    symbol: str
    claimed: PrintedMatrix
    tolerance: Float[Tensor, "rows columns"]
    wrong: Bool[Tensor, "rows columns"]
    rounded: Bool[Tensor, "rows columns"]  # cells that differ only because the author continued with rounded numbers
    carried: Mapping[CheckedMatrix, Tensor]  # earlier matrix with new errors -> cells here that follow from those
    corrected: Float[Tensor, "rows columns"]  # the matrix as printed by an author who makes no error
    intended: Float[Tensor, "rows columns"]  # the matrix as printed, without its new errors
    exact: bool  # printed without rounding and without error
    mistaken: Float[Tensor, "rows columns"] | None = None  # unrounded, under the mistake that explains the new errors
    parts: tuple[CheckedMatrix, ...] = ()  # of a matrix that several claims describe, such as one for each row

    @cached_property
    def new_errors(self) -> Bool[Tensor, "rows columns"]:
        """Wrong cells that do not follow from an earlier error."""
        cells = self.wrong.clone()
        for carried_cells in self.carried.values():
            cells &= ~carried_cells
        return cells

    @property
    def positions(self) -> list[int]:
        """Positions of the claims with its new errors."""
        return [part.claim.position for part in self.parts or (self,) if part.new_errors.any()]

    def sources(self, index: CellIndex | None = None) -> str:
        """Return the matrices that a carried cell, or any cell, follows from: "Q", "Q, K and (S₁ + M)"."""
        roots = [root for root, cells in self.carried.items() if index is None or cells[index]]
        symbols = list(dict.fromkeys(root.symbol for root in roots))
        if len(symbols) > 1:  # a formula in parentheses is not read as a part of the list
            symbols = [f"({symbol})" if " " in symbol else symbol for symbol in symbols]
        return join_words(symbols)

    def corrected_for(
        self, root: CheckedMatrix, matrix: Float[Tensor, "rows columns"]
    ) -> Float[Tensor, "rows columns"]:
        """Return a version of this matrix with the new errors of `root`, and the cells carried from them, corrected."""
        if root is self and matrix is self.mistaken:
            return self.corrected
        cells = self.new_errors if root is self else self.carried.get(root)
        return matrix if cells is None else torch.where(cells, self.corrected, matrix)

    def misprinted(self, intended: Float[Tensor, "rows columns"]) -> CheckedMatrix:
        """Return this matrix as the misprint of another one, with which the author continues."""
        return replace(self, intended=torch.where(self.claimed.blank, intended, _rounded(intended, self.claimed)))

    def without_errors(self, matrix: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
        """Return a version of this matrix with all wrong cells corrected."""
        return self.corrected if matrix is self.mistaken else torch.where(self.wrong, self.corrected, matrix)

    def merged(self, other: CheckedMatrix) -> CheckedMatrix:
        """Return one matrix for two claims about parts of the same matrix, such as two of its rows.

        Without merging, an author who prints a matrix row by row has as many earlier matrices as rows. The search tries
        pairs of earlier matrices, so its time would grow with the square of the rows.
        """
        blank = self.claimed.blank
        none = torch.zeros_like(blank)
        carried = {
            root: torch.where(blank, other.carried.get(root, none), self.carried.get(root, none))
            for root in dict.fromkeys((*self.carried, *other.carried))
        }
        return replace(
            self,
            claimed=self.claimed.merged(other.claimed),
            tolerance=torch.where(blank, other.tolerance, self.tolerance),
            wrong=torch.where(blank, other.wrong, self.wrong),
            rounded=torch.where(blank, other.rounded, self.rounded),
            carried=carried,
            corrected=torch.where(blank, other.corrected, self.corrected),
            intended=torch.where(blank, other.intended, self.intended),
            mistaken=None,
            parts=(*(self.parts or (self,)), other),
            exact=self.exact and other.exact,
        )


def is_source(earlier: Claim, later: Claim) -> bool:
    """Return whether the matrix of a claim is computed from that of another claim, directly or not."""
    heads, later_heads = earlier.query_heads, later.query_heads
    same_head = heads is None or later_heads is None or bool(heads & later_heads)
    return same_head and earlier.step in source_matrices(later.step)


AssumedValues = dict[CheckedMatrix, Tensor]  # values with which the author may have continued


def check_matrix(
    example: Example,
    claim: Claim,
    symbol: str,
    claimed: PrintedMatrix,
    tolerance: Float[Tensor, "rows columns"],
    earlier: Sequence[CheckedMatrix],
) -> CheckedMatrix:
    """Compare a claimed matrix with the computed one, and search for the cause of each difference.

    A number that follows from correct numbers, rounded as printed, is not wrong. A number that follows from a wrong
    number is carried. Every other difference is a new error.
    """
    sources = [entry for entry in earlier if is_source(entry.claim, claim)]
    search = _CauseSearch(example, claim, claimed, tolerance, sources)
    search.run()
    wrong, values = search.wrong, claimed.values
    corrected = intended = values
    if wrong.any():
        corrected = torch.where(wrong, _rounded(search.without_errors, claimed), values)
        intended = torch.where(search.unexplained, _rounded(search.closest, claimed), values)
    exact = not wrong.any() and bool((claimed.blank | (values == search.computed)).all())
    rounded = search.differs & ~wrong
    return CheckedMatrix(claim, symbol, claimed, tolerance, wrong, rounded, search.carried, corrected, intended, exact)


class _CauseSearch:
    """Search for earlier values that explain the wrong cells of a claimed matrix."""

    def __init__(
        self,
        example: Example,
        claim: Claim,
        claimed: PrintedMatrix,
        tolerance: Float[Tensor, "rows columns"],
        earlier: Sequence[CheckedMatrix],
    ) -> None:
        self.example, self.claim, self.claimed, self.tolerance = example, claim, claimed, tolerance
        self.earlier = earlier
        self.roots = [matrix for matrix in earlier if matrix.new_errors.any()]
        self.computed = self._recompute({})
        self.differs = ~claimed.blank & ~self._matches(self.computed)
        self.wrong = self.differs.clone()
        self.unexplained = self.differs.clone()
        self.carried: dict[CheckedMatrix, Tensor] = {}
        self.closest = self.without_errors = self.computed

    def run(self) -> None:
        """Try assumptions about the earlier values until every wrong cell is explained."""
        if not self.wrong.any():
            return
        self.without_errors = self._recompute({matrix: matrix.corrected for matrix in self.earlier})
        most_matches = int(self._matches(self.computed).sum())
        for assumed in self._assume_no_errors():
            result = self._recompute(assumed)
            self.wrong &= ~self._matches(result)
            self.unexplained = self.wrong.clone()
            most_matches = self._keep_closest(result, most_matches)
            if not self.wrong.any():
                return
        for assumed in self._assume_errors():
            result = self._recompute(assumed)
            self._attribute(assumed, result, self._matches(result))
            most_matches = self._keep_closest(result, most_matches)
            if not self.unexplained.any():
                return
        for roots in _subsets(self.roots):
            assumed = {root: root.claimed.values for root in roots}
            result = self._recompute(assumed)
            bound = self._rounding_bound(assumed, result)
            if bound is not None:
                self._attribute(assumed, result, self._matches(result, bound))
            if not self.unexplained.any():
                return

    def _assume_no_errors(self) -> Iterator[AssumedValues]:
        """Yield assumptions without errors: all earlier matrices, or one or two, correct and rounded as printed."""
        yield {matrix: matrix.corrected for matrix in self.earlier}
        rounded = [matrix for matrix in self.earlier if not matrix.exact]
        for size in (1, 2):
            for chosen in combinations(rounded, size):
                yield {matrix: matrix.corrected for matrix in chosen}

    def _assume_errors(self) -> Iterator[AssumedValues]:
        """Yield assumptions with errors: the author used some wrong numbers, and only misprinted the others."""
        for roots in _subsets(self.roots):
            yield {matrix: matrix.claimed.values if matrix in roots else matrix.intended for matrix in self.earlier}
            yield {root: root.claimed.values for root in roots}
        for root in self.roots:
            for other in self.earlier:
                if other is not root and not other.exact:
                    yield {root: root.claimed.values, other: other.claimed.values}
        mistaken = {root: root.mistaken for root in self.roots if root.mistaken is not None}
        for roots in _subsets([*mistaken]):
            yield {root: mistaken[root] for root in roots}

    def _keep_closest(self, result: Tensor, most_matches: int) -> int:
        """Keep the result that agrees with the most cells, an estimate of the author's numbers without new errors."""
        matches = int(self._matches(result).sum())
        if matches > most_matches:
            self.closest = result
        return max(matches, most_matches)

    def _attribute(self, assumed: AssumedValues, result: Tensor, matches: Tensor) -> None:
        """Attribute unexplained cells to the errors in the assumed values that they match and depend on."""
        matches = matches & self.unexplained
        if not matches.any():
            return
        without_errors = {matrix: matrix.without_errors(values) for matrix, values in assumed.items()}
        matches &= _differ(result, self._recompute(without_errors))
        if not matches.any():
            return
        dependent: dict[CheckedMatrix, Tensor] = {}
        for root in self.roots:
            without_root = {matrix: matrix.corrected_for(root, values) for matrix, values in assumed.items()}
            dependent[root] = matches & _differ(result, self._recompute(without_root))
        jointly_dependent = matches.clone()  # cells that change only if several errors are corrected together
        for cells in dependent.values():
            jointly_dependent &= ~cells
        for root, cells in dependent.items():
            cells = cells | jointly_dependent
            if cells.any():
                self.carried[root] = self.carried.get(root, torch.zeros_like(cells)) | cells
        self.unexplained &= ~matches

    def _rounding_bound(self, assumed: AssumedValues, result: Tensor) -> Tensor | None:
        """Return a bound on how much the unprinted digits of the assumed matrices can change each cell.

        Returns None if there are too many cells to vary.
        """
        total = torch.zeros_like(result)
        scores = self.example.additive_mask().numel()
        for matrix, values in assumed.items():
            rows, columns = torch.nonzero(~matrix.claimed.blank, as_tuple=True)
            if len(rows) > _MAX_VARIED_CELLS:
                return None
            largest = max(values.numel(), result.numel(), scores)
            for batch in torch.arange(len(rows)).split(max(1, _MAX_BATCH_ELEMENTS // largest)):
                varied = values.repeat(len(batch), 1, 1)
                cell = (rows[batch], columns[batch])
                varied[(torch.arange(len(batch)), *cell)] += matrix.tolerance[cell]
                total += _distance(self._recompute(assumed | {matrix: varied}), result).sum(dim=0)
        return total

    def _recompute(self, assumed: AssumedValues) -> Tensor:
        """Recompute the claimed matrix from the assumed values."""
        given = self.example.given_values
        for matrix, values in assumed.items():
            key = (matrix.claim.step, matrix.claim.head)
            given[key] = torch.where(values.isnan(), given[key], values) if key in given else values
        return Recomputation(self.example, given).matrix(self.claim.step, self.claim.head or 0)

    def _matches(self, result: Tensor, slack: Tensor | float = 0.0) -> Tensor:
        return agree(self.claimed.values, result, self.tolerance + slack)


def _subsets(roots: Sequence[CheckedMatrix]) -> Iterator[tuple[CheckedMatrix, ...]]:
    """Yield every set of errors, small sets first. If there are many, yield only the sets of one, two and all."""
    sizes = range(1, len(roots) + 1) if 2 ** len(roots) <= _MAX_ERROR_SETS else (1, 2, len(roots))
    for size in sizes:
        yield from combinations(roots, size)


def _rounded(values: Float[Tensor, "rows columns"], like: PrintedMatrix) -> Float[Tensor, "rows columns"]:
    """Round to the most frequent number of digits in a printed matrix."""
    inexact = like.tolerance[like.tolerance > 0]
    if not len(inexact):
        return values
    unit = 2 * inexact.mode().values
    return (values / unit).round() * unit


def agree(claimed: Tensor, computed: Tensor, tolerance: Tensor) -> Tensor:
    """Return the cells where a claimed number equals the computed one within its tolerance."""
    return _distance(claimed, computed) <= tolerance + FLOAT64_ROUNDING * _largest(computed)


def _differ(left: Tensor, right: Tensor) -> Tensor:
    return _distance(left, right) > FLOAT64_ROUNDING * _largest(left)


def _largest(matrix: Tensor) -> Tensor:
    return torch.where(matrix.isfinite(), matrix.abs(), 0.0).amax()


def _distance(left: Tensor, right: Tensor) -> Tensor:
    """Return |left − right|, which is 0 for equal infinities."""
    return torch.where(left == right, 0.0, (left - right).abs())


def cell_indices(cells: Bool[Tensor, "rows columns"]) -> list[CellIndex]:
    """Return the indices of the cells that are True."""
    return [(row, column) for row, column in torch.nonzero(cells).tolist()]
