"""Texts with usual mistakes and random errors, and an independent check of the causes that are named for them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from clearhead import check
from clearhead.explain import Audit, CheckResult, parse
from support.judged_causes import judged_causes
from support.random_worked_texts import Text, layer_toml, printed_rows, random_layer
from support.simulated_authors import Layer, Matrices, StepKey, distance
from support.usual_mistakes import Compute, formula_mistakes, mistaken

PRINTING = ("transposed", "rows in reverse order", "columns in reverse order", "rows exchanged", "columns exchanged")
FAILURES = ("tracebacks", "missed", "false alarms", "cause not named", "false causes")
_CLEAR = 10  # an injected mistake changes a printed number by at least this many units of its last digit


@dataclass(frozen=True)
class Injection:
    """A mistake in one matrix of a text."""

    name: str
    where: StepKey


@dataclass(frozen=True)
class MistakenText:
    """A text with usual mistakes, its printed numbers and the places of the mistakes."""

    source: str
    layer: Layer
    digits: dict[StepKey, int]
    shown: Matrices
    working: list[Matrices]  # the author's numbers with the mistakes, without and with rounding
    injections: list[Injection]


def mistaken_text(seed: int, most_mistakes: int = 3) -> MistakenText:
    """Draw a text with usual mistakes in several matrices and heads. Later matrices are carried on."""
    draw = random.Random(seed)
    layer = random_layer(draw)
    rounds, share = draw.random() < 0.5, draw.choice((1.0, 1.0, 0.7))
    digits = {where: draw.choice((2, 3)) for where in layer.order() if draw.random() < share} or {("output", None): 3}
    if ("mask", None) in digits:
        digits["mask", None] = 0
    formulas: dict[StepKey, Compute] = {}
    printing: dict[StepKey, Compute] = {}
    injections: list[Injection] = []
    for _ in range(draw.randint(1, most_mistakes)):
        before = written(layer, digits, formulas, printing, rounds=rounds)
        choices = [entry for entry in _choices(layer, digits) if entry[1] not in (*formulas, *printing)]
        names = sorted({name for name, _, _ in choices})  # every name is equally likely
        for name in draw.sample(names, min(12, len(names))):
            _, where, compute = draw.choice([entry for entry in choices if entry[0] == name])
            target = (
                printing
                if name in PRINTING or name.startswith(("matrix of", "scores already")) or name.endswith("printed")
                else formulas
            )
            target[where] = compute
            after = written(layer, digits, formulas, printing, rounds=rounds)
            if all(entry.where in after for entry in injections) and _is_clear(before, after, where, digits):
                injections.append(Injection(name, where))
                digits = {key: count for key, count in digits.items() if key in after}
                break
            del target[where]
    shown = written(layer, digits, formulas, printing, rounds=rounds)
    if not all(_is_decidable(layer, digits, formulas, printing, entry.where, shown) for entry in injections):
        return mistaken_text(seed + 1_000_000, most_mistakes)
    order = draw.sample([*digits], len(digits))
    source = layer_toml(layer) + "".join(claim_toml(where, shown[where], digits[where]) for where in order)
    exact = written(layer, dict.fromkeys(layer.order(), 15), formulas, {}, rounds=False)
    working = [exact, written(layer, digits, formulas, {}, rounds=True)]
    return MistakenText(source, layer, digits, shown, working, injections)


def claim_toml(where: StepKey, matrix: np.ndarray, digits: int) -> str:
    """Return a claim about one matrix as TOML."""
    name, head = where
    text = f'[[claims]]\nstep = "{name}"\nvalues = {printed_rows(matrix, digits)}\n'
    return text if head is None else f"{text}head = {head + 1}\n"


def _is_decidable(
    layer: Layer,
    digits: dict[StepKey, int],
    formulas: dict[StepKey, Compute],
    printing: dict[StepKey, Compute],
    where: StepKey,
    shown: Matrices,
) -> bool:
    """Return whether some number of a mistaken matrix follows from no set of the other mistakes."""
    others = [key for key in (*formulas, *printing) if key != where]
    clear = np.ones(shown[where].shape, dtype=bool)
    for size in range(len(others) + 1):
        for chosen in combinations(others, size):
            used = {key: (formulas | printing)[key] for key in chosen}  # a misprint may be used later
            for rounds in (False, True):
                correct = written(layer, digits, used, {}, rounds=rounds).get(where)
                if correct is not None and correct.shape == clear.shape:
                    clear &= distance(correct, shown[where]) > _CLEAR * 10.0 ** -digits[where]
    return bool(clear.any())


def _choices(layer: Layer, digits: dict[StepKey, int]) -> list[tuple[str, StepKey, Compute]]:
    """Return mistakes in printed matrices. Exchanges of both W_Q and W_K are tested elsewhere."""
    return [
        (name, where, by_step[where[0]])
        for name, by_step in formula_mistakes(layer)
        for where in digits
        if where[0] in by_step and name != "W_Q and W_K exchanged" and name != f"matrix of head {(where[1] or 0) + 1}"
    ]


def written(
    layer: Layer,
    digits: dict[StepKey, int],
    formulas: dict[StepKey, Compute],
    printing: dict[StepKey, Compute],
    *,
    rounds: bool,
) -> Matrices:
    """Return the printed matrices, up to the first one that cannot be computed."""
    wrong = mistaken(layer, formulas)
    working: Matrices = {}
    shown: Matrices = {}
    shapes = {where: matrix.shape for where, matrix in layer.right().items()}
    for where in layer.order():
        try:
            value = wrong.compute(where, working)
            printed = printing[where](layer, working, where[1] or 0) if where in printing else value
        except (ValueError, KeyError):  # shapes that cannot be multiplied, or an earlier matrix of a wrong shape
            continue
        if where in digits:
            shown[where] = np.round(printed, digits[where])
            value = np.round(value, digits[where]) if rounds else value
        if value.shape == shapes[where]:
            working[where] = value
    return shown


def _is_clear(before: Matrices, after: Matrices, where: StepKey, digits: dict[StepKey, int]) -> bool:
    """Return whether a mistake can be written down and changes printed numbers clearly."""
    if where not in after or not before.keys() >= after.keys():
        return False
    if not all(np.nan_to_num(matrix, neginf=0).max(initial=0) < 1e4 for matrix in after.values()):
        return False
    if any((np.isnan(matrix) | (matrix == np.inf)).any() for matrix in after.values()):
        return False
    if any(np.isinf(matrix).any() and key[0] not in ("mask", "masked") for key, matrix in after.items()):
        return False
    left, right = before[where], after[where]
    return left.shape != right.shape or bool((distance(left, right) > _CLEAR * 10.0 ** -digits[where]).any())


def mistaken_outcome(text: MistakenText) -> tuple[Counter[str], list[tuple[str, bool]]]:
    """Return counts for one text, and for each injected mistake whether it is named.

    The counts in `FAILURES` should be 0.
    """
    counts = Counter({"texts": 1, "mistakes": len(text.injections)})
    try:
        audit = check(parse(text.source))
    except Exception:  # every exception counts as a traceback
        return counts + Counter({"tracebacks": 1}), []
    results = _values_results(audit)
    named = []
    for injection in text.injections:
        result = results[injection.where]
        is_named = injection.name in {cause.name for cause in result.causes}
        named.append((injection.name, is_named))
        counts["found" if result.verdict == "differs" else "missed"] += 1
        counts["named" if is_named else "cause not named"] += 1
    wheres = {injection.where for injection in text.injections}
    counts["false alarms"] = sum(
        result.verdict == "differs" for where, result in results.items() if where not in wheres
    )
    counts.update(judged_causes(audit, text.layer, text.shown, text.digits, text.working))
    return counts, named


def random_error_outcome(text: Text) -> Counter[str]:
    """Return counts of the causes named for a text with random errors."""
    author = text.author
    shown = author.shown()
    for where, blank in author.blank.items():
        shown[where] = np.where(blank, np.nan, shown[where])
    working = [author.working(author.carried, rounds=rounds)[0] for rounds in (False, True)]
    given = frozenset(author.given)
    return judged_causes(check(parse(text.source)), author.layer, shown, author.digits, working, given)


def _values_results(audit: Audit) -> dict[StepKey, CheckResult]:
    return {(result.step, result.head): result for result in audit.findings if result.kind == "values"}
