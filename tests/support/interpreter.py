"""Shorter launches in Triton's interpreter."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import triton.language as tl
from triton.runtime import interpreter

PATCH_LANGUAGE = interpreter._patch_lang


@contextmanager
def language_patched_once_per_launch() -> Iterator[None]:
    """Let the interpreter patch `triton.language` once per launch.

    It would patch all functions again at each call of a device function: half of the time of a launch. The context may
    be nested, because pytest ends the fixture of a package only after tests of the next one.
    """
    patch_language, patched = interpreter._patch_lang, set()
    if patch_language is not PATCH_LANGUAGE:
        yield
        return

    class Scope(interpreter._LangPatchScope):
        def restore(self) -> None:
            patched.clear()
            super().restore()

    def patch_once(function: Callable) -> Scope:
        scope, languages = Scope(), _languages(function)
        if not languages <= patched:
            scope._changes = patch_language(function)._changes
            patched.update(languages)
        return scope

    interpreter._patch_lang = patch_once
    try:
        yield
    finally:
        interpreter._patch_lang = patch_language


@cache
def _languages(function: Callable) -> frozenset[str]:
    """Return the modules that the interpreter patches for a function."""
    modules = function.__globals__.values()
    return frozenset(language.__name__ for language in (tl, tl.core) if any(module is language for module in modules))
