"""Calls of a model with inputs in any form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from clearhead._utils.checks import describe

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]  # one argument, positional arguments or keyword arguments


def check_inputs(name: str, inputs: object) -> Inputs:
    """Return the inputs of a model.

    Raises:
        TypeError: if they are something else.
    """
    if not isinstance(inputs, Tensor | tuple | Mapping):
        raise TypeError(
            f"{name} is {describe(inputs)}; expected a tensor, a tuple of arguments, or a dict of keyword arguments"
        )
    return inputs


def call_model(model: Any, inputs: Inputs) -> Any:
    """Run a model on its inputs."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)
