"""Scores are computed in the dtype stated, whatever autocast would make of a matrix product."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def without_autocast(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function with autocast switched off inside it."""

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if not (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
            return function(*args, **kwargs)
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return function(*args, **kwargs)

    return call


def uses_tf32() -> bool:
    """Whether torch is told to multiply float32 in TF32 on CUDA, by its older or its newer setting."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # which it raises where the newer one was used
        return torch.backends.cuda.matmul.fp32_precision == "tf32"
