"""Jinja environment of the viewer's page and of reports, and the import map of the page's scripts."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from clearhead._utils.modules import import_map, read_scripts

_LOADERS = [PackageLoader("clearhead.viewer", folder) for folder in ("templates", "static")]
TEMPLATES = Environment(loader=ChoiceLoader(_LOADERS), autoescape=True, undefined=StrictUndefined)
STATIC_FOLDER = resources.files("clearhead.viewer") / "static"
MODULES_PATH, FONT_PATH = "/modules/", "/font"  # on the local server


@functools.cache
def scripts() -> dict[str, bytes]:
    """Return the code of the page's modules by file name."""
    return read_scripts(STATIC_FOLDER)


def served_modules() -> dict[str, Any]:
    """Return the import map of the live page, whose modules are files on the local server."""
    return import_map(lambda name, _: MODULES_PATH + name, scripts())
