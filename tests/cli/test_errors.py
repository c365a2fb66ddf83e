"""Tests of command-line errors: one line, an exit code, and a traceback only on request."""

import os
import subprocess
import sys
import warnings

import pytest
from typer.testing import CliRunner

from clearhead.cli import app
from support.hostile_input import controls


def run_cli(*arguments, code, **environment):
    result = CliRunner().invoke(app, [*arguments], env={"COLUMNS": "200", **environment})
    assert result.exit_code == code, result.output
    return result


def shell(command):
    """Run a command in a shell where `clearhead` is this package."""
    script = f'clearhead() {{ "{sys.executable}" -m clearhead "$@"; }}; {command}'
    done = subprocess.run(["bash", "-c", script], capture_output=True, env={**os.environ, "COLUMNS": "200"})
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


@pytest.fixture
def failing(monkeypatch):
    """Return a function that makes `check` raise an error."""

    def fail_with(error):
        def check(example):
            raise error

        monkeypatch.setattr("clearhead.explain.check", check)

    return fail_with


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyError("x"), 2, "clearhead: unexpected error: KeyError: 'x' (set CLEARHEAD_TRACEBACK=1 to see"),
        (RuntimeError("a\nb\x1b[2J"), 2, r"clearhead: unexpected error: RuntimeError: a b\x1b[2J ("),
        (RecursionError("deep"), 2, "clearhead: unexpected error: RecursionError: deep"),
        (ValueError("x is 1;\nexpected 2"), 2, "clearhead: x is 1; expected 2\n"),
        (FileNotFoundError(2, "No such file", "a\x1bb"), 2, "clearhead: a\\x1bb: no such file\n"),
        (ImportError("needs an extra"), 2, "clearhead: needs an extra\n"),
        (MemoryError(), 2, "clearhead: not enough memory (MemoryError); try a shorter input"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 5"), 2, "clearhead: not enough memory (Default"),
        (KeyboardInterrupt(), 130, ""),
    ],
)  # fmt: skip
def test_error_prints_one_line_and_no_output(failing, error, code, message):
    failing(error)
    result = run_cli("check", "song", code=code)
    assert result.stderr.startswith(message)
    assert len(result.stderr.splitlines()) == (1 if message else 0)
    assert result.stdout == ""


def test_traceback_is_printed_on_request(failing):
    failing(KeyError("x"))
    result = run_cli("check", "song", code=2, CLEARHEAD_TRACEBACK="1")
    assert result.stderr.startswith("Traceback")
    assert result.stderr.splitlines()[-1].startswith("clearhead: unexpected error: KeyError")


def test_warning_prints_one_escaped_line(monkeypatch):
    def check(example):
        warnings.warn("odd\ntoken \x1b[2J", stacklevel=1)
        raise ValueError("and an error")

    monkeypatch.setattr("clearhead.explain.check", check)
    assert run_cli("check", "song", code=2).stderr == "clearhead: odd token \\x1b[2J\nclearhead: and an error\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("translate", "\udcff"),
        ("stats", "\udcff", "--model", "en-ja"),
        ("roles", "a\udcff", "--model", "en-ja"),
        ("record", "\udcff", "--output", "x.safetensors"),
        ("view", "\udcff", "--output", "x.html"),
        ("train", "--output", "\udcff"),
        ("\udcff",),
    ],
)
def test_rejects_arguments_that_are_not_utf_8(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run_cli(*arguments, code=2)
    position = next(index for index, argument in enumerate(arguments, 1) if "\udcff" in argument)
    assert result.stderr.startswith(f"clearhead: argument {position} is '")
    assert result.stderr.endswith("\\xff'; expected text in UTF-8\n")
    assert list(tmp_path.iterdir()) == []


def test_file_names_need_not_be_utf_8(tmp_path):
    with open(os.fsencode(tmp_path) + b"/caf\xe9.txt", "w") as file:
        file.write("I read a book.\n")
    assert run_cli("translate", "--file", os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt"), code=0).stdout.strip()


@pytest.mark.parametrize(
    "arguments", [("--\x1b[2J",), ("explain", "song", "--\x1b[2J"), ("explain", "song", "\x1b]0;")]
)
def test_usage_errors_escape_control_characters(arguments):
    result = run_cli(*arguments, code=2)
    assert not controls(result.stderr)
    assert "\\x1b" in result.stderr


@pytest.mark.parametrize("command", ["explain song", "doctor", "--help", "translate Hello"])
def test_rejects_closed_standard_output(command):
    code, _, stderr = shell(f"clearhead {command} >&-")
    assert code == 2
    assert stderr == "clearhead: standard output is closed; expected a terminal, a file, a pipe or /dev/null\n"


def test_closed_standard_input_is_an_error():
    code, _, stderr = shell("clearhead translate --file - <&-")
    assert (code, stderr) == (2, "clearhead: standard input is closed; expected text, such as from a pipe\n")


@pytest.mark.slow
def test_closed_standard_error_changes_neither_output_nor_exit_code():
    assert shell("clearhead check song 2>&- | tail -1")[1].startswith("13 checked")
    assert shell("clearhead check nothing.toml 2>&-")[0] == 2


@pytest.mark.parametrize("command", ["doctor", "--help", "--version"])
def test_full_device_prints_one_line(command):
    code, _, stderr = shell(f"clearhead {command} > /dev/full")
    assert code == 2
    assert stderr.startswith("clearhead: ")
    assert stderr.endswith("output: no space left on device\n")
    assert len(stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["clearhead doctor", "clearhead --help", "PYTHONUNBUFFERED=1 clearhead --version"])
def test_closed_pipe_exits_with_141_without_a_message(command):
    _, _, stderr = shell(f"{{ sleep 1; {command}; echo $? >&2; }} | true")
    assert stderr == "141\n"


def test_a_reader_of_the_first_byte_ends_the_command_with_141():
    """The output is longer than the pipe holds."""
    command = "PYTHONUNBUFFERED=1 clearhead explain two-heads --format html"
    assert shell(f"{{ {command}; echo $? >&2; }} | head -c 1") == (0, "<", "141\n")


@pytest.mark.parametrize(("output_format", "unbuffered"), [("html", "1"), ("xlsx", "1"), ("xlsx", "")])
def test_truncated_output_is_an_error(tmp_path, output_format, unbuffered):
    """The file may grow to 64 KiB, and it has 60 KiB before the command appends to it."""
    (tmp_path / "full").write_bytes(bytes(60 * 1024))
    command = f"PYTHONUNBUFFERED={unbuffered} clearhead explain two-heads --format {output_format}"
    code, _, stderr = shell(f"ulimit -f 64; {command} >> '{tmp_path}/full'")
    assert (code, stderr) == (2, "clearhead: standard output: file too large\n")


@pytest.mark.parametrize("arguments", ["explain nothing.toml", "explain --nothing"])
def test_errors_that_cannot_be_printed_keep_their_exit_code(arguments):
    assert shell(f"clearhead {arguments} 2> /dev/full")[0] == 2
    assert shell(f"{{ sleep 1; clearhead {arguments} 2>&1; echo $? >&3; }} 3>&2 | true")[2] == "2\n"
