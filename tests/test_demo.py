"""Tests of `make demo`, with and without a terminal."""

import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

from clearhead.recording.example_texts import EXAMPLE_SENTENCE
from support.browser import launched
from support.paths import ROOT
from support.viewer_client import fetch
from support.viewer_page import Page, showing

COMMAND = [sys.executable, str(ROOT / "examples" / "demo.py")]
pytestmark = pytest.mark.slow

# letters of the page that are drawn as a character that no font has
MISSING = """
const done = arguments[arguments.length - 1];
document.fonts.ready.then(() => {
  const context = new OffscreenCanvas(40, 40).getContext("2d", { willReadFrequently: true });
  const drawn = (font, letter) => {
    context.clearRect(0, 0, 40, 40);
    context.font = font;
    context.fillText(letter, 4, 30);
    return context.getImageData(0, 0, 40, 40).data.join();
  };
  const missing = new Set();
  const seen = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const { parentElement: parent, data } = walker.currentNode;
    if (parent.closest("script, style, noscript")) continue;
    const { fontFamily, fontWeight } = getComputedStyle(parent);
    const font = `${fontWeight} 24px ${fontFamily}`;
    for (const letter of data) {
      if (letter <= " " || seen.has(font + letter)) continue;
      seen.add(font + letter);
      if (drawn(font, letter) === drawn(font, "\uffff")) missing.add(letter);
    }
  }
  done([[...missing].sort(), seen.size]);
});
"""
# the largest change of a pixel when the heatmap is drawn again because a font has loaded, and its labels
LABELS = """
const view = Bokeh.index.find_one(figures.map);
const { canvas } = view.canvas_view.primary;
const pixels = () => {
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  return copy.getImageData(2, 2, canvas.width - 4, canvas.height - 4).data; // Bokeh paints the edges in part
};
const before = pixels();
view.canvas_view.primary.undo_transform((context) => context.clearRect(0, 0, canvas.width, canvas.height));
document.fonts.dispatchEvent(new Event("loadingdone"));
await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn, 300)));
const change = pixels().reduce((most, value, index) => Math.max(most, Math.abs(value - before[index])), 0);
return [change, [...figures.map.left[0].major_label_overrides.values()].map((label) => label.text ?? label).join("")];
"""

# the saved picture of the heatmap, with another text in one of its places
SAVED = """
const [{ embedFont }, { asPng, mapPicture }, { shownMatrix }] = await Promise.all(
  ["fonts", "picture", "shown_matrix"].map((name) => import(`clearhead/${name}.js`)),
);
const picture = mapPicture(shownMatrix(), "title");
picture.querySelectorAll("text")[arguments[0]].textContent = arguments[1];
await embedFont(picture);
return btoa(String.fromCharCode(...new Uint8Array(await (await asPng(picture)).arrayBuffer())));
"""


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Return the folder and the output of the demo without a terminal."""
    folder = tmp_path_factory.mktemp("demo")
    result = subprocess.run(
        [*COMMAND, str(folder)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    return folder, result


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Yield Chromium on a system that has no font but DejaVu."""
    fonts = tmp_path_factory.mktemp("fonts")
    for name in ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono"):
        shutil.copy(Path(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf"), fonts)
    with launched(fonts) as chrome:
        yield chrome


def check_glyphs(page, letters: str) -> None:
    """Check that the page shows some letters and that no letter is drawn as a box."""
    text = page.script("return document.body.textContent")
    assert set(letters) <= set(text)
    missing, tried = page.browser.execute_async_script(MISSING)
    assert tried > 50
    assert missing == []


def check_labels(page) -> None:
    """Check that the heatmap's labels are drawn with the font, also if it loads after them."""
    change, labels = page.module_script(LABELS)
    assert "から" in labels
    assert change < 64


def test_worked_example_has_no_missing_glyph_with_no_font_but_dejavu(blank_page, demo):
    blank_page.get((demo[0] / "two-heads.html").as_uri())
    check_glyphs(Page(blank_page), "ᵀ√·")


def test_report_has_no_missing_glyph_with_no_font_but_dejavu(page, demo):
    page.open((demo[0] / "report.html").as_uri())
    check_glyphs(page, "昨日学校から帰ると、母は台所で夕食を作っていた。家宅")
    check_labels(page)


def test_viewer_has_no_missing_glyph_with_no_font_but_dejavu(page):
    with showing(page, "en-ja", text=EXAMPLE_SENTENCE) as viewer:
        page.open(viewer.url)
        check_glyphs(page, "昨日学校から帰ると、母は台所で夕食を作っていた。家宅")
        check_labels(page)


@pytest.mark.parametrize("index", [0, 3], ids=["bold title", "label"])
def test_saved_picture_has_its_japanese_letters_with_no_font_but_dejavu(page, index):
    """Boxes and invisible letters would be the same for different texts."""
    with showing(page, "en-ja", text=EXAMPLE_SENTENCE) as viewer:
        page.open(viewer.url)
        pictures = {page.module_script(SAVED, index, text) for text in ("水", "火", "木")}
        assert len(pictures) == 3


def test_demo_without_a_terminal_writes_pages_and_ends(demo):
    folder, result = demo
    for name in ("two-heads.html", "report.html"):
        assert (folder / name).as_uri() in result.stdout
        assert (folder / name).stat().st_size > 100_000
    assert "head 2.5 of the cross-attention" in result.stdout
    assert result.stdout.endswith("clearhead view\n")
    assert result.stderr == ""


def test_demo_in_a_terminal_serves_the_viewer_until_ctrl_c(tmp_path):
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, str(tmp_path)],
        stdin=inside,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name not in ("BROWSER", "DISPLAY", "TERM")},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    os.close(inside)
    link = next(line.split()[1] for line in process.stdout if line.startswith("Open  http://"))
    assert fetch(link)[0] == 200
    process.send_signal(signal.SIGINT)
    with process:  # communicate() would lose the lines that the search for the link has read ahead
        output, errors = process.stdout.read(), process.stderr.read()
    os.close(terminal)
    assert (process.returncode, errors) == (0, "")
    assert "Press Ctrl-C to stop." in output
