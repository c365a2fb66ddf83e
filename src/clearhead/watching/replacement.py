"""Replacement of functions and methods by wrappers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any

Function = Callable[..., Any]
COMPILED_FROM = "_torchdynamo_orig_callable"  # attribute of compiled functions


class Replacement:
    """Function that is replaced by a wrapper while models are watched.

    Attributes:
        original: the function itself.
        replaced: the wrapper.
        also_compiled: whether `torch.compile(original)` is replaced too.
        compiled: replacements of `torch.compile(original)` that exist.
    """

    def __init__(self, original: Function, wrapper: Callable[..., Any], *, also_compiled: bool = False) -> None:
        """Prepare a replacement.

        Args:
            original: the function to replace.
            wrapper: called with the original and then with the arguments of each call.
            also_compiled: also replace `torch.compile(original)`, which the wrapper then gets as the original.
        """
        self.original, self.replaced = original, _wrap(original, wrapper)
        self.compiled: list[Replacement] = []
        self.also_compiled, self._wrapper = also_compiled, wrapper
        self._count = sys.getrefcount(self.replaced)

    def count_references(self) -> int:
        """Return how many references to the wrapper exist, other than those of this object."""
        return sys.getrefcount(self.replaced) - self._count

    def of_compiled(self, value: object) -> Replacement | None:
        """Return the replacement of a value if it is `torch.compile(original)`; None for any other value."""
        # names first, because vars() allocates a dictionary for most functions
        if not self.also_compiled or type(value) is not FunctionType or value.__name__ != self.original.__name__:
            return None
        source = vars(value).get(COMPILED_FROM)
        if source is None or inspect.unwrap(source) is not self.original:  # torch wraps built-in functions
            return None
        known = next((each for each in self.compiled if each.original is value), None)
        if known is None:
            known = Replacement(value, self._wrapper)
            self.compiled.append(known)
        return known


class MethodReplacement:
    """Method of a class that is replaced by a wrapper while models are watched."""

    def __init__(self, owner: type, name: str, wrapper: Callable[..., Any], instances: Sequence[object] = ()) -> None:
        """Prepare a replacement.

        Args:
            owner: the class.
            name: name of the method.
            wrapper: called with the original method and then with the arguments of each call.
            instances: instances that compiled graphs may use. They get an attribute, because graphs that were compiled
                before have guards on the attributes of an instance and not on the methods of its class.
        """
        self._owner, self._name, self._original = owner, name, getattr(owner, name)
        self._replaced = _wrap(self._original, wrapper)
        self._instances, self._is_inherited = instances, name not in vars(owner)

    def install(self) -> None:
        setattr(self._owner, self._name, self._replaced)
        for instance in self._instances:
            setattr(instance, self._name, MethodType(self._replaced, instance))

    def remove(self) -> None:
        if not self._is_inherited:
            setattr(self._owner, self._name, self._original)
        elif self._name in vars(self._owner):
            delattr(self._owner, self._name)
        for instance in self._instances:
            vars(instance).pop(self._name, None)


def _wrap(function: Function, wrapper: Callable[..., Any]) -> Function:
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return wrapper(function, *args, **kwargs)

    return replaced
