"""Scripts that a page needs: the modules that it names and all modules that these import."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import resources

from clearhead._utils.modules import data_url

_COURSE, _LIVE = (
    resources.files(package) / "static" for package in ("clearhead.explain.course", "clearhead.explain.live")
)
_IMPORT = re.compile(r"""(?:\bfrom\s*|\bimport\s*\(?\s*)["']clearhead/([\w.-]+)["']""")


def import_map(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return an import map with these modules and what they import, as data URLs.

    Raises:
        ValueError: a module does not exist.
    """
    codes: dict[str, bytes] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in codes:
            codes[name] = read_static(name)
            waiting += _IMPORT.findall(codes[name].decode())
    return {"imports": {f"clearhead/{name}": data_url(code) for name, code in sorted(codes.items())}}


def read_static(name: str) -> bytes:
    """Return the content of a script or style sheet."""
    for folder in (_COURSE, _LIVE):
        if (folder / name).is_file():
            return (folder / name).read_bytes()
    raise ValueError(f"there is no file {name} in the folder static")


def has_static(name: str) -> bool:
    """Return whether a script or style sheet exists."""
    return any((folder / name).is_file() for folder in (_COURSE, _LIVE))


def live_styles() -> list[str]:
    """Return the names of the style sheets of live parts."""
    return sorted(path.name for path in _LIVE.iterdir() if path.name.endswith(".css"))
