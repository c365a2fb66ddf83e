"""Demo of `make demo`: write two HTML pages, then serve the viewer if a browser can be opened."""

import os
import sys
import webbrowser
from pathlib import Path

from clearhead import record, report
from clearhead._utils.files import write_text
from clearhead.explain import load
from clearhead.explain.render import render
from clearhead.recording.example_texts import EXAMPLE_SENTENCE


def opens_windows() -> bool:
    """Return whether a browser is available that does not block the terminal."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    return type(browser) is not webbrowser.GenericBrowser or "BROWSER" in os.environ


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    example = load("two-heads")
    calculation, heads = folder / "two-heads.html", folder / "report.html"
    write_text(calculation, render(example.trace(), "html", title=example.title))
    report(record("en-ja", EXAMPLE_SENTENCE), heads)
    print(f"{calculation.resolve()}\n  two heads calculated step by step, from eight words to the layer's output")
    print(f"{heads.resolve()}\n  every head of the bundled translator on one sentence: its heatmap and top keys")
    if sys.stdout.isatty() and opens_windows():
        print("Starting the viewer, `clearhead view`:", flush=True)
        os.execv(sys.executable, [sys.executable, "-m", "clearhead", "view"])


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
