"""Code blocks of Markdown pages, run in the order of the page and compared with the output that the page shows.

- A Python block runs in the namespace of the page. What it prints is in the `text` block that follows it, or in a
  comment after each `print(…)`, which begins with the output.
- A `console` block has commands after `$`, each followed by its output. Only `clearhead` is run.
- A block with a title, such as ```` ```toml title="sheet.toml" ````, is also written to the file of that name.

`…` in shown output stands for any text.
"""

import builtins
import io
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from unittest import mock

from typer.testing import CliRunner

from clearhead.cli import app

FENCE = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<content>.*?)^```$', re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file that its title names, its content, and the output shown below it."""

    language: str
    title: str | None
    content: str
    line: int  # of its first line of content in the page
    output: str | None


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page. A `text` block right below a Python block is its output."""
    fences = list(FENCE.finditer(text))
    for match, following in zip_longest(fences, fences[1:]):
        adjacent = following and following["language"] == "text" and not text[match.end() : following.start()].strip()
        output = following["content"] if following and adjacent and match["language"] == "python" else None
        yield Block(
            match["language"], match["title"], match["content"], text.count("\n", 0, match.start("content")), output
        )


def is_runnable(path: Path) -> bool:
    """Return whether a page has blocks that `run_page` runs."""
    return any(block.language in ("python", "console") for block in blocks(path.read_text(encoding="utf-8")))


def matches(shown: str, printed: str) -> bool:
    """Return whether shown output, in which `…` stands for any text, is the printed one."""
    pattern = ".*".join(map(re.escape, shown.split("…")))
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


def run_page(path: Path) -> None:
    """Run the blocks of a page in the current folder."""
    namespace: dict[str, object] = {}
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.title:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.content, encoding="utf-8")
        if block.language == "python":
            _run_python(block, path.name, namespace)
        elif block.language == "console":
            _run_commands(block)


def _run_python(block: Block, name: str, namespace: dict[str, object]) -> None:
    printed: list[tuple[int, str]] = []  # line in the block, and text

    def recorded_print(*values: object, **options: object) -> None:
        caller = sys._getframe(1)
        if caller.f_code.co_filename != name:  # a library prints
            builtins_print(*values, **options)
            return
        text = io.StringIO()
        builtins_print(*values, **{**options, "file": text})
        printed.append((caller.f_lineno - block.line, text.getvalue()))

    builtins_print = builtins.print
    source = "\n" * block.line + block.content  # so that a traceback has the lines of the page
    with mock.patch.object(builtins, "print", recorded_print), redirect_stdout(io.StringIO()):
        exec(compile(source, name, "exec"), namespace)
    if block.output is not None:
        text = "".join(text for _, text in printed)
        assert matches(block.output, text), f"{name} shows\n{block.output}but its code prints\n{text}"
        return
    lines = block.content.splitlines()
    for index, text in printed:
        _, _, comment = lines[index - 1].rpartition("  # ")
        assert _begins_with(comment, text.rstrip("\n")), (
            f"{name}, line {block.line + index}: shows {comment!r}, but prints {text!r}"
        )


def _begins_with(comment: str, printed: str) -> bool:
    """Return whether a comment is printed text, alone or followed by a remark."""
    return bool(printed) and any(
        matches(comment[:end], printed)
        for end in [len(comment), *(match.start() for match in re.finditer(r"[:;,.]? |[:;]", comment))]
    )


def _run_commands(block: Block) -> None:
    """Run the commands of a block; one without `$` only shows commands."""
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.content, re.MULTILINE):
        program, *arguments = shlex.split(command, comments=True)
        assert program == "clearhead", f"expected a command of clearhead, not {command!r}"
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"})
        assert result.exit_code in (0, 1), f"{command}: {result.output}"
        assert matches(shown, result.output), f"{command} is shown with\n{shown}but prints\n{result.output}"
