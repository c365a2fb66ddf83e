"""Registry of the functions that compute attention, which are replaced while models are watched."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn

from clearhead._utils.torch_internals import compilation_rules, discard_compilation_rules
from clearhead.watching.references import InstalledReferences, LoadedModules, Namespace, Search
from clearhead.watching.replacement import MethodReplacement, Replacement

AnyReplacement = Replacement | MethodReplacement

# adapters that are only needed with some library, by its name; they register themselves when they are imported
OPTIONAL = {"transformers": "clearhead.huggingface"}
_adapters: dict[str, list[AnyReplacement]] = {}
_loaded, _installed = LoadedModules(), InstalledReferences()
_users = 0  # active blocks
_rules: object = None  # of torch.compile, looked up while no function is replaced
_LOCK = threading.Lock()


def register(name: str, replacements: Iterable[AnyReplacement]) -> None:
    """Register the functions that one kind of attention calls."""
    with _LOCK:
        if name not in _adapters:
            _adapters[name] = list(replacements)
            _loaded.search_again()


def load_optional() -> None:
    """Load the adapters of libraries that are loaded."""
    for library, adapter in OPTIONAL.items():
        if library in sys.modules:
            importlib.import_module(adapter)


@contextmanager
def functions_replaced(model: nn.Module) -> Iterator[None]:
    """Replace all registered functions within a `with` block, in Python modules and in a model."""
    global _users, _rules
    with _LOCK:
        if not _users:
            _rules = compilation_rules()
        functions, methods = _replacements()
        search = Search(functions)
        _installed.install_shared(_loaded.references(search))
        keys = _installed.install([*search.in_model(model)])
        for method in methods:
            method.install()
        _users += 1
    try:
        yield
    finally:
        with _LOCK:
            _users -= 1
            _installed.remove(keys)
            if not _users:
                _restore(model)


@contextmanager
def functions_replaced_in(namespace: Namespace) -> Iterator[None]:
    """Replace all registered functions within a `with` block, in one namespace."""
    with _LOCK:
        keys = _installed.install([*Search(_replacements()[0]).in_namespace(namespace, containers=False)])
    try:
        yield
    finally:
        with _LOCK:
            _installed.remove(keys)


def _restore(model: nn.Module) -> None:
    """Restore everything after the last block, including names that were bound to a wrapper within a block."""
    _installed.remove_shared()
    if compilation_rules() is not _rules:  # looked up within a block, where names refer to wrappers
        discard_compilation_rules()
    functions, methods = _replacements()
    for method in methods:
        method.remove()
    if _loaded.has_others(functions):
        search = Search(functions)
        for reference in [*_loaded.references(search), *search.in_model(model)]:
            reference.remove()


def _replacements() -> tuple[list[Replacement], list[MethodReplacement]]:
    every = [replacement for replacements in _adapters.values() for replacement in replacements]
    functions = [each for each in every if isinstance(each, Replacement)]
    return functions, [each for each in every if isinstance(each, MethodReplacement)]
