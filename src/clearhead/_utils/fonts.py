"""Japanese font of pages and figures, bundled because many systems have none."""

from __future__ import annotations

import base64
import functools
import re
from importlib import resources
from io import BytesIO
from pathlib import Path

from clearhead._utils.extras import needs_extra

FAMILY = "BIZ UDPGothic"  # page.css, course.css and the scripts that draw text name it too
FIRST_CHARACTER = "\u3000"  # earlier characters, such as Latin letters, are drawn with the fonts of the system
_UNICODE_RANGE = "U+3000-30FF, U+31F0-9FFF, U+F900-FAFF, U+FF00-FFEF, U+20B9F"  # of the characters in the font
FONT_FILE = Path(str(resources.files("clearhead._utils") / "japanese_font" / "BIZUDPGothic-subset.ttf"))
_ESCAPED = re.compile(r"\\u([3-9a-f][0-9a-f]{3})")  # a character in JSON


def embed_font(page: str, text: str | None = None) -> str:
    """Return a page with the glyphs of its Japanese characters in its first style sheet.

    Args:
        page: HTML with a `<style>` element. Its content security policy has `font-src data:`.
        text: text that the page shows, in which JSON may escape characters (default: the page itself).
    """
    text = page if text is None else text
    font = font_subset(text + "".join(chr(int(code, 16)) for code in _ESCAPED.findall(text)))
    if not font:
        return page
    rule = font_face(f"data:font/woff;base64,{base64.b64encode(font).decode()}")
    return page.replace("<style>", f"<style>\n{rule}", 1)


def font_face(url: str) -> str:
    """Return the CSS rule of the font, which a browser loads from `url` when a page has Japanese characters."""
    return f'@font-face {{ font-family: "{FAMILY}"; src: url({url}); unicode-range: {_UNICODE_RANGE}; }}'


def font_subset(text: str) -> bytes:
    """Return a WOFF font with the glyphs that the bundled font has for a text; b"" if it has none."""
    return _subset("".join(sorted({character for character in text if character >= FIRST_CHARACTER})))


@functools.lru_cache(maxsize=16)
def _subset(characters: str) -> bytes:
    if not characters:
        return b""
    with needs_extra("view", "a page with Japanese text"):
        from fontTools import subset

    options = subset.Options(flavor="woff", notdef_outline=True)
    with subset.load_font(str(FONT_FILE), options) as font:
        codes = {ord(character) for character in characters} & (font.getBestCmap() or {}).keys()
        if not codes:
            return b""
        subsetter = subset.Subsetter(options)
        subsetter.populate(unicodes=codes)
        subsetter.subset(font)
        written = BytesIO()
        subset.save_font(font, written, options)
    return written.getvalue()
