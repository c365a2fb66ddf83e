"""Checks that many arguments share. Each error names the argument, what it was and what was expected."""

import math
import operator
import os
import reprlib
from collections.abc import Iterable
from numbers import Real
from typing import SupportsIndex

MAX_INT = 2**31  # no axis is longer, and no position lies beyond
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 120


def describe(value: object) -> str:
    """Return a short text for a wrong value: its type for an array, else its `repr`, cut where it is long."""
    if hasattr(type(value), "dtype"):
        return f"a {type(value).__name__}"
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to write more than 4300 digits
    return _repr.repr(value)


def check_int(name: str, value: object, least: int = 1, most: int | None = MAX_INT) -> int:
    """Return `value` as an int from `least` to `most`. Integers of numpy and torch are accepted."""
    expected = f"expected a whole number of at least {least}"
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{name} is {describe(value)}; {expected}")
    try:
        integer = operator.index(value)
    except (TypeError, RuntimeError):  # an array with an axis, a class
        raise TypeError(f"{name} is {describe(value)}; {expected}") from None
    if integer < least:
        raise ValueError(f"{name} is {describe(integer)}; {expected}")
    if most is not None and integer > most:
        raise ValueError(f"{name} is {describe(integer)}; {expected} and at most {most}")
    return integer


def check_float(name: str, value: object, expected: str = "a finite number") -> float:
    """Return `value` as a finite float. Numbers of numpy and fractions are accepted."""
    if type(value) is not float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"{name} is {describe(value)}; expected {expected}")
        try:
            value = float(value)
        except OverflowError:
            raise ValueError(f"{name} is {describe(value)}; expected {expected}") from None
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value}; expected {expected}")
    return value


def check_bool(name: str, value: object) -> bool:
    """Return a bool, of Python or numpy."""
    if value is True or value is False:
        return value
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise TypeError(f"{name} is {describe(value)}; expected True or False")


def check_truth(name: str, value: object) -> bool:
    """Return the truth of any value that has one, as torch reads its own switches."""
    try:
        return bool(value)
    except (RuntimeError, ValueError, TypeError):  # an array of several
        raise TypeError(f"{name} is {describe(value)}; expected True or False") from None


def check_choice(name: str, value: object, options: Iterable[str]) -> str:
    """Return a string that is one of `options`."""
    if isinstance(value, str) and value in options:
        return value
    *others, last = map(repr, options)
    raise ValueError(f"{name} is {describe(value)}; expected {', '.join(others)}{' or ' if others else ''}{last}")


def check_path(name: str, path: object) -> str | os.PathLike[str]:
    """Return a path as it is, if it is one."""
    if isinstance(path, str | os.PathLike):
        return path
    raise TypeError(f"{name} is {describe(path)}; expected a path, a str or os.PathLike")


def list_items(name: str, values: object) -> list:
    """Return the items of an array or another iterable, or a single value as a list of one."""
    tolist = getattr(values, "tolist", None)
    try:
        plain = tolist() if callable(tolist) else values
        if isinstance(plain, Iterable) and not isinstance(plain, str | bytes | type):
            return list(plain)
    except (RuntimeError, TypeError):  # a tensor without memory, a sparse one
        raise TypeError(f"{name} is {describe(values)}, which has no items to read; expected numbers") from None
    return [plain]
