"""References to functions in loaded Python modules, and in the attributes, classes and code of a model."""

from __future__ import annotations

import functools
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

from torch import nn

from clearhead.watching.replacement import Replacement

Namespace = dict[Any, Any]
# Packages with tens of thousands of names, none of which is bound to another function later. They are searched again
# when their size changes.
SETTLED = sys.stdlib_module_names | {
    "clearhead", "matplotlib", "mpmath", "numpy", "pandas", "scipy", "sklearn", "sympy", "torch", "triton",
}  # fmt: skip
MAX_ENTRIES = 100  # of a list or dict that is searched; vocabularies and tables of characters are larger
FUNCTIONS = frozenset({BuiltinFunctionType, FunctionType})
MAPPINGS = frozenset({dict, OrderedDict, defaultdict})
CONTAINERS = MAPPINGS | {list, tuple, functools.partial}
SEARCHED = FUNCTIONS | CONTAINERS
ENTRIES = FUNCTIONS | {functools.partial}  # of containers
INTERNAL = frozenset(vars(nn.Module()))  # attributes of every module, such as its hooks
Key = tuple[int, Any]


class Reference:
    """Value that refers to a function, and the value that refers to its wrapper instead.

    Attributes:
        owner: object that holds the value: a dict, list, class, function or `functools.partial`.
        name: name or index of the value.
        original: the value with the function.
        replaced: the value with the wrapper.
    """

    __slots__ = ("name", "original", "owner", "replaced")

    def __init__(self, owner: Any, name: Any, original: Any, replaced: Any) -> None:
        self.owner, self.name, self.original, self.replaced = owner, name, original, replaced

    @property
    def key(self) -> Key:
        """Identity of the name. The reference keeps its owner alive."""
        return id(self.owner), self.name

    def is_same(self, other: Reference) -> bool:
        """Return whether both have the same value; another value may have been bound to the name."""
        return self.original is other.original or self.replaced is other.replaced

    def is_original(self) -> bool:
        """Return whether the function is not replaced."""
        return self._value() is self.original

    def install(self) -> None:
        """Replace the function."""
        if self._value() is self.original:
            self._bind(self.replaced)

    def remove(self) -> None:
        """Restore the function."""
        if self._value() is self.replaced:
            self._bind(self.original)

    def _value(self) -> Any:
        owner, name = self.owner, self.name
        if isinstance(owner, dict):
            return owner.get(name)
        if isinstance(owner, list):
            return owner[name] if name < len(owner) else None
        return vars(owner).get(name) if isinstance(owner, type) else getattr(owner, name)

    def _bind(self, value: Any) -> None:
        owner, name = self.owner, self.name
        if isinstance(owner, dict | list):
            owner[name] = value
        elif isinstance(owner, functools.partial):
            _, _, (_, *rest) = owner.__reduce__()  # `func` is read-only, but its state is not
            owner.__setstate__((value, *rest))  # pyright: ignore[reportAttributeAccessIssue]
        elif isinstance(owner, type):
            type.__setattr__(owner, name, value)
        else:
            setattr(owner, name, value)


