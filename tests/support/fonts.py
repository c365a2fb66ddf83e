"""Glyphs of fonts, and of the fonts that pages and pictures embed."""

import base64
import io
import re
from pathlib import Path

from fontTools.ttLib import TTFont

from clearhead._utils.fonts import FAMILY


def glyphs(font: Path | io.BytesIO) -> set[str]:
    """Return the characters of a font."""
    return set(map(chr, TTFont(font).getBestCmap()))


def embedded(document: str) -> set[str]:
    """Return the characters of the font in a document; an empty set if it has none."""
    face = re.search(rf'@font-face {{ font-family: "{FAMILY}"; src: url\("?data:font/woff;base64,([^")]*)', document)
    return glyphs(io.BytesIO(base64.b64decode(face[1]))) if face else set()
