"""Tests of hostile names of models, stacks, tokens, titles, files and translations in all outputs."""

import json
import re
from html.parser import HTMLParser

import pytest

from clearhead import Recording
from clearhead._utils.text import visible_text
from clearhead.recording.recording import Stack
from clearhead.translation import Translator
from support.hostile_input import NAMES, controls, run_cli
from support.recordings import layer, tokens

pytestmark = [pytest.mark.attack, pytest.mark.usefixtures("made_once"), pytest.mark.parametrize("name", NAMES)]


def recording(name, path):
    """Save a recording with the name in every possible place; return the names of its model and its stack."""
    stack = visible_text(name)  # the name of a stack must be printable
    queries, keys = tokens([name, "a", name]), tokens(["b", name])
    made = Recording(name, {stack: Stack((layer(3, 2),), queries, keys)})
    made.save(path)
    return made.model, stack  # a model is not named by a path


@pytest.mark.parametrize("command", ["stats", "roles"])
def test_tables_and_json_escape_names(tmp_path, name, command):
    model, stack = recording(name, tmp_path / "r.safetensors")
    found = run_cli(command, tmp_path / "r.safetensors")
    assert (found.code, found.traceback) == (0, "")
    assert not controls(found.stdout + found.stderr)
    assert "".join(f"{visible_text(model)}:".split()) in "".join(found.stdout.split())  # a long title is wrapped
    found = run_cli(command, tmp_path / "r.safetensors", "--json")
    assert not controls(found.stdout)
    document = json.loads(found.stdout)
    assert document["model"] == model
    heads = document["heads"]
    assert (heads["stack"] if command == "stats" else [row["stack"] for row in heads]) == [stack] * 4


def test_names_do_not_change_the_structure_of_a_report(tmp_path, name):
    pages = []
    for used_name in ("harmless", name):
        recording(used_name, tmp_path / "r.safetensors")
        found = run_cli("view", tmp_path / "r.safetensors", "--output", tmp_path / "r.html")
        assert (found.code, found.traceback) == (0, "")
        assert not controls(found.stdout)
        pages.append(Skeleton.from_html((tmp_path / "r.html").read_text(encoding="utf-8")))
    assert pages[0] == pages[1]


class Skeleton(HTMLParser):
    """Elements of a page with the names of their attributes."""

    def __init__(self):
        super().__init__()
        self.elements = []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, [key for key, _ in attributes]))

    @classmethod
    def from_html(cls, page):
        parser = cls()
        parser.feed(page)
        return parser.elements


TOML = """title = {name}
tokens = [{name}, {name}]
x = [[1, 0], [0, 1]]
[[claims]]
step = "scores"
values = [[9, 9], [9, 9]]
"""


@pytest.fixture
def example(tmp_path, name):
    path = tmp_path / "example.toml"
    text = re.sub(r"\x7f", r"\\u007f", json.dumps(name, ensure_ascii=False))
    path.write_text(TOML.format(name=text))
    return path


@pytest.mark.parametrize("style", ["text", "html", "markdown", "latex", "json"])
def test_explain_escapes_names(example, style):
    found = run_cli("explain", example, "--format", style)
    assert (found.code, found.traceback, found.stderr) == (0, "", "")
    assert not controls(found.stdout)


def test_check_escapes_names(example, name):
    for options in ((), ("--json",)):
        found = run_cli("check", example, *options)
        assert (found.code, found.traceback) == (1, "")
        assert not controls(found.stdout)
    assert json.loads(found.stdout)["title"] == name


def test_translate_escapes_control_characters(name, monkeypatch):
    monkeypatch.setattr(Translator, "stream", lambda self, texts, beams: iter([name] * len(texts)))
    found = run_cli("translate", "Thank you.")
    assert (found.code, found.traceback) == (0, "")
    assert not controls(found.stdout.replace("\t", ""))
    shown = run_cli("translate", "Thank you.", "--show")
    assert (shown.code, shown.traceback) == (0, "")
    assert not controls(shown.stdout.replace("\t", ""))


@pytest.mark.parametrize(
    "command",
    [
        ("explain", "{}"),
        ("check", "{}"),
        ("stats", "{}", "--model", "{}"),
        ("stats", "--file", "{}", "--model", "en-ja"),
        ("roles", "{}.safetensors"),
        ("roles", "--model", "en-ja", "--treebank", "{}"),
        ("record", "hello", "--output", "{}"),
        ("view", "--roles", "{}", "--output", "x.html"),
        ("translate", "--file", "{}"),
        ("translate", "hello", "--model", "{}"),
        ("train", "--data", "{}"),
        ("train", "--config", "{}"),
        ("doctor", "{}"),
        ("{}",),
        ("explain", "song", "--format", "{}"),
        ("check", "--{}"),
    ],
)
def test_messages_escape_file_names(tmp_path, monkeypatch, name, command):
    monkeypatch.chdir(tmp_path)
    found = run_cli(*(part.replace("{}", name) for part in command))
    assert (found.code, found.traceback) == (2, "")
    assert not controls(found.stdout + found.stderr)