class Search:
    """Search for references to some functions or their wrappers.

    A module that was imported while functions are replaced refers to the wrapper.
    """

    def __init__(self, replacements: Sequence[Replacement]) -> None:
        self._replacements = replacements
        every = [known for each in replacements for known in (each, *each.compiled)]
        self._owners = {id(function): each for each in every for function in (each.original, each.replaced)}
        self._compiled = frozenset(each.original.__name__ for each in replacements if each.also_compiled)

    def in_namespace(
        self, namespace: Namespace, *, containers: bool = True, exclude: frozenset[str] = frozenset()
    ) -> Iterator[Reference]:
        """Return the references of a namespace.

        Args:
            namespace: names and values.
            containers: also search in each dict, list, tuple and `functools.partial` that is a value.
            exclude: names that are not searched.
        """
        owners, compiled = self._owners, self._compiled
        for name, value in [*namespace.items()]:
            kind = type(value)
            if kind not in SEARCHED or name in exclude:
                continue
            if kind in FUNCTIONS:
                if id(value) in owners or (kind is FunctionType and value.__name__ in compiled):
                    yield from self._of_value(namespace, name, value)
            elif containers:
                yield from self._in_container(namespace, name, value)

    def in_class(self, owner: type) -> Iterator[Reference]:
        """Return the references of the attributes of a class, and of the default arguments of its methods."""
        for name, value in [*vars(owner).items()]:
            if type(value) is staticmethod:
                function: Any = value.__func__
                known = self._owner(function)
                if known is not None and function is known.original:
                    yield Reference(owner, name, value, staticmethod(known.replaced))
                elif known is not None:
                    yield Reference(owner, name, staticmethod(known.original), value)
                elif type(function) is functools.partial:
                    yield from self._of_value(function, "func", function.func)
            elif type(value) is BuiltinFunctionType:
                known = self._owner(value)
                if known is not None:  # a function in Python would become a method; a built-in one does not
                    yield Reference(owner, name, value, staticmethod(known.replaced))
            elif type(value) is FunctionType:
                yield from self._of_value(owner, name, value)
                if value.__defaults__:
                    yield from self._in_container(value, "__defaults__", value.__defaults__)
                if value.__kwdefaults__:
                    yield from self._in_container(value, "__kwdefaults__", value.__kwdefaults__)
            elif type(value) in CONTAINERS:
                yield from self._in_container(owner, name, value)

    def in_model(self, model: nn.Module) -> Iterator[Reference]:
        """Return the references of the modules of a model, of their classes, and of the global names of their code.

        Code that was run by `exec`, as in some notebooks, has global names outside of loaded Python modules.
        """
        classes: dict[type, None] = {}
        for module in model.modules():
            yield from self.in_namespace(vars(module), exclude=INTERNAL)
            classes.update(dict.fromkeys(type(module).__mro__))
        namespaces: dict[int, Namespace] = {}
        for each in classes:
            if _is_settled(each):
                continue
            yield from self.in_class(each)
            functions = (value for value in vars(each).values() if isinstance(value, FunctionType))
            namespaces.update({id(value.__globals__): value.__globals__ for value in functions})
        for namespace in namespaces.values():
            if getattr(sys.modules.get(namespace.get("__name__", "")), "__dict__", None) is not namespace:
                yield from self.in_namespace(namespace)

    def _of_value(self, owner: Any, name: Any, value: Any) -> Iterator[Reference]:
        known = self._owner(value)
        if known is not None:
            yield Reference(owner, name, known.original, known.replaced)

    def _in_container(self, owner: Any, name: Any, value: Any) -> Iterator[Reference]:
        """Return the references in a value, which a name of the owner refers to."""
        kind = type(value)
        if kind is functools.partial:
            yield from self._of_value(value, "func", value.func)
            return
        if not value or len(value) > MAX_ENTRIES:
            return
        if ENTRIES.isdisjoint(map(type, value.values() if kind in MAPPINGS else value)):
            return
        for index, entry in [*value.items()] if kind in MAPPINGS else [*enumerate(value)]:
            if type(entry) is functools.partial:
                yield from self._of_value(entry, "func", entry.func)
            elif type(entry) in FUNCTIONS and kind is not tuple:
                yield from self._of_value(value, index, entry)
        if kind is tuple and any(type(entry) in FUNCTIONS and self._owner(entry) for entry in value):
            yield self._of_tuple(owner, name, value)

    def _of_tuple(self, owner: Any, name: Any, value: tuple) -> Reference:
        known = [self._owner(entry) for entry in value]
        pairs = [*zip(value, known, strict=True)]
        original = tuple(entry if each is None else each.original for entry, each in pairs)
        replaced = tuple(entry if each is None else each.replaced for entry, each in pairs)
        if any(each is not None and entry is each.original for entry, each in pairs):
            return Reference(owner, name, value, replaced)
        return Reference(owner, name, original, value)

    def _owner(self, value: Any) -> Replacement | None:
        known = self._owners.get(id(value))
        if known is None and type(value) is FunctionType:
            known = next((match for each in self._replacements if (match := each.of_compiled(value))), None)
            if known is not None:
                self._owners |= {id(known.original): known, id(known.replaced): known}
        return known


