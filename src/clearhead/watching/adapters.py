"""Registry of the functions that compute attention, which are replaced while models are watched."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

from clearhead.watching.replacement import (
    LoadedModules,
    MethodReplacement,
    Replacement,
    namespaces_of,
    references_in,
)

AnyReplacement = Replacement | MethodReplacement

# adapters that are only needed with some library, by its name; they register themselves when they are imported
OPTIONAL = {"transformers": "clearhead.huggingface"}
_adapters: dict[str, list[AnyReplacement]] = {}
_loaded = LoadedModules()
_users = 0
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
def functions_replaced(model: nn.Module | None = None) -> Iterator[None]:
    """Replace all registered functions within a `with` block, in Python modules and in attributes of a model."""
    namespaces = [] if model is None else namespaces_of(model)
    global _users
    with ExitStack() as stack:
        with _LOCK:
            _users += 1
            functions, methods = _replacements()
            _loaded.search(functions)
            for each in [*_loaded.references, *methods]:
                each.install()
            for reference in references_in(namespaces, functions):  # the others are replaced already
                reference.install()
                stack.callback(reference.remove)
        try:
            yield
        finally:
            with _LOCK:
                _users -= 1
                if not _users:
                    functions, methods = _replacements()
                    _loaded.search(functions)
                    for each in [*_loaded.references, *methods]:
                        each.remove()


def _replacements() -> tuple[list[Replacement], list[MethodReplacement]]:
    every = [replacement for replacements in _adapters.values() for replacement in replacements]
    functions = [each for each in every if isinstance(each, Replacement)]
    return functions, [each for each in every if isinstance(each, MethodReplacement)]
