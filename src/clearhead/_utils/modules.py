"""Import maps, which resolve the names of JavaScript modules, such as "clearhead/calculate.js"."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from importlib.resources.abc import Traversable

# comments on lines without code: a third of the scripts, which a page does not need
_COMMENT = re.compile(rb"^[ \t]*(?://[^\n]*|/\*(?:(?!\*/).)*\*/)[ \t]*\n", re.MULTILINE | re.DOTALL)


def read_scripts(*folders: Traversable) -> dict[str, bytes]:
    """Return the code of all scripts in some folders by file name."""
    scripts: dict[str, bytes] = {}
    for path in (path for folder in folders for path in folder.iterdir() if path.name.endswith(".js")):
        if path.name in scripts:
            raise ValueError(f"{path.name} occurs in several folders; expected different names of scripts")
        scripts[path.name] = path.read_bytes()
    return dict(sorted(scripts.items()))


def import_map(url: Callable[[str, bytes], str], scripts: Mapping[str, bytes]) -> dict[str, dict[str, str]]:
    """Return the import map of scripts, whose addresses `url` returns from their file names and code."""
    return {"imports": {f"clearhead/{name}": url(name, code) for name, code in scripts.items()}}


def inline_modules(*folders: Traversable) -> dict[str, dict[str, str]]:
    """Return an import map whose modules are data URLs, because a page from a file cannot import other files."""
    return import_map(lambda _, code: data_url(code), read_scripts(*folders))


def data_url(code: bytes) -> str:
    """Return a script as a data URL, without its comments."""
    return f"data:text/javascript;base64,{base64.b64encode(_COMMENT.sub(b'', code)).decode()}"
