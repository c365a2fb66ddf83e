"""Tests of the bundled Japanese font and of the glyphs that pages embed."""

import json
import re

from clearhead._utils.fonts import FONT_FILE, embed_font, font_subset
from support.fonts import embedded, glyphs
from support.paths import ROOT

PAGE = "<head><style>\nbody {}</style><style></style></head>"


def test_font_has_the_translators_vocabulary_and_common_japanese():
    tokenizer = json.loads((ROOT / "src/clearhead/translation/en-ja/tokenizer.json").read_text(encoding="utf-8"))
    expected = set("".join(tokenizer["model"]["vocab"]))
    for row in range(1, 95):  # JIS X 0208
        expected |= set(
            bytes(byte for cell in range(1, 95) for byte in (0xA0 + row, 0xA0 + cell)).decode("euc_jp", "ignore")
        )
    assert {letter for letter in expected if letter >= "\u3000"} <= glyphs(FONT_FILE)
    assert min(glyphs(FONT_FILE)) == "\u3000"


def test_page_embeds_the_glyphs_that_it_uses():
    page = PAGE + "<p>私→本 \U0001f642 한</p>" + json.dumps("読")
    changed = embed_font(page)
    assert embedded(changed) == set("私本読")
    assert changed.replace(re.search("@font-face.*\n", changed)[0], "") == page
    assert changed.index("@font-face") < changed.index("body {}")
    assert len(changed) - len(page) < 3000
    assert embedded(embed_font(PAGE, "彼")) == {"彼"}


def test_page_without_japanese_stays_as_it_is():
    for text in ("a → b − c", "\U0001f642", "한국", "\ud83d", json.dumps("\u00e9\u0645\U0001f642")):
        assert embed_font(PAGE + text) == PAGE + text
    assert font_subset("") == b""


def test_same_text_gives_the_same_font():
    assert font_subset("私の本") == font_subset("本の私私")
    assert font_subset("私") != font_subset("本")
