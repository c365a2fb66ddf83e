"""Precision of matrix products: autocast and TF32."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def without_autocast(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Disable autocast inside a function, so that scores are computed in their documented dtype."""

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if not (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
            return function(*args, **kwargs)
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return function(*args, **kwargs)

    return call


def uses_tf32() -> bool:
    """Return whether torch multiplies float32 in TF32 on CUDA, by its old or its new setting."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # the old setting cannot be read after the new one was used
        return torch.backends.cuda.matmul.fp32_precision == "tf32"
