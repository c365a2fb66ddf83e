"""Checking of worked examples: `check()` recomputes an example and compares each claim with the result."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from math import inf

import torch
from torch import Tensor

from clearhead._utils.checks import check_path
from clearhead._utils.text import count_noun
from clearhead.explain._claims import LEARNED_MATRICES, SHARED_MATRICES, Claim, head_count
from clearhead.explain._error_propagation import CheckedMatrix, agree, cell_indices, check_matrix
from clearhead.explain._fitting import best_fit
from clearhead.explain._printed_matrix import PrintedMatrix, decimals
from clearhead.explain._recompute import Recomputation, calculation_order
from clearhead.explain.audit import Audit, CellDifference, CheckResult, MatrixComparison, Verdict
from clearhead.explain.causes.finder import CauseFinder, matrix_axes
from clearhead.explain.example import Example
from clearhead.explain.steps import ABSENT_STEPS, SCORE_STEPS, STEP_NAMES, Step
from clearhead.explain.toml_format import load


def check(example: Example | str | os.PathLike[str]) -> Audit:
    """Recompute a worked example and compare each of its claims with the result.

    A number agrees if it equals the computed one to its printed digits. A number that differs but follows from an
    earlier matrix of the text is carried: the error is in the earlier matrix.

    Args:
        example: an `Example`, the path of a TOML, Markdown or LaTeX file, or the name of a built-in example.

    Examples:
        >>> [finding.message for finding in check("song").findings if finding.step == "query"]
        ['18 of 24 cells differ']
    """
    example = example if isinstance(example, Example) else load(check_path("example", example))
    return _Auditor(example).audit()


class _Auditor:
    """Auditor of one example: compares its claims with the computed matrices."""

    def __init__(self, example: Example) -> None:
        self.example = example
        self.trace = example.trace()
        self.computed = Recomputation(example, example.given_values)
        self.checked_matrices: list[CheckedMatrix] = []
        self.finder = CauseFinder(example, self.trace)

    def audit(self) -> Audit:
        results = {claim.position: self._check(claim) for claim in sorted(self.example.claims, key=_order)}
        findings = (*self._check_given(), *(results[position] for position in sorted(results)))
        return Audit(self.example.title, findings, self.example)

    def _check(self, claim: Claim) -> CheckResult:
        if claim.step in STEP_NAMES and not self.trace.named(claim.step):
            return _claim_result(claim, "differs", f"this calculation has no such step: {ABSENT_STEPS[claim.step]}")
        one_matrix = claim.head is not None or claim.step in SHARED_MATRICES
        count = head_count(claim.step, self.example.heads, self.example.kv_heads)
        heads = [claim.head or 0] if one_matrix else range(count)
        matrices = [self.computed.matrix(claim.step, head) for head in heads]
        if claim.values is not None:
            return self._check_values(claim, claim.values, matrices[0])
        if claim.shape is not None:
            return self._check_shape(claim, claim.shape, matrices[0])
        if claim.total is not None:
            return self._check_total(claim, claim.total, matrices[0])
        if claim.sum is not None:
            return self._check_sum(claim, claim.sum, matrices)
        return self._check_count(claim, matrices)

    def _check_values(self, claim: Claim, claimed: PrintedMatrix, computed: Tensor) -> CheckResult:
        shape, prefix, causes, symbol = tuple(computed.shape), "", (), self._symbol(claim)
        if claimed.shape != shape:
            mismatch = f"claimed {claimed.shape}, computed {shape}"
            key = (claim.step, claim.head)
            causes = self.finder.of_values(key, symbol, claimed, ~claimed.blank, self.checked_matrices)
            transposed = claimed.transpose()
            is_transposed = any(cause.name == "transposed" for cause in causes) or _mostly_agrees(transposed, computed)
            if transposed.shape != shape or not is_transposed:
                return replace(_claim_result(claim, "differs", mismatch), causes=causes)
            claimed, prefix = transposed, f"{mismatch}; read as its transpose, "
        tolerance = claimed.tolerance if claim.tolerance is None else torch.full_like(claimed.values, claim.tolerance)
        checked = check_matrix(self.example, claim, symbol, claimed, tolerance, self.checked_matrices)
        if not causes:
            causes, checked = self.finder.of_matrix(checked, self.checked_matrices)
        self._keep(checked)
        cells = self._cells(claim.step, claimed, computed, checked.wrong, checked)
        result = _values_result(claim, cells, checked)
        notes = _mask_notes(claimed, cells) if claim.step == "mask" else ""
        return replace(
            result,
            message=f"{prefix}{result.message}{notes}",
            verdict="differs" if prefix else result.verdict,
            causes=causes,
            follows_from=tuple(sorted(position for root in checked.carried for position in root.positions)),
            comparison=MatrixComparison(
                checked.symbol,
                *self._labels(claim.step, computed),
                claimed,
                tolerance,
                computed,
                checked.rounded,
                transposed=bool(prefix),
            ),
        )

    def _keep(self, checked: CheckedMatrix) -> None:
        """Keep a matrix for the claims about later ones. Parts of the same matrix are merged."""
        claim = checked.claim
        for index, earlier in enumerate(self.checked_matrices):
            if claim.part and earlier.claim.part and earlier.claim.about == claim.about:
                self.checked_matrices[index] = earlier.merged(checked)
                return
        self.checked_matrices.append(checked)

    def _cells(
        self,
        subject: str,
        claimed: PrintedMatrix,
        computed: Tensor,
        wrong: Tensor,
        checked: CheckedMatrix | None = None,
    ) -> tuple[CellDifference, ...]:
        rows, columns = self._labels(subject, computed)
        return tuple(
            CellDifference(
                row,
                column,
                rows[row],
                columns[column],
                claimed.printed[row][column],
                float(claimed.values[row, column]),
                float(computed[row, column]),
                checked.sources((row, column)) or None if checked else None,
            )
            for row, column in cell_indices(wrong)
        )

    def _labels(self, subject: str, matrix: Tensor) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the labels of rows and of columns."""
        axes = matrix_axes(self.trace, subject)
        rows, columns = (self.trace.labels(axis, size) for axis, size in zip(axes, matrix.shape, strict=True))
        return rows, columns

    def _symbol(self, claim: Claim) -> str:
        """Return the name of a claimed matrix in formulas."""
        if claim.step in STEP_NAMES:
            return self.trace.step(claim.step, claim.head).symbol
        letter = "b" if claim.step.endswith("_bias") else "W"
        return "M" if claim.step == "mask" else f"{letter}_{claim.step[0].upper()}"

    def _check_shape(self, claim: Claim, shape: tuple[int, int], computed: Tensor) -> CheckResult:
        computed_shape = tuple(computed.shape)
        if computed_shape == shape:
            return _claim_result(claim, "agrees", f"{shape}")
        return _claim_result(
            claim, "differs", f"claimed {shape}, computed {computed_shape}{self._other_split(claim, shape)}"
        )

    def _other_split(self, claim: Claim, shape: tuple[int, int]) -> str:
        """Return a note if the claimed shape is that of the layer with the other split."""
        heads, width = self.example.heads, self.example.x.shape[1]
        differs = self.example.memory is not None or self.example.kv_heads != heads
        if claim.step not in LEARNED_MATRICES[:3] or heads == 1 or width % heads or differs:
            return ""
        here = sum(self.example.weights[name].numel() for name in ("query", "key", "value"))
        if self.example.split == "slice":
            other, rows, there = "project", width, here * heads
        else:
            other, rows, there = "slice", width // heads, here // heads
        if shape != (rows, self.example.weights[claim.step.removesuffix("_weight")].shape[-1]):
            return ""
        return f'; this shape belongs to split = "{other}", a layer with {there} projection weights instead of {here}'

    def _check_sum(self, claim: Claim, which: str, matrices: list[Tensor]) -> CheckResult:
        tolerance = 1e-6 if claim.tolerance is None else claim.tolerance
        rows, columns = self._labels(claim.step, matrices[0])
        cells, sums = [], []
        for head, matrix in enumerate(matrices, 1):
            name = "sum" if len(matrices) == 1 else f"sum, head {head}"
            totals = matrix.sum(dim=1 if which == "rows" else 0)
            sums.append(", ".join(f"{value:.2f}" for value in totals.tolist()))
            for index in torch.nonzero((totals - 1).abs() > tolerance).flatten().tolist():
                cell = (index, 0, rows[index], name) if which == "rows" else (0, index, name, columns[index])
                cells.append(CellDifference(*cell, "1", 1.0, float(totals[index])))
        if not cells:
            return _claim_result(claim, "agrees", f"{which} sum to 1")
        rows_do = all((matrix.sum(dim=1) - 1).abs().max() <= tolerance for matrix in matrices)
        note = "; rows do" if which == "columns" and rows_do else ""
        return _claim_result(claim, "differs", f"{which} sum to {' | '.join(sums)}, not to 1{note}", tuple(cells))

    def _check_total(self, claim: Claim, total: PrintedMatrix, matrix: Tensor) -> CheckResult:
        """Compare the sum of a row, of a column or of the whole matrix with the printed number."""
        if claim.row is not None:
            matrix = matrix[claim.row]
        elif claim.column is not None:
            matrix = matrix[:, claim.column]
        what = f"{claim.part} sums to" if claim.part else "all cells sum to"
        computed, tolerance = matrix.sum().reshape(1, 1), total.tolerance
        tolerance = tolerance if claim.tolerance is None else torch.full_like(tolerance, claim.tolerance)
        [[printed]], value = total.printed, float(computed)
        if agree(total.values, computed, tolerance).all():
            return _claim_result(claim, "agrees", f"{what} {printed}")
        rows, columns = self._labels(claim.step, self.computed.matrix(claim.step, claim.head or 0))
        row, column = claim.row or 0, claim.column or 0
        labels = "sum" if claim.row is None else rows[row], "sum" if claim.column is None else columns[column]
        cell = CellDifference(row, column, *labels, printed, float(total.values), value)
        return _claim_result(claim, "differs", f"{what} {value:.{decimals(printed) + 1}f}, not to {printed}", (cell,))

    def _check_count(self, claim: Claim, matrices: list[Tensor]) -> CheckResult:
        count, what = computed_count(claim, matrices)
        if count == claim.count:
            return _claim_result(claim, "agrees", f"{count}: {what}")
        return _claim_result(claim, "differs", f"claimed {claim.count}, computed {count}: {what}")

    def _check_given(self) -> Iterator[CheckResult]:
        """Check that each given Q, K or V is X·W for the stated W, or for some W if none is stated."""
        projected = self.example.trace_without_given()
        for (name, head), claimed in self.example.given.items():
            if name not in ("query", "key", "value") or head is None:
                continue
            step = projected.step(name, head)
            rotated = self.example.rope is not None and name != "value"
            if name in self.example.stated:
                yield self._check_product(step, claimed)
            elif not rotated and name not in self.example.biases:  # the fit is of X·W alone
                yield _check_any_product(step, claimed)

    def _check_product(self, step: Step, claimed: PrintedMatrix) -> CheckResult:
        product = step.formula.split(" = ")[1]
        wrong = ~claimed.blank & ~agree(claimed.values, step.values, claimed.tolerance)
        cells = self._cells(step.name, claimed, step.values, wrong)
        result = _given_result(step, "agrees", f"is {product}")
        if cells:
            message = f"is not {product}: {len(cells)} of {int((~claimed.blank).sum())} cells differ"
            causes = self.finder.of_values((step.name, step.head), step.symbol, claimed, wrong)
            result = replace(_given_result(step, "differs", message), cells=cells, causes=causes)
        labels = self._labels(step.name, step.values)
        rounded = torch.zeros_like(wrong)
        comparison = MatrixComparison(step.symbol, *labels, claimed, claimed.tolerance, step.values, rounded)
        return replace(result, comparison=comparison)


