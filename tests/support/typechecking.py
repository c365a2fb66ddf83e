"""Run-time checker of shape annotations for `make test-shapes`.

jaxtyping's import hook passes every function to `check`. Only annotations with a shape, such as
`Float[Tensor, "batch heads"]`, are checked. pyright checks the others.
"""

import re
from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

SHAPE = re.compile(r"\b(Bool|Float|Float64|Int|Integer|UInt8)\[")
_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))  # accepts an int for a float


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with checks of its arguments and results that are annotated with shapes."""
    if isinstance(function, type):
        return function
    annotations = {name: hint for name, hint in function.__annotations__.items() if SHAPE.search(str(hint))}
    if not annotations:
        return function
    function.__annotations__ = annotations
    return _beartype(function)
