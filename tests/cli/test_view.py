"""Tests of `clearhead view`: arguments, messages and exit."""

import os
import signal
import socket
import sys
import time

import pytest
from typer.testing import CliRunner

from clearhead.analysis.roles import Roles
from clearhead.analysis.statistics import HeadStatistics
from clearhead.cli import app
from clearhead.recording.example_texts import EXAMPLE_SENTENCE
from clearhead.viewer.server._texts import Texts, check_typed
from support import viewer_process
from support.recordings import decoder
from support.viewer_client import fetch
from support.viewer_process import stop

DISPLAYS = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY", "TERM")  # variables by which Python finds browsers


@pytest.fixture
def recorded(tmp_path):
    decoder("abcde").save(tmp_path / "kept.safetensors")
    return tmp_path / "kept.safetensors"


def start(*arguments, browser=None):
    chosen = ["--no-browser"] if browser is None else []
    command = [sys.executable, "-m", "clearhead", "view", *chosen, *map(str, arguments)]
    return viewer_process.start(command, environment={**os.environ, **(browser or {})})


def lines_of(process, count):
    return [process.stdout.readline() for _ in range(count)]


def test_prints_the_link_and_another_one_and_stops_on_ctrl_c(recorded):
    """A link is valid once. After its use, the viewer prints another link."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start(recorded, "--port", port)
        notice, opened, forwarded, last = lines_of(process, 4)
    link = opened.split()[1]
    assert fetch(link.replace("/enter?", "/static/js/bokeh.min.js?"))[0] == 200
    served = link.split(":")[2].split("/")[0]
    assert notice == f"Port {port} is in use; using {served}, the next free port.\n"
    assert f"ssh -L {served}:127.0.0.1:{served} " in forwarded
    assert last == "Press Ctrl-C to stop.\n"
    for _ in range(2):
        assert fetch(link)[0] == 200
        notice, _, another = process.stdout.readline().rpartition(" ")
        assert notice == "The link was used. For another browser: "
        assert another.strip() != link
        assert fetch(link)[0] == 403
        link = another.strip()
    assert stop(process) == (0, "", "")


@pytest.mark.parametrize(
    ("session", "line"),
    [
        ({}, "No browser could be started on this machine. Open the link in one.\n"),
        ({"SSH_CONNECTION": "10.0.0.1 5000 10.0.0.2 22"}, ""),
    ],
)
def test_machine_without_a_browser_names_the_port_to_forward(recorded, session, line):
    kept = {name: value for name, value in os.environ.items() if name not in DISPLAYS and name != "SSH_CONNECTION"}
    process = viewer_process.start(
        [sys.executable, "-m", "clearhead", "view", str(recorded)], environment=kept | session
    )
    link, _ = viewer_process.read_link(process)
    served = link.split(":")[2].split("/")[0]
    forwarded, _ = lines_of(process, 2)
    assert forwarded.startswith("You are connected over SSH. First run on your" if session else "From another machine,")
    assert f":  ssh -L {served}:127.0.0.1:{served} " in forwarded
    if line:
        assert process.stdout.readline() == line
    assert stop(process) == (0, "", "")


@pytest.mark.slow
def test_browser_command_line_does_not_contain_the_link(recorded, tmp_path):
    command, started = tmp_path / "browser", tmp_path / "arguments"
    command.write_text(f'#!/bin/sh\necho "$*" > {started}.new && mv {started}.new {started}\n')
    command.chmod(0o755)
    process = start(recorded, browser={"BROWSER": str(command), "HOME": str(tmp_path)})
    lines_of(process, 3)
    while not started.exists():
        assert process.poll() is None
        time.sleep(0.01)
    (page,) = tmp_path.glob("*.html")
    assert started.read_text() == f"{page.as_uri()}\n"
    link = page.read_text().partition("url=")[2].partition('"')[0]
    assert fetch(link)[0] == 200
    assert not page.exists()
    stop(process)


@pytest.mark.slow
def test_viewer_removes_its_page_file_on_exit(recorded, tmp_path):
    """The page file of a killed viewer is removed when the next viewer writes its own."""
    command = tmp_path / "browser"
    command.write_text("#!/bin/sh\nexit 0\n")
    command.chmod(0o755)
    for signal_sent, left in ((signal.SIGKILL, 1), (signal.SIGTERM, 0)):
        process = start(recorded, browser={"BROWSER": str(command), "HOME": str(tmp_path)})
        lines_of(process, 3)
        while not list(tmp_path.glob(f"clearhead-view-*-{process.pid}-*.html")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal_sent)
        process.communicate()
        assert len(list(tmp_path.glob("clearhead-view-*.html"))) == left
    assert process.returncode == 128 + signal.SIGTERM


@pytest.fixture
def arguments_of_view(monkeypatch):
    """Return a function that captures the arguments which the command line passes to `view`."""

    def call(*arguments):
        calls = []

        def view(model, text, **options):
            calls.append({"model": model, "text": text, **options})
            raise ValueError("not served")

        monkeypatch.setattr("clearhead.viewer.server.serve.view", view)
        CliRunner().invoke(app, ["view", *map(str, arguments)])
        return calls[0]

    return call


def test_default_is_the_bundled_translator(arguments_of_view):
    arguments = arguments_of_view("--device", "cpu")
    assert arguments["model"] == "en-ja"
    assert arguments["text"] is None
    assert Texts("en-ja").choices == [EXAMPLE_SENTENCE]


def test_texts_and_files_become_choices(tmp_path, arguments_of_view):
    (tmp_path / "one.txt").write_text("He reads.")
    arguments = arguments_of_view("She plays.", "--file", tmp_path / "one.txt", "--model", "en-ja")
    assert arguments["text"] == ["She plays.", "He reads."]
    texts = Texts("en-ja", arguments["text"])
    assert texts.first.cache.recording["encoder"].keys.texts[0] == "she"
    assert texts.cached("He reads.") is None
    recorded = texts.recorded("He reads.")
    assert recorded.cache.recording["encoder"].keys.texts[0] == "he"
    assert texts.recorded("He reads.") is texts.cached("He reads.") is recorded


def test_least_recently_used_typed_text_is_evicted(monkeypatch):
    monkeypatch.setattr("clearhead.viewer.server._texts.MAX_TYPED_RECORDINGS", 2)
    texts = Texts("en-ja", "She plays.")
    first = texts.recorded("one")
    texts.recorded("two")
    assert texts.recorded("one") is first
    texts.recorded("three")
    assert texts.cached("one") is first
    assert texts.cached("two") is None
    assert texts.cached("She plays.") is texts.first


def test_rejects_texts_that_are_empty_or_too_long():
    with pytest.raises(ValueError, match="the text is empty"):
        Texts("en-ja").recorded("  ")
    with pytest.raises(
        ValueError, match="the text has 20,001 characters; expected at most 20,000; for longer texts use clearhead view"
    ):
        check_typed("x" * 20_001)
    assert check_typed("x" * 20_000)
    with pytest.raises(
        ValueError, match="the text has 401 tokens; expected at most 256; for longer texts use clearhead view"
    ):
        Texts("en-ja").recorded("a " * 400)
    with pytest.raises(ValueError, match="this is a recording; expected a model to run on another text"):
        Texts(decoder("abc")).recorded("abc")
    with pytest.raises(ValueError, match="text is an empty list; expected at least one text"):
        Texts("en-ja", [])


def test_rejects_roles_of_another_model():
    roles = Roles("another", {("decoder", 0, 0): HeadStatistics(9)})
    with pytest.raises(ValueError, match="roles is of 'another' with 1 heads, but recording is of 'a model' with 8"):
        Texts(decoder("abc"), roles=roles)
    with pytest.raises(ValueError, match="expected roles of the same model"):
        Texts("en-ja", roles=Roles("en-ja", {("decoder", 0, 99): HeadStatistics(9)}))


def test_tokens_never_seen_in_training_are_noted():
    assert Texts("en-ja").recorded("I ate a 🍉.").notes == ["text: never seen in training: '🍉'"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["{recorded}", "--model", "en-ja"],
            "kept.safetensors is a recording, which cannot be combined with --file or --model",
        ),
        (["--model", "{recorded}"], "which is a recording; pass it in place of TEXT"),
        (["missing.safetensors"], "missing.safetensors: there is no such file"),
        (["{folder}/broken.safetensors"], "broken.safetensors: not a complete safetensors file"),
        (["  "], "TEXT is empty; expected a text"),
        (["--model", "nothing-of-that-name"], "nothing-of-that-name: there is no such folder or file"),
        (["{recorded}", "--roles", "{folder}/broken.safetensors"], "broken.safetensors: text is not from Roles"),
        (["{recorded}", "--compare", "missing.safetensors"], "missing.safetensors: there is no such file"),
        (["{recorded}", "--compare", "report.html"], "compare is report.html; expected a recording or its path"),
        (["{recorded}", "--compare", "{recorded}", "--output", "o.html"], "--compare is given with --output; expected"),
        (["{recorded}", "--port", "70000"], "port is 70000; expected at most 65535"),
        (["{recorded}", "--port", "5060"], "port is 5060, which browsers refuse to open; expected another port"),
        (["--file", "{folder}/none.txt"], "none.txt: no such file or directory"),
        (["{folder}/broken.txt"], "broken.txt', which is a file; expected --file"),
    ],
)
def test_rejects_invalid_arguments_in_one_line(recorded, arguments, message):
    for name in ("broken.safetensors", "broken.txt"):
        (recorded.parent / name).write_text("nothing")
    filled = [argument.format(recorded=recorded, folder=recorded.parent) for argument in arguments]
    result = CliRunner().invoke(app, ["view", "--no-browser", *filled])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
