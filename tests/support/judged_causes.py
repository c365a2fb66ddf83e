"""An independent check of the causes that `check` names: apply each in NumPy, and compare with the printed cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from clearhead.explain import Audit, Cause
from support.simulated_authors import STATED, Layer, Matrices, StepKey, distance
from support.usual_mistakes import formula_mistakes, mistaken

EXACT_STEPS = (*STATED, "mask", "slice")


@dataclass(frozen=True)
class Named:
    """A cause named for a printed matrix, and the values from which the author may have started."""

    cause: Cause
    layer: Layer
    where: StepKey
    printed: np.ndarray
    digits: int
    starts: list[Matrices]

    @property
    def tolerance(self) -> float:
        return 0.0 if self.where[0] == "mask" else 0.5 * 10.0**-self.digits

    def correct(self) -> Iterator[np.ndarray]:
        """Yield the matrix without a mistake, for each start."""
        return (self.layer.right(start)[self.where] for start in self.starts)

    def is_true(self) -> bool:
        """Return whether some way to make the mistake reproduces the cells that it explains."""
        candidates = _SLIPS.get(self.cause.name, _formulas)(self)
        return any(self._reproduces(candidate) for candidate in candidates)

    def _reproduces(self, result: np.ndarray) -> bool:
        if result.shape != self.printed.shape or not self.cause.cells:
            return False
        with np.errstate(invalid="ignore"):
            matches = distance(self.printed, result) <= self.tolerance + 1e-9
        covered = matches | np.isnan(self.printed)
        covered[tuple(zip(*self.cause.exceptions, strict=True))] |= bool(self.cause.exceptions)
        rows = sorted({row for row, _ in self.cause.cells})
        if self.cause.name in ("sign", "digits exchanged", "row does not sum to 1"):
            return all(matches[cell] for cell in self.cause.cells)
        return all(matches[cell] for cell in self.cause.cells) and bool(
            covered[rows].all() if "only in row" in self.cause.sentence else covered.all()
        )


def judged_causes(
    audit: Audit,
    layer: Layer,
    shown: Matrices,
    digits: Mapping[StepKey, int],
    working: Sequence[Matrices],
    given: Collection[StepKey] = (),
) -> Counter[str]:
    """Return counts of the causes named, and of false ones: those that do not reproduce the cells they explain."""
    counts: Counter[str] = Counter()
    for result in audit.findings:
        where = (result.step, result.head)
        for cause in result.causes:
            counts["slips named" if cause.name in _SLIPS else "formulas named"] += 1
            starts = _starts(layer, shown, where, working, given)
            true = Named(cause, layer, where, shown[where], digits[where], starts).is_true()
            counts["false causes"] += not true
    return counts


def _starts(
    layer: Layer, shown: Matrices, where: StepKey, working: Sequence[Matrices], given: Collection[StepKey]
) -> list[Matrices]:
    """Return the values from which the author may have started: exact, as printed, corrected, or unrounded."""
    right, order = layer.right(), layer.order()
    before = order[: order.index(where)]
    earlier = {key: shown[key] for key in before if key in shown and shown[key].shape == right[key].shape}
    fixed = {key: shown[key] for key in given if key != where}
    far = {key: distance(earlier[key], right[key]) > 0.02 for key in earlier}
    wrong = {key for key, cells in far.items() if cells.any()}
    variants = [
        {},
        earlier,
        {key: matrix for key, matrix in earlier.items() if key[0] != where[0]},
        {key: np.where(far[key], right[key], earlier[key]) for key in earlier},
        {key: earlier[key] for key in wrong},
    ]
    for numbers in working:
        used = {key: numbers[key] for key in earlier if key in numbers and numbers[key].shape == right[key].shape}
        variants += [used, {key: used[key] for key in wrong & used.keys()}]
        variants += [{**earlier, **variants[-1]}, {**variants[4], **variants[-1]}]
        variants += [{key: used[key]} for key in wrong & used.keys()]
    return [{**fixed, **variant} for variant in variants]


def _formulas(named: Named) -> Iterator[np.ndarray]:
    layer, heads = named.layer, range(named.layer.heads)
    for name, by_step in formula_mistakes(layer):
        if name != named.cause.name:
            continue
        steps = [by_step] if name == "W_Q and W_K exchanged" else [{step: by_step[step]} for step in by_step]
        for chosen, affected in product(steps, ([*heads], *([head] for head in heads))):
            wrong = mistaken(layer, {(s, h): compute for s, compute in chosen.items() for h in (None, *affected)})
            for start in named.starts:
                try:
                    yield wrong.until(named.where, start)
                except (ValueError, KeyError):  # shapes that cannot be multiplied
                    continue


def _negated(named: Named) -> Iterator[np.ndarray]:
    return (-matrix for matrix in named.correct())


def _cut_off(named: Named) -> Iterator[np.ndarray]:
    unit = 10.0**named.digits
    return (np.trunc(matrix * unit * (1 + 1e-12)) / unit for matrix in named.correct())


def _digits_exchanged(named: Named) -> Iterator[np.ndarray]:
    for matrix in named.correct():
        result = np.full_like(matrix, np.nan)
        for row, column in named.cause.cells:
            correct, printed = (f"{m[row, column]:.{named.digits}f}" for m in (matrix, named.printed))
            places = [index for index, letter in enumerate(correct) if letter.isdigit()]
            for first, second in pairwise(places):
                letters = [*correct]
                letters[first], letters[second] = letters[second], letters[first]
                if "".join(letters) == printed != correct:
                    result[row, column] = named.printed[row, column]
        yield result


def _wrong_sums(named: Named) -> Iterator[np.ndarray]:
    off = np.abs(named.printed.sum(axis=1) - 1) > named.tolerance * named.printed.shape[1]
    yield np.where(off[:, None], named.printed, np.nan)


def _rounded_early(named: Named) -> Iterator[np.ndarray]:
    layer, order = named.layer, named.layer.order()
    for digits in range(5):
        for start in named.starts:
            rounded = {key: matrix if key[0] in EXACT_STEPS else matrix.round(digits) for key, matrix in start.items()}
            working: Matrices = {}
            for where in order[: order.index(named.where) + 1]:
                value = rounded.get(where, layer.compute(where, working))
                value = np.where(np.isnan(value), layer.compute(where, working), value)
                exact = where == named.where or where[0] in EXACT_STEPS
                working[where] = value if exact else value.round(digits)
            yield working[named.where]
            right = layer.right(start)
            nearest = {key: matrix if key[0] in EXACT_STEPS else matrix.round(digits) for key, matrix in right.items()}
            yield layer.compute(named.where, nearest)
            if named.where[0] == "weights":
                scores = right["masked" if layer.masked else "scaled", named.where[1]]
                powers = np.exp(scores).round(digits)
                yield powers / powers.sum(axis=1, keepdims=True)


_SLIPS: dict[str, Callable[[Named], Iterator[np.ndarray]]] = {
    "sign": _negated,
    "digits exchanged": _digits_exchanged,
    "cut off instead of rounded": _cut_off,
    "rounded too early": _rounded_early,
    "row does not sum to 1": _wrong_sums,
}
