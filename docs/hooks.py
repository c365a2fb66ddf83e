"""MkDocs hook: insert the options of every command into the page of the command line, as typer documents them."""

import re
import subprocess
import sys

MARKER = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: object) -> str:
    return markdown.replace(MARKER, _commands()) if MARKER in markdown else markdown


def _commands() -> str:
    call = [sys.executable, "-m", "typer", "clearhead.cli", "utils", "docs", "--name", "clearhead"]
    pages = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    commands = pages[pages.index("\n## ") :]  # without the general help, which the page has already
    commands = re.sub(r"^\* `--help`.*\n", "", commands, flags=re.MULTILINE)
    return re.sub(r"^## ", "### ", commands, flags=re.MULTILINE)
