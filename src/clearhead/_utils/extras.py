"""Optional dependencies: the packages of each extra, and errors that name the extra to install."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

# extra -> {name to import: name to install}; pyproject.toml has the versions
EXTRAS = {
    "explain": {
        "fontTools": "fonttools",
        "jinja2": "jinja2",
        "latex2mathml": "latex2mathml",
        "openpyxl": "openpyxl",
        "tomlkit": "tomlkit",
    },
    "view": {"bokeh": "bokeh", "fontTools": "fonttools", "jinja2": "jinja2", "PIL": "pillow"},
    "translate": {"tokenizers": "tokenizers", "sacrebleu": "sacrebleu", "filelock": "filelock"},
    "hf": {"transformers": "transformers", "gguf": "gguf", "accelerate": "accelerate"},
    "plot": {"matplotlib": "matplotlib"},
    "vllm": {"vllm": "vllm"},
}


@contextmanager
def needs_extra(extra: str, feature: str) -> Iterator[None]:
    """Turn a failed import of a package into an error that names the extra to install.

    Examples:
        >>> with needs_extra("view", "clearhead view"):
        ...     import bokeh
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = EXTRAS[extra].get((error.name or "").partition(".")[0])
        if package is None:  # a dependency of the package, whose error is more precise
            raise
        message = f"{feature} needs {package}: pip install 'clearhead[{extra}]'"
        raise ImportError(message, name=error.name) from None


def missing_packages(extra: str) -> list[str]:
    """Return the packages of an extra that are not installed, without importing any."""
    return [package for module, package in EXTRAS[extra].items() if importlib.util.find_spec(module) is None]