def computed_count(claim: Claim, matrices: list[Tensor]) -> tuple[int, str]:
    """Return the number of rows or, for scores and weights of all heads, of matrices; and a description of it."""
    if claim.step in SCORE_STEPS and claim.head is None:
        return len(matrices), "one matrix for each head, with a row for each token"
    what = "one row for each input column" if claim.step in LEARNED_MATRICES else "one row for each token"
    return matrices[0].shape[0], what


def _given_result(step: Step, verdict: Verdict, message: str) -> CheckResult:
    return CheckResult(None, step.name, step.head, "given", verdict, f"given {step.symbol} {message}")


def _check_any_product(step: Step, claimed: PrintedMatrix) -> CheckResult:
    factor = step.operands[0]
    fit = best_fit(factor.values, claimed)
    if fit.within_tolerance:
        return _given_result(step, "agrees", f"is {factor.symbol}·W for some W")
    message = f"is not {factor.symbol}·W for any W: the best fit has an error of {fit.max_error:.2g} in some cell"
    return _given_result(step, "differs", message)


def _claim_result(claim: Claim, verdict: Verdict, message: str, cells: tuple[CellDifference, ...] = ()) -> CheckResult:
    return CheckResult(claim.position, claim.step, claim.head, claim.kind, verdict, message, cells)