def _is_settled(owner: type) -> bool:
    """Return whether a class is one of a settled package.

    Code that was run by `exec` without a name has the module "builtins".
    """
    module = owner.__module__
    if module.partition(".")[0] not in SETTLED:
        return False
    return getattr(sys.modules.get(module), owner.__name__, None) is owner


class LoadedModules:
    """References in the loaded Python modules.

    There are thousands of modules with 10⁵ names, and a block must start within milliseconds. Modules of `SETTLED`
    packages are therefore searched again only if their size has changed.
    """

    def __init__(self) -> None:
        self._settled: dict[int, int] = {}  # sizes of namespaces, by id
        self._references: list[Reference] = []

    def search_again(self) -> None:
        """Search all modules next time, because there is another function."""
        self._settled.clear()
        self._references.clear()

    def has_others(self, replacements: Sequence[Replacement]) -> bool:
        """Return whether anything refers to a wrapper, apart from the references that are kept here."""
        every = [known for each in replacements for known in (each, *each.compiled)]
        kept = Counter(id(reference.replaced) for reference in self._references)
        return any(each.count_references() > kept[id(each.replaced)] for each in every)

    def references(self, search: Search) -> list[Reference]:
        """Return the references of all loaded modules."""
        others: list[Reference] = []
        for name, module in [*sys.modules.items()]:
            namespace = getattr(module, "__dict__", None)
            if not isinstance(namespace, dict):
                continue
            if name.partition(".")[0] not in SETTLED:
                others += search.in_namespace(namespace)
            elif self._settled.get(id(namespace)) != len(namespace):
                self._settled[id(namespace)] = len(namespace)
                self._references += search.in_namespace(namespace, containers=False)
        return [*self._references, *others]


class InstalledReferences:
    """References that are replaced, each until the last block that requires it has ended."""

    def __init__(self) -> None:
        self._installed: dict[Key, tuple[Reference, int]] = {}  # with the number of blocks
        self._shared: set[Key] = set()

    def install(self, references: Iterable[Reference]) -> list[Key]:
        """Replace functions for one block. Return what `remove` takes."""
        return [key for reference in references if (key := self._install(reference)) is not None]

    def install_shared(self, references: Iterable[Reference]) -> None:
        """Replace functions until the last of all blocks has ended."""
        for reference in references:
            key = reference.key
            if key not in self._shared:
                self._shared.update(self.install([reference]))
            else:  # another value may have been bound to the name since
                known, blocks = self._installed[key]
                known = known if known.is_same(reference) else reference
                known.install()
                self._installed[key] = known, blocks

    def remove(self, keys: Iterable[Key]) -> None:
        """Restore functions that no other block requires."""
        for key in keys:
            reference, blocks = self._installed.pop(key)
            if blocks > 1:
                self._installed[key] = reference, blocks - 1
            else:
                reference.remove()

    def remove_shared(self) -> None:
        """Restore the functions that all blocks share."""
        self.remove(self._shared)
        self._shared.clear()

    def _install(self, reference: Reference) -> Key | None:
        known, blocks = self._installed.get(reference.key, (reference, 0))
        if blocks and known.is_same(reference):
            reference = known
        elif not reference.is_original():
            return None  # bound to the wrapper within a block; restored after the last one
        reference.install()
        self._installed[reference.key] = reference, blocks + 1
        return reference.key
