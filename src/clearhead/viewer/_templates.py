"""Jinja environment of the viewer's page and of reports, and the import map of their scripts."""

from __future__ import annotations

import base64
from collections.abc import Callable
from importlib import resources
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

_LOADERS = [PackageLoader("clearhead.viewer", folder) for folder in ("templates", "static")]
TEMPLATES = Environment(loader=ChoiceLoader(_LOADERS), autoescape=True, undefined=StrictUndefined)
STATIC_FOLDER = resources.files("clearhead.viewer") / "static"
MODULES_PATH = "/modules/"  # of the scripts on the local server


def served_modules() -> dict[str, Any]:
    """Return the import map of the live page, whose modules are files on the local server."""
    return _import_map(lambda name, _: MODULES_PATH + name)


def inline_modules() -> dict[str, Any]:
    """Return an import map whose modules are data URLs, because a page from a file cannot import other files."""
    return _import_map(lambda _, code: f"data:text/javascript;base64,{base64.b64encode(code).decode()}")


def _import_map(url: Callable[[str, bytes], str]) -> dict[str, Any]:
    scripts = sorted(
        (path for path in STATIC_FOLDER.iterdir() if path.name.endswith(".js")), key=lambda path: path.name
    )
    return {"imports": {f"clearhead/{path.name}": url(path.name, path.read_bytes()) for path in scripts}}
