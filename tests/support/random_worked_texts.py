"""Random worked examples with planted errors, compared with the report of `check`."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from clearhead import check
from clearhead.explain import Audit, parse
from support.simulated_authors import STATED, Author, CellKey, Error, Layer, Matrices, StepKey, distance

BLANK = '"_"'
FAILURES = ("tracebacks", "errors missed", "errors called carried", "false alarms", "carried missed", "wrong verdicts")


@dataclass(frozen=True)
class Text:
    """A text in the format that `check` reads, and the cells that it should report."""

    source: str
    errors: frozenset[CellKey]  # must be reported as new errors
    carried: frozenset[CellKey]  # must be reported as carried
    doubtful: frozenset[CellKey]  # changed so little by a carried error that either verdict is accepted
    author: Author


def random_text(seed: int, most_errors: int = 4, *, variants: bool = False) -> Text:
    """Draw a text with 0 to `most_errors` errors in any of its matrices.

    With `variants`, the layer may have shared key heads, a memory, biases and unscaled scores.
    """
    draw = random.Random(seed)
    author = _author(draw, random_variant(draw) if variants else random_layer(draw))
    _plant(draw, author, draw.randint(0, most_errors))
    shown, margins = author.shown(), author.margins()
    given = {where: np.where(author.blank[where], np.nan, shown[where]) for where in author.given}
    right = author.layer.right(given)
    in_given = [error for error in author.errors if error.where in given]
    faultless = replace(author, errors=in_given)
    printed = faultless.shown()
    with_errors, without = (some.working(some.carried, rounds=False)[0] for some in (author, faultless))
    errors = frozenset(error.cell for error in author.errors)
    carried, doubtful = set(), set()
    for where in author.digits.keys() - given.keys():
        written = ~author.blank[where]
        far = (shown[where] != printed[where]) & (distance(shown[where], right[where]) > margins[where])
        carried |= _cell_keys(where, written & far)
        doubtful |= _cell_keys(where, written & ~far & (with_errors[where] != without[where]))
    source = _source(draw, author, shown)
    return Text(source, errors, frozenset(carried - errors), frozenset(doubtful - errors), author)


def outcome(text: Text) -> Counter[str]:
    """Return counts of the cells that `check` reports or misses. The counts in `FAILURES` should be 0."""
    counts = Counter({"texts": 1, "texts without error": int(not text.errors), "errors": len(text.errors)})
    counts["carried"] = len(text.carried)
    try:
        audit = check(parse(text.source))
    except Exception:  # every exception counts as a traceback
        counts["tracebacks"] += 1
        return counts
    reported = _reported(audit)
    new = {cell for cell, cause in reported.items() if cause is None}
    affected = text.errors | text.carried | text.doubtful
    counts["errors found"] = len(text.errors & new)
    counts["errors missed"] = len(text.errors - reported.keys())
    counts["errors called carried"] = len(text.errors & reported.keys() - new)
    counts["carried marked"] = len(text.carried & reported.keys() - new)
    counts["carried missed"] = len(text.carried - reported.keys())
    counts["false alarms"] = len(new - text.errors) + len(reported.keys() - new - affected)
    counts["false alarms"] += sum(result.verdict != "agrees" and not result.cells for result in audit.findings)
    counts["wrong verdicts"] = int(audit.agrees == bool(reported))
    return counts


def _reported(audit: Audit) -> dict[CellKey, str | None]:
    return {
        (result.step, result.head, cell.row, cell.column): cell.carried_from
        for result in audit.findings
        for cell in result.cells
    }


def _cell_keys(where: StepKey, cells: np.ndarray) -> set[CellKey]:
    return {(*where, row, column) for row, column in np.argwhere(cells).tolist()}


def random_layer(draw: random.Random) -> Layer:
    heads, tokens = draw.randint(1, 3), draw.randint(2, 5)
    split = draw.choice(("project", "slice"))
    width = draw.randint(1, 2) * heads if split == "slice" else draw.randint(2, 5)
    key_dim, value_dim, output_dim = (draw.randint(1, 3) for _ in range(3))
    read = width // heads if split == "slice" else width

    stated: Matrices = {("input", None): _matrix(draw, tokens, width, 2)}
    for head in range(heads):
        for name, columns in (("query_weight", key_dim), ("key_weight", key_dim), ("value_weight", value_dim)):
            stated[name, head] = _matrix(draw, read, columns, 1.5)
    stated["output_weight", None] = _matrix(draw, heads * value_dim, output_dim, 1.5)
    kind = draw.choice(("none", "causal", "matrix"))
    return Layer(heads, split, _mask(draw, kind, tokens, tokens), kind == "causal", stated)


def random_variant(draw: random.Random) -> Layer:
    """Draw a layer that may have shared key heads, a memory, biases and unscaled scores."""
    heads, tokens = draw.randint(1, 4), draw.randint(2, 4)
    kv_heads = draw.choice([count for count in range(1, heads + 1) if heads % count == 0])
    split = draw.choice(("project", "slice"))
    width = draw.randint(1, 2) * heads if split == "slice" else draw.randint(2, 5)
    key_dim, value_dim, output_dim = (draw.randint(1, 3) for _ in range(3))
    stated: Matrices = {("input", None): _matrix(draw, tokens, width, 2)}
    keys, key_width = tokens, width
    if draw.random() < 0.4:
        keys, key_width = draw.randint(2, 4), draw.randint(1, 3) * (kv_heads if split == "slice" else 1)
        stated["memory", None] = _matrix(draw, keys, key_width, 2)
    sliced = split == "slice"
    shapes = {
        "query": (heads, width // heads if sliced else width, key_dim),
        "key": (kv_heads, key_width // kv_heads if sliced else key_width, key_dim),
        "value": (kv_heads, key_width // kv_heads if sliced else key_width, value_dim),
    }
    for name, (count, rows, columns) in shapes.items():
        biased = draw.random() < 0.4
        for head in range(count):
            stated[f"{name}_weight", head] = _matrix(draw, rows, columns, 1.5)
            if biased:
                stated[f"{name}_bias", head] = _matrix(draw, 1, columns, 1.5)
    stated["output_weight", None] = _matrix(draw, heads * value_dim, output_dim, 1.5)
    if draw.random() < 0.4:
        stated["output_bias", None] = _matrix(draw, 1, output_dim, 1.5)
    kind = draw.choice(("none", "matrix") if ("memory", None) in stated else ("none", "causal", "matrix"))
    mask = _mask(draw, kind, tokens, keys)
    return Layer(heads, split, mask, kind == "causal", stated, kv_heads=kv_heads, scales=draw.random() < 0.6)


def _matrix(draw: random.Random, rows: int, columns: int, most: float) -> np.ndarray:
    return np.array([[round(draw.uniform(-most, most), 2) for _ in range(columns)] for _ in range(rows)])


def _mask(draw: random.Random, kind: str, rows: int, columns: int) -> np.ndarray:
    """Return an additive mask. One of the kind "matrix" may mask a whole row."""
    allowed = np.ones((rows, columns), dtype=bool)
    if kind == "causal":
        allowed = np.tril(allowed)
    if kind == "matrix":
        allowed = np.array([[draw.random() < 0.7 for _ in range(columns)] for _ in range(rows)])
    return np.where(allowed, 0.0, -np.inf)


def _author(draw: random.Random, layer: Layer) -> Author:
    right = layer.right()
    share, usual, rounds = draw.choice((1.0, 0.7, 0.4)), draw.randint(2, 4), draw.random() < 0.5
    digits = {
        where: usual if draw.random() < 0.8 else draw.randint(2, 4) for where in right if draw.random() < share
    } or {("output", None): usual}
    if ("mask", None) in digits:
        digits["mask", None] = 0
    # a given matrix is used as printed, so only an author who continues with rounded numbers can give one
    projections = [where for where in digits if where[0] in ("query", "key", "value")] if rounds else []
    given = frozenset(where for where in projections if draw.random() < 0.1)
    empty = draw.choice((0.0, 0.0, 0.0, 0.0, 0.3))
    blank = {where: np.array([[draw.random() < empty for _ in row] for row in right[where]]) for where in digits}
    return Author(layer, rounds, digits, blank, given)


def _plant(draw: random.Random, author: Author, count: int) -> None:
    """Make errors in the order of the calculation. The errors of one matrix are all carried or all misprints."""
    cells = {where: np.argwhere(~author.blank[where]).tolist() for where in author.digits}
    printed = [where for where in author.layer.order() if cells.get(where)]
    chosen = {(where, *draw.choice(cells[where])) for where in draw.choices(printed, k=count if printed else 0)}
    carries = {where: draw.random() < 0.6 for where in printed}
    for where, row, column in sorted(chosen, key=lambda cell: (printed.index(cell[0]), cell)):
        carried = carries[where] or where in author.given
        if author.given and where[0] in (*STATED, "slice"):
            carried = False  # a given matrix is compared with the product of the stated ones
        wrong = _wrong_number(draw, author, where, row, column)
        if wrong is not None:
            author.errors.append(Error(where, row, column, wrong, carried))


def _wrong_number(draw: random.Random, author: Author, where: StepKey, row: int, column: int) -> float | None:
    """Draw a number that neither rounding nor a set of earlier errors explains, or return None."""
    margin = author.margins()[where][row, column]
    correct = author.working(author.carried, rounds=author.rounds)[1][where]
    right = correct[row, column]
    subsets = [some for size in range(len(author.errors) + 1) for some in combinations(author.errors, size)]
    others = np.array([author.working(some, rounds=False)[0][where][row, column] for some in subsets])
    largest = np.abs(correct[np.isfinite(correct)]).max(initial=0.1)
    for _ in range(20):
        if where[0] == "mask":
            wrong = 0.0 if right else -np.inf
        elif np.isinf(right):
            wrong = draw.uniform(-2, 2)
        elif where[0] == "masked" and draw.random() < 0.2:
            wrong = -np.inf
        else:
            size = draw.choice((margin * draw.uniform(1, 4), largest * draw.uniform(0.3, 2)))
            wrong = right + draw.choice((-1, 1)) * size
        wrong = float(np.round(wrong, author.digits[where]))
        if (distance(np.array(wrong), others) > margin).all():
            return wrong
    return None


def layer_toml(layer: Layer) -> str:
    """Return the input, the mask, the weights and the biases as TOML."""
    exact = {where: printed_rows(matrix, 2) for where, matrix in layer.stated.items()}
    mask = '"causal"' if layer.causal else printed_rows(layer.mask, 0) if layer.masked else '"none"'
    lines = [f"heads = {layer.heads}", f'split = "{layer.split}"', f"mask = {mask}", f"x = {exact['input', None]}"]
    if layer.count("key") != layer.heads:
        lines.append(f"kv_heads = {layer.kv_heads}")
    if ("memory", None) in exact:
        lines.append(f"memory = {exact['memory', None]}")
    if not layer.scales:
        lines.append('scale = "none"')
    lines += ["[weights]", f"output = {exact['output_weight', None]}"]
    lines += [f"{name} = {_per_head(layer, f'{name}_weight', exact)}" for name in ("query", "key", "value")]
    biases = {where: text[1:-1] for where, text in exact.items() if "_bias" in where[0]}
    if biases:
        lines.append("[biases]")
    if ("output_bias", None) in biases:
        lines.append(f"output = {biases['output_bias', None]}")
    for name in ("query", "key", "value"):
        if (f"{name}_bias", 0) in biases:
            lines.append(f"{name} = {_per_head(layer, f'{name}_bias', biases)}")
    return "\n".join(lines) + "\n"


def _per_head(layer: Layer, name: str, write: dict[StepKey, str]) -> str:
    return f"[{', '.join(write.get((name, head), BLANK) for head in range(layer.count(name)))}]"


def _source(draw: random.Random, author: Author, shown: Matrices) -> str:
    """Return the TOML file for `check`, with some correct claims about shapes and sums."""
    layer, right = author.layer, author.layer.right()

    def printed(where: StepKey) -> str:
        return printed_rows(shown[where], author.digits[where], author.blank[where])

    lines = [layer_toml(layer)]
    given = {where: printed(where) for where in author.given}
    lines += ["[given]", *(f"{name} = {_per_head(layer, name, given)}" for name in sorted({name for name, _ in given}))]
    claims = [(where, f"values = {printed(where)}") for where in author.digits if where not in given]
    claims += [(where, f"shape = {list(right[where].shape)}") for where in right if draw.random() < 0.1]
    full = [where for where in right if where[0] == "weights" and right[where].sum(axis=1).min() > 0.5]
    claims += [(where, 'sum = "rows"') for where in full if draw.random() < 0.3]
    draw.shuffle(claims)
    for (name, head), claim in claims:
        lines += ["[[claims]]", f'step = "{name}"', claim, *([] if head is None else [f"head = {head + 1}"])]
    return "\n".join(lines) + "\n"


def printed_rows(matrix: np.ndarray, digits: int, blank: np.ndarray | None = None) -> str:
    """Return a matrix as a list of rows in TOML."""
    cells = [["-inf" if np.isinf(cell) else f"{cell:.{digits}f}" for cell in row] for row in matrix]
    for row, column in [] if blank is None else np.argwhere(blank).tolist():
        cells[row][column] = BLANK
    return f"[{', '.join('[' + ', '.join(row) + ']' for row in cells)}]"
