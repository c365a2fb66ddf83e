"""Checks that many arguments share."""

import operator


def whole_number(name: str, value: object, least: int = 1) -> int:
    """`value` as an int of at least `least`; numpy's integers are as good as Python's."""
    try:
        number = least if isinstance(value, bool) else operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        number = None
    if isinstance(value, bool) or number is None:
        raise TypeError(f"{name} is {value!r}; expected a whole number of at least {least}")
    if number < least:
        raise ValueError(f"{name} is {value}; expected a whole number of at least {least}")
    return number
