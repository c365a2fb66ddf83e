"""Checks of arguments. Each error names the argument, its value and the expected value."""

import math
import operator
import os
import reprlib
from collections.abc import Iterable
from numbers import Real
from typing import SupportsIndex

MAX_INT = 2**31  # upper bound of lengths and positions
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 120


def describe(value: object) -> str:
    """Return a short description of a value for an error: the type of an array, else a truncated `repr`."""
    if hasattr(type(value), "dtype"):
        return f"a {type(value).__name__}"
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"  # repr() raises above 4300 digits
    return _repr.repr(value)


def check_int(name: str, value: object, least: int = 1, most: int | None = MAX_INT) -> int:
    """Return `value` as an int from `least` to `most`. Accepts numpy and torch integers."""
    expected = f"expected a whole number of at least {least}"
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{name} is {describe(value)}; {expected}")
    try:
        integer = operator.index(value)
    except (TypeError, RuntimeError):  # an array with several elements, or a class
        raise TypeError(f"{name} is {describe(value)}; {expected}") from None
    if integer < least:
        raise ValueError(f"{name} is {describe(integer)}; {expected}")
    if most is not None and integer > most:
        raise ValueError(f"{name} is {describe(integer)}; {expected} and at most {most}")
    return integer


def check_float(name: str, value: object, expected: str = "a finite number") -> float:
    """Return `value` as a finite float. Accepts numpy numbers and fractions."""
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
    """Return `value` as a bool. Accepts numpy bools."""
    if value is True or value is False:
        return value
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise TypeError(f"{name} is {describe(value)}; expected True or False")


def check_truth(name: str, value: object) -> bool:
    """Return the truth value of any object, as torch does for its own flags."""
    try:
        return bool(value)
    except (RuntimeError, ValueError, TypeError):  # an array with several elements
        raise TypeError(f"{name} is {describe(value)}; expected True or False") from None


def check_choice(name: str, value: object, options: Iterable[str]) -> str:
    """Return `value` if it is one of `options`; raise otherwise."""
    if isinstance(value, str) and value in options:
        return value
    *others, last = map(repr, options)
    raise ValueError(f"{name} is {describe(value)}; expected {', '.join(others)}{' or ' if others else ''}{last}")


def check_path(name: str, path: object) -> str | os.PathLike[str]:
    """Return `path` unchanged if it is a path, or a str that is not empty; raise otherwise."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{name} is {describe(path)}; expected a path, a str or os.PathLike")
    if path == "":
        raise ValueError(f"{name} is ''; expected a path")
    return path


def list_items(name: str, values: object) -> list:
    """Return the items of an array or another iterable, or a single value as a list of one."""
    tolist = getattr(values, "tolist", None)
    try:
        plain = tolist() if callable(tolist) else values
        if isinstance(plain, Iterable) and not isinstance(plain, str | bytes | type):
            return list(plain)
    except (RuntimeError, TypeError):  # a meta or sparse tensor
        raise TypeError(f"{name} is {describe(values)}, whose items cannot be read; expected numbers") from None
    return [plain]
