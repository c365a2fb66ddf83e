"""Search for the usual mistakes that reproduce the new errors of a claimed matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from clearhead._utils.text import join_words
from clearhead.explain._claims import SHARED_MATRICES
from clearhead.explain._error_propagation import agree
from clearhead.explain._recompute import Recomputation
from clearhead.explain.causes._explanation import Explanation
from clearhead.explain.causes._heads import joining_mistakes, output_mistakes
from clearhead.explain.causes._masks import mask_mistakes
from clearhead.explain.causes._mistake import Mistake, MistakenCalculation
from clearhead.explain.causes._printing import printing_mistakes
from clearhead.explain.causes._projection_parts import bias_mistakes, memory_mistakes, rotary_mistakes
from clearhead.explain.causes._projections import head_output_mistakes, projection_mistakes, slice_mistakes
from clearhead.explain.causes._scores import scale_mistakes, score_mistakes
from clearhead.explain.causes._slips import cell_slips, matrix_slips, row_sum_slips
from clearhead.explain.causes._softmax import softmax_mistakes
from clearhead.explain.causes._wrong_matrix import WrongMatrix

_MIN_SHARE = 0.75  # of the written cells, and of the cells that a mistake changes, that a cause with exceptions fits
_MIN_CELLS = 2  # wrong cells that a cause reproduces if it has exceptions or cells are blank; one can be a coincidence
_GROUPS = (
    slice_mistakes,
    projection_mistakes,
    bias_mistakes,
    rotary_mistakes,
    memory_mistakes,
    score_mistakes,
    scale_mistakes,
    mask_mistakes,
    softmax_mistakes,
    head_output_mistakes,
    joining_mistakes,
    output_mistakes,
    printing_mistakes,
)


def explain_errors(wrong: WrongMatrix) -> list[Explanation]:
    """Return every usual mistake that reproduces the new errors of a matrix to their printed digits.

    Mistakes that reproduce all written cells come first and exclude those with exceptions.
    """
    explanations = _distinct(_formula_explanations(wrong))
    if not wrong.shape_is_wrong:
        explanations += matrix_slips(wrong)
    explanations = _best(explanations)
    slips = [] if wrong.shape_is_wrong else _main_slips(wrong)
    if explanations and explanations[0].is_complete:
        return explanations + [slip for slip in slips if slip.is_complete]
    explanations += slips
    explained = torch.zeros_like(wrong.new_errors)
    for explanation in explanations:
        explained |= explanation.cells
    return [*explanations, *row_sum_slips(wrong, explained)]


def _main_slips(wrong: WrongMatrix) -> list[Explanation]:
    """Return the slips in single cells, if they explain at least half of the new errors."""
    slips = list(cell_slips(wrong))
    explained = sum(int(slip.cells.sum()) for slip in slips)
    return slips if 2 * explained >= int(wrong.new_errors.sum()) else []


def _best(explanations: Sequence[Explanation]) -> list[Explanation]:
    """Return the explanations with the fewest exceptions. One for the whole matrix excludes those for some rows."""
    best = min(map(_rank, explanations), default=None)
    return [explanation for explanation in explanations if _rank(explanation) == best]


def _rank(explanation: Explanation) -> tuple[int, bool]:
    return int(explanation.exceptions.sum()), explanation.in_some_rows


def _distinct(explanations: Iterator[Explanation]) -> list[Explanation]:
    """Return the best explanation of each name."""
    by_name: dict[str, Explanation] = {}
    for explanation in explanations:
        earlier = by_name.get(explanation.name)
        if earlier is None or _rank(explanation) < _rank(earlier):
            by_name[explanation.name] = explanation
    return list(by_name.values())


def _formula_explanations(wrong: WrongMatrix) -> Iterator[Explanation]:
    for group in _GROUPS:
        for mistake in group(wrong):
            changed = mistake.replacements.keys()
            if wrong.step in changed or (not mistake.local and changed & wrong.reachable):
                explanation = _fit(wrong, mistake)
                if explanation is not None:
                    yield explanation


def _fit(wrong: WrongMatrix, mistake: Mistake) -> Explanation | None:
    """Return the best fit over all starts: the mistake in every head or, for a matrix of all heads, in one head."""
    every = frozenset(wrong.heads)
    best = _fit_heads(wrong, mistake, every)
    of_one_head = wrong.head is None and len(every) > 1 and not mistake.replacements.keys() <= {*SHARED_MATRICES}
    if best is not None or not of_one_head:
        return best
    for head in wrong.heads:
        fit = _fit_heads(wrong, mistake, frozenset([head]))
        if fit is not None:
            return replace(fit, done=f"In head {head + 1}: {fit.done}")
    return None


def _fit_heads(wrong: WrongMatrix, mistake: Mistake, heads: frozenset[int]) -> Explanation | None:
    fits = []
    for start in wrong.starts:
        try:
            result = MistakenCalculation(start, mistake, heads).matrix(wrong.step, wrong.head or 0)
        except RuntimeError:  # the shapes do not fit, so this mistake is impossible here
            return None
        if tuple(result.shape) == wrong.claimed.shape:
            fit = _compare(wrong, mistake, start, result)
            if fit is not None and _rank(fit) == (0, False):
                return fit
            fits += [fit] if fit is not None else []
    return min(fits, key=_rank, default=None)


def _compare(wrong: WrongMatrix, mistake: Mistake, start: Recomputation, result: Tensor) -> Explanation | None:
    """Compare the matrix under a mistake with the claimed one."""
    written = wrong.written
    matches = wrong.matches(result)
    cells, misses = matches & wrong.new_errors, written & ~matches
    if not cells.any():
        return None
    expected = None if wrong.shape_is_wrong else start.matrix(wrong.step, wrong.head or 0)
    explanation = Explanation(
        mistake.name,
        mistake.done,
        mistake.remedy,
        cells,
        misses,
        expected,
        continued=expected if mistake.local else result,
        is_misprint=mistake.local,
    )
    few = int(cells.sum()) < _MIN_CELLS
    if explanation.is_complete:
        return None if few and wrong.claimed.blank.any() else explanation
    if mistake.complete or few:
        return None
    rows = wrong.new_errors.any(dim=1, keepdim=True)
    if not mistake.local and not wrong.shape_is_wrong and not (misses & rows).any():
        only = _row_list(wrong, rows.flatten().nonzero().flatten().tolist())
        return replace(
            explanation,
            done=f"{mistake.done}, {only}",
            exceptions=torch.zeros_like(misses),
            continued=None,
            in_some_rows=True,
        )
    changed = written if expected is None else written & ~agree(result, expected, wrong.tolerance)
    enough = (
        int(matches.sum()) >= _MIN_SHARE * int(written.sum())
        and int(cells.sum()) >= _MIN_SHARE * int(changed.sum())
        and 2 * int(cells.sum()) >= int(wrong.new_errors.sum())
    )
    return explanation if enough else None


def _row_list(wrong: WrongMatrix, rows: list[int]) -> str:
    labels = [wrong.label(0, row) for row in rows]
    return f"only in {'row' if len(rows) == 1 else 'rows'} {join_words(labels)}"
