"""Recordings of a model that a function of any Python module returns together with its inputs."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from clearhead._utils.checks import describe
from clearhead._utils.text import one_line
from clearhead.recording.media import Media
from clearhead.recording.recording import Recording
from clearhead.watching._model_calls import call_model, check_inputs
from clearhead.watching._unwrap import unwrap
from clearhead.watching.seen import Seen
from clearhead.watching.watcher import watch

RESULT = "(model, inputs) or (model, inputs, tokens)"


def record_function(name: str, *, device: torch.device | str | None = None, values: bool = False) -> Recording:
    """Call a function that returns a model and its inputs, run the model, and return its attention.

    Imports the module, from the current folder or an installed package, and therefore runs its code.

        def example():                                  # in my_model.py
            model, tokens = load_my_model()
            return model, {"input_ids": encode(tokens)}, tokens

        record_function("my_model:example")

    Args:
        name: `package.module:function`. The function has no required arguments and returns `(model, inputs)` or
            `(model, inputs, tokens)`: a torch module, its inputs (a tensor, a tuple of arguments, or a dict of keyword
            arguments) with one sequence, and the text of each token. The model runs in eval mode, without gradients.
        device: device to move the model and its inputs to. Default: the one that they are on.
        values: record the values too.

    Raises:
        ValueError: if there is no such function, it fails, or it returns something else.
    """
    model, inputs, tokens = _checked(name, _call(name, _function(name)))
    module = unwrap(model).eval()
    if device is not None:
        module.to(device)
        inputs = _moved(inputs, device)
    try:
        with torch.no_grad(), watch(module, values=values) as seen:
            _run(name, model, inputs)
        return recording_of_one(name, seen, tokens)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{name}: {error}") from error


def recording_of_one(name: str, seen: Seen, tokens: Any = None, media: Media | None = None) -> Recording:
    """Return the attention of a model that ran on one sequence, under a name."""
    for watched in seen.values():
        count = watched.weights.shape[0]
        if count > 1:
            raise ValueError(
                f"{name}: {watched.name!r} attends within {count} sequences or windows; expected one. Use"
                " clearhead.watch in Python and choose one with seen.recording(batch=0)"
            )
    return dataclasses.replace(seen.recording(tokens, media=media), model=name)


def _function(name: str) -> Callable[..., Any]:
    module_name, _, function_name = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        package = error.name if isinstance(error, ModuleNotFoundError) else None
        if package is not None and (module_name == package or module_name.startswith(f"{package}.")):
            raise ValueError(
                f"{name}: there is no module {package!r}, neither in the current folder nor installed"
            ) from error
        raise ValueError(f"{name}: the import of {module_name} failed: {_described(error)}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        kind = "no" if function is None else f"{describe(function)} as"
        raise ValueError(f"{name}: {module_name} has {kind} {function_name!r}; expected a function")
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ValueError(f"{name}: {error}; expected a function without required arguments") from None
    except ValueError:
        pass  # a function written in C may have no signature
    return function


def _call(name: str, function: Callable[..., Any]) -> Any:
    try:
        return function()
    except Exception as error:
        raise ValueError(f"{name} raised {_described(error)}") from error


def _checked(name: str, result: Any) -> tuple[Any, Any, Any]:
    """Return the parts of a function's result."""
    if not isinstance(result, tuple) or len(result) not in (2, 3):
        count = f" of {len(result)}" if isinstance(result, tuple) else ""
        raise ValueError(f"{name} returned {describe(result)}{count}; expected {RESULT}")
    model, inputs, *rest = result
    try:
        unwrap(model)
    except TypeError as error:
        raise ValueError(f"{name} returned {RESULT.partition(' or')[0]}, but {error}") from None
    try:
        return model, check_inputs("inputs", inputs), rest[0] if rest else None
    except TypeError as error:
        raise ValueError(f"{name} returned {RESULT.partition(' or')[0]}, but {error}") from None


def _run(name: str, model: Any, inputs: Any) -> None:
    try:
        call_model(model, inputs)
    except Exception as error:
        raise ValueError(f"{name}: the model raised {_described(error)}") from error


def _moved(inputs: Any, device: torch.device | str) -> Any:
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    if isinstance(inputs, Mapping):
        return {key: _moved(value, device) for key, value in inputs.items()}
    if type(inputs) in (list, tuple):
        return type(inputs)(_moved(value, device) for value in inputs)
    return inputs


def _described(error: Exception) -> str:
    """Return the type and the message of an error in code that is not part of clearhead."""
    name = type(error).__name__
    return f"{name}: {one_line(error)}" if str(error).strip() else name
