"""Fonts of the texts on figures: matplotlib's own, the bundled Japanese font, then those of the system."""

from __future__ import annotations

import contextlib
import unicodedata
import warnings
from collections.abc import Sequence
from functools import cache

from clearhead._utils.fonts import FAMILY, FONT_FILE

_BOX = "□"  # instead of a character that no font has
_warned: set[str] = set()  # packages that a warning has named


def drawable(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    r"""Return texts as matplotlib draws them literally, and the font families that have their characters.

    A dollar sign is escaped, because matplotlib renders $x$ as TeX. A character that no installed font has becomes a
    box here, with one warning; matplotlib would warn of each of them whenever the figure is drawn.
    """
    from matplotlib.font_manager import FontProperties, findfont, fontManager

    if not any(entry.name == FAMILY for entry in fontManager.ttflist):
        fontManager.addfont(FONT_FILE)
    families = [*FontProperties().get_family(), FAMILY]
    paths = (str(findfont(FontProperties(family=[family]))) for family in families)
    missing = set("".join(texts)).difference(*map(_characters, paths))
    if missing:
        families += _system_families(missing)
    for package in {_package(character) for character in missing} - _warned:
        _warned.add(package)
        sample = min(character for character in missing if _package(character) == package)
        warnings.warn(
            f"no installed font has {sample!r}, drawn as {_BOX}; install one, such as Debian's package {package}",
            stacklevel=4,  # the call of plot_head
        )
    boxes = {ord(character): "" if unicodedata.category(character) in ("Cf", "Mn") else _BOX for character in missing}
    return [text.translate(boxes).replace("$", r"\$") for text in texts], families


@cache
def _characters(path: str) -> frozenset[str]:
    from matplotlib.ft2font import FT2Font

    return frozenset(map(chr, FT2Font(path).get_charmap()))


def _system_families(missing: set[str]) -> list[str]:
    """Return the families of installed fonts that have some of the characters, and remove these from the set."""
    from matplotlib import get_data_path
    from matplotlib.font_manager import findSystemFonts, fontManager

    for path in set(findSystemFonts()) - {entry.fname for entry in fontManager.ttflist}:
        with contextlib.suppress(OSError, RuntimeError):  # installed after matplotlib's list was made; bitmaps fail
            fontManager.addfont(path)
    bundled = get_data_path()  # matplotlib's other fonts have symbols for TeX at the codes of letters, or boxes
    entries = [entry for entry in fontManager.ttflist if not entry.fname.startswith(bundled)]
    families = []
    for entry in sorted(entries, key=lambda entry: (entry.style != "normal", entry.weight not in (400, "normal"))):
        if covered := missing & _characters(entry.fname):
            families.append(entry.name)
            missing -= covered
    return families


def _package(character: str) -> str:
    """Return the Debian package of a font that has a character."""
    if unicodedata.category(character) == "So":  # emoji; matplotlib does not draw fonts in color
        return "fonts-symbola"
    is_cjk = unicodedata.name(character, "").startswith(("CJK", "HANGUL", "BOPOMOFO"))
    return "fonts-noto-cjk" if is_cjk else "fonts-noto-core"
