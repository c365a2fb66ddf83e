"""Tests of escaping untrusted text for terminals, labels and JSON."""

import json
from io import StringIO

import pytest
from rich.table import Table
from rich.text import Text

from clearhead._utils.consoles import PlainConsole
from clearhead._utils.text import json_text, printable, visible_text
from support.hostile_input import NAMES, controls


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;X\x07\x1b[2J", r"\x1b]0;X\x07\x1b[2J"),
        ("\x9b31m", r"\x9b31m"),
        ("a\u202eb\u2066c", r"a\u202eb\u2066c"),
        ("a\rb\x7f\udcff", r"a\rb\x7f\udcff"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("👩\u200d👧\u3000日本 é", "👩\u200d👧\u3000日本 é"),
        ("C:\\x1b [bold]", "C:\\x1b [bold]"),
    ],
)
def test_control_characters_are_escaped_and_letters_are_kept(text, shown):
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("token", "shown"), [("a\nb", r"a\nb"), ("", '""'), (" ", '" "'), ("a\u200bb", r"a\u200bb"), ("[x]", "[x]")]
)
def test_a_visible_token_is_one_line_without_invisible_characters(token, shown):
    assert visible_text(token) == shown


@pytest.mark.parametrize("name", NAMES)
def test_json_is_printable_and_can_be_parsed(name):
    text = json_text({name: [name, 1.5, None, True]}, indent=1)
    assert not controls(text)
    assert json.loads(text) == {name: [name, 1.5, None, True]}


def test_json_has_null_for_nan_and_infinities():
    assert json_text([float("nan"), float("inf"), (-float("inf"), 1)]) == "[null, null, [null, 1]]"


def test_a_plain_console_prints_markup_literally():
    console = PlainConsole(file=StringIO(), width=200, force_terminal=False)
    table = Table("[red]head", title="my[/model]")
    table.add_row(":smile: [/]\x1b[2J", Text("[b]"))
    console.print(table)
    console.print("llama[v2]\x9b")
    shown = console.file.getvalue()
    for part in ("my[/model]", "[red]head", r":smile: [/]\x1b[2J", "[b]", r"llama[v2]\x9b"):
        assert part in shown
