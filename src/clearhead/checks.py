"""Checks that many arguments share."""

import operator
from typing import SupportsIndex


def whole_number(name: str, value: object, least: int = 1) -> int:
    """`value` as an int of at least `least`; numpy's integers are as good as Python's."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{name} is {value!r}; expected a whole number of at least {least}")
    number = operator.index(value)
    if number < least:
        raise ValueError(f"{name} is {value}; expected a whole number of at least {least}")
    return number
