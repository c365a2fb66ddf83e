"""Symbols and formulas of attention: `Q_1`, `W^Q`, `QK^T / √d_k`, `softmax(...)`, each with its step and head."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clearhead.explain.reading._markup import plain_text

MAX_FORMULA_LETTERS = 400
_SCORES = ("scores", "scaled")
_OUTPUTS = ("head_output", "output")
_SYMBOL_STEPS = {
    "Q": ("query",),
    "K": ("key",),
    "V": ("value",),
    "X": ("input",),
    "S": _SCORES,
    "scores": _SCORES,
    "score": _SCORES,
    "logits": _SCORES,
    "scaled": ("scaled",),
    "masked": ("masked",),
    "A": ("weights",),
    "P": ("weights",),
    "α": ("weights",),
    "attention": ("weights",),
    "attn": ("weights",),
    "weights": ("weights",),
    "Z": _OUTPUTS,
    "O": _OUTPUTS,
    "output": _OUTPUTS,
    "out": _OUTPUTS,
    "head": ("head_output",),
    "context": ("head_output",),
    "C": ("concat",),
    "concat": ("concat",),
    "multihead": ("concat", "output"),
    "Y": ("output",),
    "finaloutput": ("output",),
    "M": ("mask",),
    "mask": ("mask",),
    "input": ("input",),
}
_WEIGHT_STEPS = {"q": "query_weight", "k": "key_weight", "v": "value_weight", "o": "output_weight"}
_WORDS = "|".join(sorted((word for word in _SYMBOL_STEPS if len(word) > 1), key=len, reverse=True))
_FACTOR = re.compile(rf"((?i:softmax|{_WORDS})|[A-Zα])(\d{{0,3}})((?:[_^](?:\{{[^{{}}]{{0,40}}\}}|\w))*)")
_ROW_SYMBOL = re.compile(r"([qkvxzo])_?\{?\d{1,3}\}?(?:\^\{?T\}?)?")
_SLICE = re.compile(r"X\[|X_\{(?::,|columns?\d)")
_PRODUCT_SIGNS = re.compile(r"[\s×·⊙@]+|\\")


@dataclass(frozen=True)
class Meaning:
    """Steps that a symbol or a text may stand for, the likeliest first, with its head as printed."""

    steps: tuple[str, ...]
    head: int | None = None
    transposed: bool = False


@dataclass(frozen=True)
class _Factor:
    base: str
    scripts: str

    @property
    def head(self) -> int | None:
        digits = re.search(r"\d{1,3}", self.scripts)
        return int(digits[0]) if digits else None

    @property
    def transposed(self) -> bool:
        return bool(re.search(r"\^(\{T\}|T)|T\}$", self.scripts))

    @property
    def weight(self) -> str | None:
        """Learned matrix that a W stands for, from the first letter of its scripts."""
        letters = re.sub(r"(?i)head|[^A-Za-z]", "", self.scripts)
        return _WEIGHT_STEPS.get(letters[:1].lower()) if self.base == "W" else None


def read_formula(text: str) -> Meaning | None:
    """Return the meaning of one side of an equation, or None.

    Examples:
        >>> read_formula("Q_1")
        Meaning(steps=('query',), head=1, transposed=False)
        >>> read_formula(r"\\frac{Q K^\\top}{\\sqrt{d_k}}").steps
        ('scaled',)
    """
    if len(text) > MAX_FORMULA_LETTERS:
        return None
    formula = _PRODUCT_SIGNS.sub("", plain_text(text).strip().rstrip(":.,"))
    factors = _read_factors(formula)
    if not factors:
        return None
    heads = [factor.head for factor in factors if factor.head is not None]
    head = heads[0] if heads else None
    bases = [factor.base for factor in factors]
    if len(factors) == 1:
        return _single(factors[0], formula)
    steps = _product_steps(formula, factors, bases)
    return Meaning(steps, None if steps[0] in ("concat", "output") else head) if steps else None


def read_equation(text: str) -> Meaning | None:
    """Return the meaning of a line that is an equation, from its sides, the leftmost first."""
    if len(text) > MAX_FORMULA_LETTERS or "=" not in text:
        return None
    sides = [side for side in re.split(r"(?<![<>!:])=", text) if side.strip(" $&")]
    return merge([read_formula(side) for side in sides])


def merge(meanings: list[Meaning | None]) -> Meaning | None:
    """Combine descriptions of one matrix, the strongest first. A later one only narrows the steps of an earlier one."""
    known = [meaning for meaning in meanings if meaning is not None]
    if not known:
        return None
    steps = known[0].steps
    for meaning in known[1:]:
        steps = tuple(step for step in steps if step in meaning.steps) or steps
    heads = [meaning.head for meaning in known if meaning.head is not None]
    return Meaning(steps, heads[0] if heads else None, known[0].transposed)


def read_row_labels(rows: tuple[str, ...], columns: tuple[str, ...]) -> Meaning | None:
    """Return the meaning of a matrix with rows `q_1, q_2, …`, and with columns `k_1, k_2, …` for scores."""
    letter = _common_letter(rows)
    if letter == "q" and _common_letter(columns) == "k":
        return Meaning(("scores", "scaled", "masked", "weights"))
    steps = {"q": ("query",), "k": ("key",), "v": ("value",), "x": ("input",), "z": _OUTPUTS, "o": _OUTPUTS}
    if letter is not None:
        return Meaning(steps[letter])
    letter = _common_letter(columns)
    return Meaning(steps[letter], transposed=True) if letter in ("q", "k", "v") else None


def is_row_symbol(label: str) -> bool:
    """Return whether a label is a symbol such as `x_{1}` and not a token."""
    return len(label) < 20 and bool(_ROW_SYMBOL.fullmatch(plain_text(label).replace(" ", "")))


def _common_letter(labels: tuple[str, ...]) -> str | None:
    if not labels or not all(is_row_symbol(label) for label in labels):
        return None
    letters = {plain_text(label).strip()[0] for label in labels}
    return letters.pop() if len(letters) == 1 else None


def _read_factors(formula: str) -> list[_Factor]:
    factors = []
    for match in _FACTOR.finditer(formula):
        base = match[1] if len(match[1]) == 1 else match[1].lower()
        scripts = match[2] + match[3]
        last = factors[-1] if factors else None
        if last is not None and last.base == "W" and last.weight is None and base in ("Q", "K", "V", "O"):
            factors[-1] = _Factor("W", last.scripts + base + scripts)
        else:
            factors.append(_Factor(base, scripts))
    return [factor for factor in factors if factor.base in (*_SYMBOL_STEPS, "W", "softmax")]


def _single(factor: _Factor, formula: str) -> Meaning | None:
    if factor.weight is not None:
        head = None if factor.weight == "output_weight" else factor.head
        return Meaning((factor.weight,), head, factor.transposed)
    if factor.base not in _SYMBOL_STEPS:
        return Meaning(("weights",)) if factor.base == "softmax" else None
    steps = _SYMBOL_STEPS[factor.base]
    if factor.base == "X" and _SLICE.search(formula):
        return Meaning(("slice",))
    if factor.base == "X" and factor.head is not None:
        return Meaning(("slice",), factor.head, factor.transposed)
    if steps == _OUTPUTS and factor.head is not None:
        steps = ("head_output",)
    if steps == _SCORES and ("/" in formula or "sqrt" in formula or "√" in formula):
        steps = ("scaled",)
    return Meaning(steps, factor.head, factor.transposed)


def _product_steps(formula: str, factors: list[_Factor], bases: list[str]) -> tuple[str, ...] | None:
    """Return the step that a product or a function of several matrices is the result of."""
    weight = next((factor.weight for factor in reversed(factors) if factor.weight), None)
    if "concat" in bases or re.match(r"\[\w*[;,]", formula):
        return ("output",) if weight == "output_weight" else ("concat",)
    if "softmax" in bases:
        after = formula.rpartition(")")[2]
        return ("head_output",) if "V" in after else ("weights",)
    if weight == "output_weight":
        return ("output",)
    if weight is not None:
        return (weight.removesuffix("_weight"),)
    is_score = ("Q" in bases and "K" in bases) or bases[0] in ("S", "scores", "score")
    if is_score and ("M" in bases or "mask" in bases):
        return ("masked",)
    if is_score:
        divided = "/" in formula or "frac" in formula or "sqrt" in formula or "√" in formula
        return ("scaled",) if divided else ("scores",)
    if "V" in bases and ({"A", "P", "α", "attention", "attn", "weights"} & set(bases)):
        return ("head_output",)
    if bases.count("head") > 1 or bases.count("O") > 1 or bases.count("Z") > 1:
        return ("concat",)
    if bases[0] == "attention" and {"Q", "K"} <= set(bases):
        return ("head_output",)
    return _SYMBOL_STEPS.get(bases[0]) if bases[0] not in ("Q", "K", "V") else None
