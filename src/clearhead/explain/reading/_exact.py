r"""Exact numbers: fractions, roots and their products, such as `\frac{2}{\sqrt 2}`, `3\sqrt{5}` and `1/√2`."""

from __future__ import annotations

import re
from decimal import Decimal

_ROOT = (
    r"(?:\\sqrt\s*(?:\{\s*(?:\d{1,9})(?:\.\d{1,9})?\s*\}|\s*\d)|√\s*(?:\{\s*\d{1,9}\s*\}|\(\s*\d{1,9}\s*\)|\d{1,9}))"
)
_TERM = rf"(?:\d{{1,15}}(?:\.\d{{1,15}})?\s*[·×*]?\s*{_ROOT}|{_ROOT}|\d{{1,15}}(?:\.\d{{1,15}})?)"
_FRACTION = re.compile(
    rf"(?P<sign>[+-]?)\s*(?P<factor>{_TERM})?\s*"
    rf"(?:\\[dtc]?frac\s*(?:\{{\s*(?P<above>-?{_TERM})\s*\}}|(?P<digit>\d))\s*"
    rf"(?:\{{\s*(?P<below>{_TERM})\s*\}}|(?P<last>\d)))"
)
_RATIO = re.compile(rf"(?P<sign>[+-]?)\s*(?P<above>{_TERM})(?:\s*/\s*(?P<below>{_TERM}))?")
_RADICAND = re.compile(rf"{_ROOT}")
_LOOKS_EXACT = re.compile(r"\\[dtc]?frac|\\sqrt|√|\d\s*/\s*\d")
EXACT_DIGITS = 12
CLAIMED_DIGITS = 6  # other cells of the text are rounded, so that a result agrees with an exact number only nearly


class ExactNumber(str):
    """Decimal number of a fraction or a root, with more digits than a claim about it requires."""

    __slots__ = ()

    def claimed(self) -> str:
        """Return the number with the digits of a claim."""
        return f"{Decimal(self):.{CLAIMED_DIGITS}f}"


def is_exact(text: str) -> bool:
    """Return whether a cell is written with a fraction or a root."""
    return bool(_LOOKS_EXACT.search(text))


def read_exact(text: str) -> ExactNumber | None:
    r"""Return a fraction or a root as a decimal number, or None.

    Examples:
        >>> [read_exact(text) for text in (r"\frac{2}{\sqrt 2}", r"-\sqrt{2}", "1/5", "2√2", "1/0")]
        ['1.414213562373', '-1.414213562373', '0.200000000000', '2.828427124746', None]
    """
    if not is_exact(text):
        return None
    if match := _FRACTION.fullmatch(text):
        above, below = match["above"] or match["digit"], match["below"] or match["last"]
        factor = _term(match["factor"] or "1")
    elif match := _RATIO.fullmatch(text):
        above, below, factor = match["above"], match["below"] or "1", Decimal(1)
    else:
        return None
    divisor = _term(below)
    if divisor == 0:
        return None
    value = factor * _term(above) / divisor
    return ExactNumber(f"{-value if match['sign'] == '-' else value:.{EXACT_DIGITS}f}")


def _term(text: str) -> Decimal:
    """Return the value of a number, a root, or their product."""
    root = _RADICAND.search(text)
    factor = re.sub(r"[\s·×*]", "", text[: root.start()] if root else text)
    value = Decimal(-1 if factor == "-" else factor or "1")
    if root is None:
        return value
    radicand = re.search(r"[\d.]+", root[0])
    return value * Decimal(radicand[0] if radicand else "0").sqrt()
