"""Tests of the glossary: the viewer's terms agree with the documentation."""

import re

from support.paths import ROOT

ENTRIES = re.findall(r"^### (.*)$", (ROOT / "docs/glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
TERM = re.compile(r'\{ name: "(?P<name>[^"]+)", entry: "(?P<entry>[^"]+)",.* text: "(?P<text>[^"]+)" \},')
TERMS = TERM.findall((ROOT / "src/clearhead/viewer/static/terms.js").read_text(encoding="utf-8"))
LABELS = (
    "first token",
    "previous token",
    "next token",
    "self",
    "positional",
    "delimiter",
    "induction",
    "broad",
    "sharp",
)


def test_entries_are_unique_and_sorted():
    assert len(ENTRIES) == len({entry.lower() for entry in ENTRIES})
    assert sorted(ENTRIES, key=lambda entry: re.sub(r"[^a-z0-9 ]", " ", entry.lower())) == ENTRIES


def test_terms_of_the_page_are_short_and_in_the_glossary():
    names = [name for name, _, _ in TERMS]
    assert len(names) > 35
    assert names == sorted(names, key=str.lower)
    assert set(LABELS) <= set(names)
    assert {entry for _, entry, _ in TERMS} <= set(ENTRIES)
    long_texts = [name for name, _, text in TERMS if len(text.split()) > 25 or not text.endswith(".")]
    assert not long_texts
