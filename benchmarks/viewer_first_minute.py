"""Benchmark of a reader's first minute in headless Chromium: first picture, hovering words, typing, thumbnails.

`python benchmarks/viewer_first_minute.py [MODEL.gguf]`. Times are taken in the page. Browser and server share the CPU.
With a model, also the time until the thumbnails of all its heads on a text of about 1,200 tokens are drawn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command `clearhead view` does, before it imports torch

from selenium.webdriver import Chrome

from clearhead import view
from measuring import RESULTS, write
from support.browser import launched, resize  # pyright: ignore[reportMissingImports]
from support.viewer_page import Page  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).parent.parent
HOVERS = 100
SENTENCES = ("The old dog barked at the cat.", "She gave me the book.", "I read a book in the library yesterday.")

# records when the first lines, the last thumbnail and each change of the lines are in the page
WATCH = """
window.seen = {};
new MutationObserver(() => {
  const now = performance.now();
  if (!seen.lines && document.querySelector("#lines path")) seen.lines = now;
  const values = [...document.querySelectorAll(".thumb .value")]; // written when a thumbnail is painted
  if (!seen.thumbnails && values.length && values.every((value) => value.textContent)) seen.thumbnails = now;
  seen.changed = now;
}).observe(document, { childList: true, subtree: true, attributes: true });
"""
# time from a pointer event on a word to the frame after the page has followed it
HOVER = """
window.taken = [];
document.getElementById("lines").addEventListener("pointerover", (event) => {
  const start = event.timeStamp;
  requestAnimationFrame(() => requestAnimationFrame(() => taken.push(performance.now() - start)));
}, { capture: true });
"""

# times of the last key and of the first lines after it
TYPED = """
window.typed = window.drawn = 0;
document.getElementById("text").addEventListener("input", () => (typed = performance.now()));
on("words", () => (drawn = drawn > typed ? drawn : performance.now()));
"""


def answered(browser: Chrome) -> float:
    """Return the time at which the server began to answer, in milliseconds."""
    return browser.execute_script("return performance.getEntriesByType('navigation')[0].responseStart")


def open_watched(page: Page, url: str) -> None:
    page.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
    page.browser.get("about:blank")
    page.browser.get(url)


def hover_times(page: Page) -> list[float]:
    """Move the mouse over words and return the time of each answer in milliseconds."""
    page.script(HOVER)
    words = page.script(
        "return [...document.querySelectorAll('#lines .word')].map((word) => {"
        " const box = word.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })"
    )
    for index in range(HOVERS):
        x, y = words[index % len(words)]
        page.browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})
        page.until(lambda count=index: page.script("return taken.length") > count)
    return page.script("return taken")


def typing_time(page: Page, sentence: str) -> float:
    """Type a sentence and return the milliseconds from the last key to the lines of the new text."""
    box = page.find("#text")
    box.clear()
    page.settle()
    page.module_script(TYPED)
    box.send_keys(sentence)
    page.until(lambda: page.module_script("return state.model.text === arguments[0] && drawn > typed", sentence), 0.2)
    return page.script("return drawn - typed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a causal language model, for the thumbnails of a longer text")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []

    def add(what: str, milliseconds: float, target: str) -> None:
        rows.append({"what": what, "ms": f"{milliseconds:.0f}", "target": target})

    with launched() as browser:
        resize(browser, 1280, 720)
        page = Page(browser)
        with view(browser=False, wait=False) as served:
            open_watched(page, served.url)
            page.until(lambda: page.script("return seen.lines"))
            add(
                "default page: first lines after the server answers",
                page.script("return seen.lines") - answered(browser),
                "1,500",
            )
            page.settle()
            taken = hover_times(page)
            add(f"hover a word, median of {HOVERS}", statistics.median(taken), "")
            add(f"hover a word, worst of {HOVERS}", max(taken), "100")
            typed = [typing_time(page, sentence) for sentence in SENTENCES]
            add(f"typed sentence to new lines, worst of {len(typed)}", max(typed), "1,000")
            browser.get("about:blank")
        if arguments.model is not None:
            text = (ROOT / "docs" / "reference" / "performance.md").read_text()[:3_000]
            with view(arguments.model, text, browser=False, wait=False) as served:
                page.timeout = 120
                open_watched(page, served.url)
                page.until(lambda: page.script("return seen.thumbnails"), 0.2)
                heads = len(page.all(".thumb"))
                tokens = page.module_script("return state.model.stacks[0].keys")
                milliseconds = page.script("return seen.thumbnails") - answered(browser)
                add(f"thumbnails of {heads} heads on {tokens:,} tokens", milliseconds, "5,000")
                browser.get("about:blank")
    write(
        "viewer-first-minute", "The first minute of the viewer in Chromium, CPU; milliseconds", rows, arguments.output
    )


if __name__ == "__main__":
    main()
