"""Plain English: how docstrings start, and phrases that this project avoids (CONTRIBUTING.md, "Language")."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.paths import ROOT

PYTHON = sorted(path for folder in ("src", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))
# Worked examples quote other texts, so they are left out.
OTHERS = sorted(
    path
    for pattern in ("docs/**/*.md", "*.md", "*.toml", "*.yml", ".*.yaml", ".github/**/*.yml", ".ci/*", "Makefile",
                    "src/clearhead/viewer/**/*.js", "src/clearhead/viewer/**/*.html", "src/clearhead/**/templates/*",
                    "src/clearhead/explain/course/static/*", "src/clearhead/explain/course/pages/*.md")
    for path in ROOT.glob(pattern)
    if path.is_file()
)  # fmt: skip
THIS = Path(__file__)

# A docstring that starts with one of these is a fragment: a relative clause or a preposition, without a head noun.
FRAGMENT = re.compile(r"(Of|What|Where|Those|How|Whether|Which|Who|By|From|As|The same|That|When)\b")

PHRASES = {
    r"(?<!there )(?<!There )\b(is|are|was|were) no (?!longer|more|less|fewer|effect|such)": "is not a",
    r"\b(is|are) none\b(?! of)": "does not exist, there is no ...",
    r"\bat hand\b": "current, available",
    r"\bof (its|our|their|his|your) own\b": "separate, its",
    r"\bmay be had\b": "is available",
    r"\bwhere none is given\b": "default: ...",
    r"\b(is|are) not known to\b": "is not supported by",
    r"\bshares? (it|them|that|those) out\b": "splits, distributes",
}


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every docstring of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def test_docstrings_start_with_a_verb_or_a_noun():
    fragments = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in PYTHON
        for line, text in docstrings(path)
        if FRAGMENT.match(text)
    ]
    assert not fragments, "\n".join(fragments)


@pytest.mark.parametrize("pattern", PHRASES)
def test_avoided_phrases_do_not_come_back(pattern):
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in [*PYTHON, *OTHERS]
        if path != THIS
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert not lines, f"write {PHRASES[pattern]!r} instead:\n" + "\n".join(lines)
