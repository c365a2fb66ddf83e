"""Demo of `make demo`: write two HTML pages, then serve the viewer.

Without a terminal, as in CI, the pages are written and the command that serves the viewer is printed.
"""

import os
import shlex
import sys
from pathlib import Path

COMMAND = f"{shlex.quote(str(Path(sys.executable).parent / 'clearhead'))} view"
WHAT_TO_LOOK_AT = """
In the viewer:
  1. Point at 帰 among the words: head 2.5 of the cross-attention finds "home" when it writes that word.
  2. Click a thumbnail: each one is a head. Click a cell of its map to see the calculation of one weight.
  3. Type another English sentence: the translation and all heads follow.
"""


def write_pages(folder: Path) -> dict[Path, str]:
    """Write a worked example and a report. Return what each file shows."""
    from clearhead import record, report
    from clearhead._utils.files import write_text
    from clearhead.explain import load
    from clearhead.explain.render import render
    from clearhead.recording.example_texts import EXAMPLE_SENTENCE

    folder.mkdir(parents=True, exist_ok=True)
    example = load("two-heads")
    calculation, heads = folder / "two-heads.html", folder / "report.html"
    write_text(calculation, render(example.trace(), "html", title=example.title))
    report(record("en-ja", EXAMPLE_SENTENCE), heads)
    return {
        calculation: "two heads calculated step by step, from eight words to the layer's output",
        heads: "every head of the bundled translator on one sentence, as an offline copy of the viewer",
    }


def main(folder: Path) -> None:
    print("Writing two pages ...", flush=True)
    for path, shown in write_pages(folder).items():
        print(f"{path.resolve().as_uri()}\n  {shown}")
    print(WHAT_TO_LOOK_AT, flush=True)
    if sys.stdin.isatty() or sys.stdout.isatty():
        os.execv(sys.executable, [sys.executable, "-m", "clearhead", "view"])
    print(f"There is no terminal, so the viewer was not started. To start it:  {COMMAND}")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
    except KeyboardInterrupt:
        sys.exit(130)