def _values_result(claim: Claim, cells: tuple[CellDifference, ...], checked: CheckedMatrix) -> CheckResult:
    claimed, rounded = checked.claimed, int(checked.rounded.sum())
    blank = int(claimed.blank.sum())
    written = claimed.values.numel() - blank
    carried = sum(cell.carried_from is not None for cell in cells)
    if not cells:
        agreement = f"{count_noun(written, 'cell')} {'agrees' if written == 1 else 'agree'}"
        verdict, parts = "agrees", [agreement if written else f"{claimed.shape}"]
    elif carried == len(cells):
        verdict = "carried"
        parts = [f"{_differing(carried, written)}, carried from {checked.sources()} as printed"]
    else:
        verdict, parts = "differs", [_differing(len(cells), written)]
        parts += [f"{carried} of them carried"] if carried else []
    if rounded:
        parts.append(f"{rounded} {'follows' if rounded == 1 else 'follow'} from rounded numbers printed earlier")
    parts += [f"{blank} blank" if written else "all blank"] if blank and not claim.part else []
    part = f"{claim.part}: " if claim.part else ""
    return _claim_result(claim, verdict, part + ", ".join(parts), cells)


def _differing(cells: int, written: int) -> str:
    return "the number differs" if written == 1 else f"{cells} of {written} cells differ"


def _mostly_agrees(claimed: PrintedMatrix, computed: Tensor) -> bool:
    """Return whether the shapes are equal and at least half of the written cells agree."""
    if claimed.shape != tuple(computed.shape):
        return False
    agreeing = ~claimed.blank & agree(claimed.values, computed, claimed.tolerance)
    return 2 * int(agreeing.sum()) >= int((~claimed.blank).sum())


def _mask_notes(claimed: PrintedMatrix, cells: tuple[CellDifference, ...]) -> str:
    """Return a note on a wrong mask: the number of wrong cells, or that the mask is not additive."""
    written = claimed.values[~claimed.blank]
    if ((written == 0) | (written == -inf)).all():
        closed = sum(cell.claimed == -inf for cell in cells)
        return f": {len(cells) - closed} wrongly allowed and {closed} wrongly masked" if cells else ""
    if ((written == 0) | (written == 1)).all():
        return "; it contains 1 and 0, but an additive mask contains 0 and −∞"
    return ""


def _order(claim: Claim) -> tuple[int, int]:
    """Return a sort key that puts each matrix after those that it is computed from."""
    return calculation_order(claim.step, claim.head)
