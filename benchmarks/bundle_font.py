"""Write the Japanese font that clearhead bundles: a subset of BIZ UDPGothic, without hints and layout features.

    apt-get download fonts-morisawa-bizud-gothic && dpkg -x fonts-morisawa-bizud-gothic_*.deb font
    python benchmarks/bundle_font.py font/usr/share/fonts/truetype/bizud-gothic/BIZUDPGothic-Regular.ttf

The characters are those of Windows-31J and JIS X 0208, the four common kanji that neither has, and those of the bundled
translator's vocabulary. Pages and figures draw other characters, such as Latin letters, with the fonts of the system.
"""

import json
import sys
from pathlib import Path

from fontTools import subset

from clearhead._utils.fonts import FIRST_CHARACTER, FONT_FILE

TOKENIZER = Path(__file__).parents[1] / "src/clearhead/translation/en-ja/tokenizer.json"
BYTES = [bytes([byte]) for byte in range(256)]
NAME_IDS = [0, 1, 2, 3, 4, 5, 6, 7, 13, 14]  # copyright, names, version, trademark, license


def characters() -> set[str]:
    """Return the characters that the font should have."""
    codes = [*BYTES, *(lead + trail for lead in BYTES for trail in BYTES)]
    texts = {code.decode(encoding, "ignore") for encoding in ("cp932", "euc_jp") for code in codes}
    vocabulary = json.loads(TOKENIZER.read_text(encoding="utf-8"))["model"]["vocab"]
    listed = set("".join([*texts, *vocabulary, "塡剝頰𠮟"]))
    return {character for character in listed if character >= FIRST_CHARACTER}


def main(source: str) -> None:
    options = subset.Options(hinting=False, layout_features=[], name_IDs=NAME_IDS, notdef_outline=True)
    options.drop_tables += ["BASE", "GSUB", "meta", "vhea", "vmtx"]
    font = subset.load_font(source, options)
    font["cmap"].tables = [table for table in font["cmap"].tables if table.format != 14]  # variants of characters
    subsetter = subset.Subsetter(options)
    subsetter.populate(text="".join(characters()))
    subsetter.subset(font)
    subset.save_font(font, str(FONT_FILE), options)
    print(f"{FONT_FILE}: {FONT_FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
