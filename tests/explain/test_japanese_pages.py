"""Tests of Japanese text on the pages of worked examples, audits, exercises and films: each embeds its glyphs."""

import json

import pytest
import torch

from clearhead import MultiHeadAttention, trace
from clearhead.explain import load, parse
from clearhead.explain.course.catalog import FOLDER
from clearhead.explain.course.film_page import write_film_page
from clearhead.explain.exercises import exercise, mark, render_marks, render_sheet, to_toml
from clearhead.explain.render import _html, render, render_audit
from support.audited_texts import life
from support.fonts import embedded


def test_worked_examples_embed_the_glyphs_of_their_tokens(monkeypatch):
    traced = trace(MultiHeadAttention(4, 2), torch.randn(3, 4), tokens=["私", "は", "本"])
    assert embedded(render(traced, "html", title="題")) == set("私は本題")
    monkeypatch.setattr(_html, "MAX_LIVE_PAGE", 0)  # scripts write the steps, from tokens in JSON
    assert embedded(render(traced, "html", title="題")) == set("私は本題")
    assert "@font-face" not in render(load("song").trace(), "html")


def test_audits_embed_the_glyphs_of_their_tokens():
    audit = life(**{'["Life", "is", "short"]': json.dumps(["命", "は", "短"])})
    assert embedded(render_audit(audit, "html")) == set("命は短")


def test_sheets_and_marks_embed_the_glyphs_of_names(tmp_path):
    example = parse('title = "歌"\ntokens = ["命", "短"]\nheads = 1\nx = [[1, 0], [0, 1]]')
    sheet = exercise(example, "output", seed=7)
    assert embedded(render_sheet(sheet, "html", self_check=True)) == set("歌命短")
    (tmp_path / "answers.toml").write_text(to_toml(sheet, student="山田"), encoding="utf-8")
    assert embedded(render_marks(mark(tmp_path / "answers.toml"), "html")) >= set("山田")


@pytest.mark.parametrize("language", ["ja", "en"])
def test_film_embeds_the_glyphs_of_its_text(tmp_path, language):
    film = json.loads((FOLDER / "data" / "film.json").read_text(encoding="utf-8"))
    if language == "ja":
        film["text"] = "私は歩いた"
    write_film_page(film, tmp_path / "film.html")
    expected = set(film["text"]) if language == "ja" else set()
    assert embedded((tmp_path / "film.html").read_text(encoding="utf-8")) == expected
