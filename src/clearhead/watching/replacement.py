"""Replacement of a function wherever a loaded Python module refers to it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from torch import nn

Function = Callable[..., Any]
Namespace = dict[str, Any]
COMPILED_FROM = "_torchdynamo_orig_callable"  # attribute of compiled functions


class Replacement:
    """Function that is replaced by a wrapper while models are watched.

    Attributes:
        original: the function itself.
        replaced: the wrapper.
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
        self._wrapper, self._also_compiled = wrapper, also_compiled

    def of_compiled(self, value: object) -> Replacement | None:
        """Return the replacement of a value if it is `torch.compile(original)`; None for any other value."""
        # names first, because vars() allocates a dictionary for most functions
        if not self._also_compiled or type(value) is not FunctionType or value.__name__ != self.original.__name__:
            return None
        source = vars(value).get(COMPILED_FROM)
        if source is None or inspect.unwrap(source) is not self.original:  # torch wraps built-in functions
            return None
        known = next((each for each in self.compiled if each.original is value), None)
        if known is None:
            known = Replacement(value, self._wrapper)
            self.compiled.append(known)
        return known


class Reference(NamedTuple):
    """Name in a namespace that refers to a function or to its wrapper."""

    namespace: Namespace
    name: str
    replacement: Replacement

    def install(self) -> None:
        """Replace the function."""
        self._exchange(self.replacement.original, self.replacement.replaced)

    def remove(self) -> None:
        """Restore the function."""
        self._exchange(self.replacement.replaced, self.replacement.original)

    def _exchange(self, old: Function, new: Function) -> None:
        if self.namespace.get(self.name) is old:
            self.namespace[self.name] = new


class LoadedModules:
    """References to functions in the loaded Python modules, all of which are searched in one pass.

    There are thousands of modules, most of which do not change between two searches.
    """

    def __init__(self) -> None:
        self.references: list[Reference] = []
        self._sizes: dict[int, int] = {}  # of the namespaces that were searched, by id

    def search_again(self) -> None:
        """Search all modules next time, because there is another function."""
        self._sizes.clear()

    def search(self, replacements: Sequence[Replacement]) -> None:
        """Search the modules that are new or have another size since the last search.

        A module that was imported while functions are replaced refers to the wrapper.
        """
        changed = []
        for module in [*sys.modules.values()]:
            namespace = getattr(module, "__dict__", None)
            if isinstance(namespace, dict) and self._sizes.get(id(namespace)) != len(namespace):
                self._sizes[id(namespace)] = len(namespace)
                changed.append(namespace)
        every = [known for each in replacements for known in (each, *each.compiled)]
        wrappers = {id(each.replaced): each for each in every}
        self.references += _references(changed, replacements, wrappers)


def namespaces_of(model: nn.Module) -> list[Namespace]:
    """Return the attributes of the modules of a model, and the global names of their code.

    Code that was run by `exec`, as in some notebooks, has global names outside of loaded Python modules.
    """
    methods = (vars(base).get("forward") for module in model.modules() for base in type(module).__mro__)
    names = {id(method.__globals__): method.__globals__ for method in methods if inspect.isfunction(method)}
    return [*(vars(module) for module in model.modules()), *names.values()]


def references_in(namespaces: Iterable[Namespace], replacements: Sequence[Replacement]) -> list[Reference]:
    """Return all references to the functions themselves in some namespaces."""
    return _references(namespaces, replacements, {})


def _references(
    namespaces: Iterable[Namespace], replacements: Sequence[Replacement], wrappers: dict[int, Replacement]
) -> list[Reference]:
    owners = wrappers | {id(each.original): each for each in replacements}
    references = []
    for namespace in namespaces:
        for name, value in [*namespace.items()]:
            owner = owners.get(id(value))
            if owner is None and type(value) is FunctionType:
                owner = next((known for each in replacements if (known := each.of_compiled(value))), None)
            if owner is not None:
                references.append(Reference(namespace, name, owner))
    return references


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
