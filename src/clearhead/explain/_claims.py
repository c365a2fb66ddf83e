"""Claims of a text about the matrices of a calculation: values, shapes, sums and counts."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal

import torch

from clearhead.explain._claim_parts import check_parts, placed, read_indices, values_as_rows
from clearhead.explain._printed_matrix import PrintedMatrix, read_matrix, short_repr, to_float
from clearhead.explain.steps import KEY_HEAD_STEPS, STEP_NAMES, StepKey

# a claim is about the result of a step, the mask M, or a learned matrix
LEARNED_MATRICES = ("query_weight", "key_weight", "value_weight", "output_weight")
BIASES = ("query_bias", "key_bias", "value_bias", "output_bias")
CLAIMABLE_MATRICES = (*STEP_NAMES, "mask", *LEARNED_MATRICES, *BIASES)
SHARED_MATRICES = (
    "embedding", "positions", "input", "memory", "concat", "output", "mask", "output_weight", "output_bias",
)  # shared by all heads  # fmt: skip
KEY_HEAD_MATRICES = (*KEY_HEAD_STEPS, "key_input", "key_weight", "value_weight", "key_bias", "value_bias")
CLAIM_KINDS = ("values", "shape", "sum", "count")
_CLAIM_KEYS = ("step", "head", *CLAIM_KINDS, "tolerance", "digits", "row", "column", "cell", "value")
_MAX_DIGITS = 15
# other names of the matrices in texts and programs
_SYNONYMS = {
    "x": "input", "embeddings": "embedding", "position": "positions", "encoder": "memory",
    "q": "query", "queries": "query", "k": "key", "keys": "key", "v": "value", "values": "value",
    "w_q": "query_weight", "wq": "query_weight", "w_k": "key_weight", "wk": "key_weight", "w_v": "value_weight",
    "wv": "value_weight", "w_o": "output_weight", "wo": "output_weight",
    "qk": "scores", "qkt": "scores", "dot_products": "scores", "similarity": "scores", "logits": "scaled",
    "softmax": "weights", "attention": "weights", "attention_weights": "weights", "attn": "weights", "a": "weights",
    "probabilities": "weights", "probs": "weights", "pattern": "weights",
    "context": "head_output", "z": "head_output", "o": "head_output", "head": "head_output",
    "concatenation": "concat", "concatenated": "concat", "result": "output", "y": "output",
}  # fmt: skip

ShapeOf = Callable[[str], tuple[int, int] | None]  # shape of a matrix by name, None if it does not occur


@dataclass(frozen=True, eq=False)
class Claim:
    """One claim of a text. Exactly one of values, shape, sum, count and total is not None."""

    position: int  # in the file, counted from 1
    step: str
    head: int | None  # counted from 0; a key head for keys and values; None for all heads, or for a shared matrix
    tolerance: float | None  # overrides the tolerance of the printed digits
    values: PrintedMatrix | None = None  # a whole matrix, also for a row, a column or a cell: the others are blank
    shape: tuple[int, int] | None = None
    sum: Literal["rows", "columns"] | None = None
    count: int | None = None
    total: PrintedMatrix | None = None  # one cell: the claimed sum of a row, of a column or of all cells
    row: int | None = None  # counted from 0; of a claim about one row or cell
    column: int | None = None
    query_heads: frozenset[int] | None = None  # heads that use the matrix; None for all

    @property
    def kind(self) -> str:
        if self.total is not None:
            return "sum"
        return next(kind for kind in CLAIM_KINDS if getattr(self, kind) is not None)

    @property
    def about(self) -> StepKey:
        """Matrix that the claim is about."""
        return self.step, self.head

    @property
    def part(self) -> str:
        """Name of the row, column or cell that the claim is about, or an empty string for the whole matrix."""
        indices = {"row": self.row, "column": self.column}
        return ", ".join(f"{name} {index + 1}" for name, index in indices.items() if index is not None)


def head_count(step: str, heads: int, kv_heads: int) -> int:
    """Return how many matrices of a kind there are, one for each head or one for each key head."""
    return kv_heads if step in KEY_HEAD_MATRICES else heads


def read_claim(
    position: int, raw: object, heads: int, kv_heads: int | None = None, shape_of: ShapeOf | None = None
) -> Claim:
    """Read one `[[claims]]` table of an example file. `shape_of` is required for claims about a part of a matrix."""
    name = f"claim {position}"
    if not isinstance(raw, Mapping):
        raise ValueError(f"{name} is {short_repr(raw)}; expected a table, [[claims]]")
    check_keys(name, raw, _CLAIM_KEYS)
    step = raw.get("step")
    if step is None:
        raise ValueError(f"{name}: step is missing; expected one of {', '.join(CLAIMABLE_MATRICES)}")
    if step not in CLAIMABLE_MATRICES:
        raise ValueError(f"{name}: step is {short_repr(step)}; {suggestion(str(step), CLAIMABLE_MATRICES, _SYNONYMS)}")
    name = f"{name} ({step})"
    check_parts(name, raw)
    kinds = [kind for kind in CLAIM_KINDS if kind in raw or (kind == "values" and "value" in raw)]
    if len(kinds) != 1:
        raise ValueError(
            f"{name}: expected one of {', '.join(CLAIM_KINDS)}, or value with cell, found {', '.join(kinds) or 'none'}"
        )
    [kind] = kinds
    is_total = kind == "sum" and not isinstance(raw[kind], str)
    count, group = head_count(step, heads, kv_heads or heads), heads // (kv_heads or heads)
    head = _read_head(name, raw.get("head"), step, count, required=kind == "values" or is_total)
    claim = Claim(position, step, head, _read_tolerance(name, raw, kind), query_heads=heads_that_use(step, head, group))
    row, column = read_indices(name, raw, None if shape_of is None else shape_of(step))
    claim = replace(claim, row=row, column=column)
    if is_total:
        return replace(claim, total=_with_digits(raw, _read_total(name, raw[kind])))
    if kind != "values":
        return replace(claim, **{kind: _READERS[kind](name, raw[kind])})
    label, rows = values_as_rows(name, raw)
    matrix = _with_digits(raw, read_matrix(label, rows, blanks=True, infinite=True))
    if step in ("mask", "masked"):
        matrix = _with_infinities(matrix, exact=step == "mask")
    if claim.part:
        matrix = placed(name, matrix, row, column, None if shape_of is None else shape_of(step))
    return replace(claim, values=matrix)


def heads_that_use(step: str, head: int | None, group: int) -> frozenset[int] | None:
    """Return the query heads that use a matrix of a head, or None for all. Heads of a group share keys and values."""
    if head is None:
        return None
    return frozenset(range(head * group, (head + 1) * group)) if step in KEY_HEAD_MATRICES else frozenset([head])


def _read_head(name: str, raw: object, step: str, heads: int, *, required: bool) -> int | None:
    if step in SHARED_MATRICES:
        if raw is not None:
            raise ValueError(
                f"{name}: head is {short_repr(raw)}, but there is one {step} for all heads; leave head out"
            )
        return None
    if raw is None:
        if required and heads > 1:
            raise ValueError(f"{name}: head is missing; expected a whole number from 1 to {heads}")
        return 0 if heads == 1 and required else None
    if isinstance(raw, bool) or not isinstance(raw, int) or not 1 <= raw <= heads:
        raise ValueError(f"{name}: head is {short_repr(raw)}; expected a whole number from 1 to {heads}")
    return raw - 1


def _read_tolerance(name: str, raw: Mapping[str, object], kind: str) -> float | None:
    tolerance, digits = raw.get("tolerance"), raw.get("digits")
    if digits is not None:
        if tolerance is not None:
            raise ValueError(f"{name} has both digits and tolerance; expected one of them")
        if type(digits) is not int or not 0 <= digits <= _MAX_DIGITS:
            raise ValueError(f"{name}: digits is {short_repr(digits)}; expected a whole number from 0 to {_MAX_DIGITS}")
        if kind in ("shape", "count"):
            raise ValueError(f"{name} has digits and {kind}, which is a whole number; leave digits out")
        return _half_unit_of(digits) if isinstance(raw.get("sum"), str) else None
    if tolerance is None:
        return None
    if (
        isinstance(tolerance, bool)
        or not isinstance(tolerance, int | Decimal)
        or not Decimal(tolerance).is_finite()
        or tolerance < 0
    ):
        raise ValueError(f"{name}: tolerance is {short_repr(tolerance)}; expected a number, 0 or more")
    return to_float(Decimal(tolerance))


def _with_digits(raw: Mapping[str, Any], matrix: PrintedMatrix) -> PrintedMatrix:
    """Return a matrix with the tolerance that the key `digits` states, if any: 14 with 2 digits means 14.00."""
    digits = raw.get("digits")
    if digits is None:
        return matrix
    written = matrix.values.isfinite()
    return replace(matrix, tolerance=torch.where(written, _half_unit_of(digits), matrix.tolerance))


def _half_unit_of(digits: int) -> float:
    return to_float(Decimal(5).scaleb(-digits - 1))


def _with_infinities(matrix: PrintedMatrix, *, exact: bool) -> PrintedMatrix:
    """Read a very negative number such as −1e9 as −∞.

    With `exact`, the tolerance is 0: the 0 of a mask is not rounded, unlike a masked score.
    """
    tolerance = torch.zeros_like(matrix.tolerance) if exact else matrix.tolerance
    return replace(matrix, values=torch.where(matrix.values <= -1e4, -torch.inf, matrix.values), tolerance=tolerance)


def _read_shape(name: str, raw: object) -> tuple[int, int]:
    if isinstance(raw, list) and len(raw) == 2 and all(type(size) is int and size > 0 for size in raw):
        return raw[0], raw[1]
    raise ValueError(f"{name}: shape is {short_repr(raw)}; expected two whole numbers, [rows, columns]")


def _read_sum(name: str, raw: object) -> str:
    if raw not in ("rows", "columns"):
        raise ValueError(
            f'{name}: sum is {short_repr(raw)}; expected "rows" or "columns", to claim that they sum to 1, or a number'
        )
    return str(raw)


def _read_total(name: str, raw: object) -> PrintedMatrix:
    if isinstance(raw, bool) or not isinstance(raw, int | Decimal):
        _read_sum(name, raw)
    return read_matrix(f"{name}: sum", [[raw]])


def _read_count(name: str, raw: object) -> int:
    if type(raw) is not int or raw < 0:
        raise ValueError(f"{name}: count is {short_repr(raw)}; expected a whole number, 0 or more")
    return raw


_READERS: dict[str, Any] = {"shape": _read_shape, "sum": _read_sum, "count": _read_count}


def check_keys(name: str, raw: Mapping[str, object], known: Collection[str]) -> None:
    """Raise if a key is unknown, and suggest the nearest known key."""
    for key in raw:
        if key not in known:
            raise ValueError(f"{name} has an unknown key {short_repr(key)}; {suggestion(key, known)}")


def suggestion(word: str, known: Collection[str], synonyms: Mapping[str, str] | None = None) -> str:
    """Suggest the known word with the same meaning, or the nearest one, or else list all known words."""
    meant = (synonyms or {}).get(word.lower())
    close = [meant] if meant else difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(known)}"
