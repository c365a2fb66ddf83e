"""Tests of exports in a real browser: pictures and numbers of what is shown, the link, and settings in the address."""

import csv
import io
import struct
import time
from xml.etree import ElementTree

import pytest
import torch
from selenium.webdriver.common.keys import Keys

from clearhead import Causal, Window, report
from clearhead._utils.text import short_token
from clearhead.analysis.roles import Roles
from clearhead.analysis.statistics import HeadStatistics
from clearhead.viewer.server._page_session import PageSession
from support.browser import complaints
from support.fonts import embedded
from support.recordings import AWKWARD, decoder
from support.viewer_page import PLAIN_TOKENS, parse_number, showing

FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", 'say "hi", twice']
HOSTILE = [*AWKWARD, *FORMULAS]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def downloads(browser, tmp_path):
    """Yield the folder to which the browser saves files."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
    return folder


def saved(page, downloads, kind: str) -> bytes:
    """Save a file by the menu and return its content."""
    before = set(downloads.iterdir())
    if not page.find("#take").get_property("open"):
        page.click("#take summary")
    page.click(f"[data-take='{kind}']")

    def complete():
        new = [path for path in set(downloads.iterdir()) - before if path.suffix == f".{kind.split('.')[1]}"]
        return new[0] if new and new[0].stat().st_size else None

    path = page.until(complete)
    assert page.text("take-status") == f"Saved {path.name}."
    return path.read_bytes()


def texts_of(document: bytes) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(document).iter(f"{SVG}text")]


@pytest.mark.parametrize("offline", [False, True], ids=["live", "report"])
def test_what_is_shown_can_be_saved(page, browser, downloads, tmp_path, offline):
    recording = decoder(HOSTILE)
    fragment = "#head=decoder.1.2&rows=2-17&keys=1-17"
    weights = recording.weights(("decoder", 1, 2)).dense()[0, 0, 2:17, 1:17]
    if offline:
        report(recording, tmp_path / "report.html")
        page.open((tmp_path / "report.html").as_uri(), fragment)
        check_saved_files(page, downloads, weights, rtol=1e-3)
        return
    with showing(page, recording) as viewer:
        page.open(viewer.url, fragment)
        check_saved_files(page, downloads, weights, rtol=0)
        assert "Another browser needs the link from the terminal" in link_message(page)


def link_message(page) -> str:
    page.click("#copy-link")
    return page.text("take-status")


def check_saved_files(page, downloads, weights, rtol):
    tokens = [short_token(token) for token in HOSTILE]
    rows = list(csv.reader(io.StringIO(saved(page, downloads, "map.csv").decode("utf-8-sig"), newline="")))
    assert rows[0] == ["query", *(f"{index} {tokens[index]}" for index in range(1, 17))]
    assert [row[0] for row in rows[1:]] == [f"{index} {tokens[index]}" for index in range(2, 17)]
    assert not any(cell.startswith(tuple("=+-@\t\r")) for row in rows for cell in row)
    cells = torch.tensor([[float(cell) for cell in row[1:]] for row in rows[1:]])
    torch.testing.assert_close(cells, weights, rtol=rtol, atol=1e-7 if rtol else 0)

    drawing = saved(page, downloads, "map.svg")
    texts = texts_of(drawing)
    assert texts[0] == "a model: Decoder, layer 1, head 2"
    assert {"&amp;", "=1+1", "<b>", "日本語", "weight, log scale"} <= set(texts)
    tree = ElementTree.fromstring(drawing)
    assert {node.tag for node in tree.iter()} <= {
        SVG + name for name in ("svg", "style", "title", "rect", "text", "g", "defs", "linearGradient", "stop")
    }
    assert set("日本語") <= embedded(drawing.decode())
    colored = [rect for rect in tree.iter(f"{SVG}rect") if rect.get("fill", "").startswith("#")]
    assert len(colored) == int((weights > 0).sum())
    words = saved(page, downloads, "words.svg")
    assert {"</script>", "@SUM(A1)"} <= set(texts_of(words))
    assert set("日本語") <= embedded(words.decode())

    for kind in ("map.png", "words.png"):
        picture = saved(page, downloads, kind)
        assert picture.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", picture[16:24])
        assert min(width, height) > 600  # two pixels per unit
        bounds = page.browser.execute_async_script(SHADES, picture.hex())
        assert bounds[0] < 100
        assert bounds[1] == 255


SHADES = """
const [hex, done] = arguments;
const bytes = Uint8Array.from(hex.match(/../g), (pair) => parseInt(pair, 16));
createImageBitmap(new Blob([bytes], { type: "image/png" })).then((image) => {
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const { data } = context.getImageData(0, 0, image.width, image.height);
  done([data.reduce((one, other) => Math.min(one, other)), data.reduce((one, other) => Math.max(one, other))]);
});
"""


def test_large_windows_are_saved_as_bins(page, downloads):
    recording = decoder([f"w{index}" for index in range(600)], layers=1, heads=2)
    with showing(page, recording) as viewer:
        page.open(viewer.url, "#head=decoder.0.0&hide=sinks")
        rows = list(csv.reader(io.StringIO(saved(page, downloads, "map.csv").decode("utf-8-sig"))))
        assert len(rows) == 301
        assert rows[0][:3] == ["query", "0 to 1", "2 to 3"]
        weights = recording.weights(("decoder", 0, 0)).dense()[0, 0].clone()
        weights[:, 0] = 0
        pooled = torch.nn.functional.max_pool2d(weights[None], 2)[0]
        torch.testing.assert_close(
            torch.tensor([[float(cell) for cell in row[1:]] for row in rows[1:]]), pooled, rtol=0, atol=1e-6
        )
        drawing = ElementTree.fromstring(saved(page, downloads, "map.svg"))
        assert len(list(drawing.iter(f"{SVG}image"))) == 1
        assert "largest weight of each bin, log scale" in [node.text for node in drawing.iter(f"{SVG}text")]


def test_masked_cells_are_not_in_the_picture_of_a_zoomed_report(page, downloads, tmp_path):
    recording = decoder([f"w{index}" for index in range(600)], layers=1, mask=Causal() & Window(20))
    report(recording, tmp_path / "report.html")
    page.open((tmp_path / "report.html").as_uri(), "#head=decoder.0.1&rows=530-563&keys=512-545")
    drawing = ElementTree.fromstring(saved(page, downloads, "map.svg"))
    frame, *cells = (
        [float(rectangle.get(side)) for side in ("x", "y", "width", "height")]
        for rectangle in drawing.iter(f"{SVG}rect")
        if rectangle.get("x") and not rectangle.get("fill", "").startswith(("none", "url"))
    )
    painted = torch.zeros(33, 33, dtype=torch.bool)
    for x, y, width, height in cells:
        assert (width, height) == pytest.approx((frame[2] / 33, frame[3] / 33))
        painted[round((y - frame[1]) / height), round((x - frame[0]) / width)] = True
    visible = recording.weights(("decoder", 0, 1)).scores[0, 0, 530:563, 512:545] > -torch.inf
    assert visible.any()
    assert torch.equal(painted, visible)
    assert "largest weight of each bin, log scale" in [node.text for node in drawing.iter(f"{SVG}text")]
    rows = list(csv.reader(io.StringIO(saved(page, downloads, "map.csv").decode("utf-8-sig"))))
    assert rows[0][:3] == ["query", "510 to 514", "515 to 519"]  # a bin's value is not the weight of each of its cells


def test_settings_of_the_address_apply_while_the_server_is_slow(page, monkeypatch):
    answer = PageSession._go
    monkeypatch.setattr(PageSession, "_go", lambda session, request: (time.sleep(1), answer(session, request)))
    with showing(page, decoder(PLAIN_TOKENS)) as viewer:
        page.open(viewer.url, "#scale=linear")  # the page fixture fails on an error in the console
        assert page.text("low") == "0"


def test_every_setting_is_in_the_address(page, browser):
    roles = Roles("a model", {("decoder", 1, 3): HeadStatistics(9, induction=0.8)})
    with showing(page, decoder(PLAIN_TOKENS), roles=roles) as viewer:
        page.open(viewer.url, "#head=decoder.0.1&palette=nothing&scale=7&sort=<b>&bins=")
        assert page.text("head-heading") == "Decoder, layer 0, head 1"
        assert set(page.fragment) == {"head", "cell"}
        steps = page.script("return history.length")
        page.click("[name=scale][value=linear]")
        page.click("[name=reduce][value=mean]")
        page.click("#hide")
        page.choose("palette", "magma")
        page.choose("sort", "sharp")
        page.choose("filter", "label:induction")
        expected = {"bins": "mean", "scale": "linear", "hide": "sinks", "palette": "magma", "sort": "sharp"}
        expected["filter"] = "label:induction"
        assert page.fragment.items() >= expected.items()
        assert page.script("return history.length") == steps
        address = browser.current_url
        browser.refresh()
        page.until(lambda: page.text("readout"))
        page.settle()
        assert browser.current_url == address
        assert [thumb.get_attribute("data-head") for thumb in page.all(".thumb")] == ["decoder.1.3"]
        assert page.text("low") == "0"
        assert page.find("#hide").is_selected()
        page.click("[data-head='decoder.1.3']")
        assert page.fragment.items() >= {**expected, "head": "decoder.1.3"}.items()
        page.script("location.hash = 'head=decoder.0.0'")  # an address without settings: their defaults
        page.until(lambda: page.text("head-heading") == "Decoder, layer 0, head 0")
        page.settle()
        assert set(page.fragment) == {"head", "cell"}
        browser.back()
        page.until(lambda: page.text("head-heading") == "Decoder, layer 1, head 3")
        page.settle()
        assert page.fragment.items() >= {**expected, "head": "decoder.1.3"}.items()


def test_report_of_what_is_shown_can_be_saved(page, browser, downloads):
    with showing(page, "en-ja") as viewer:
        page.open(viewer.url, "#head=cross.1.3&cell=4-2&palette=magma&text=The old dog barked.")
        page.click("#take summary")
        page.click("#save-report")
        page.find("#report-title").send_keys("<b>Dogs</b>")
        page.find("#report-note").send_keys("Look at the verb & the noun.")
        page.find("#report-dialog").send_keys(Keys.ESCAPE)
        assert not page.find("#report-dialog").is_displayed()
        page.click("#save-report")
        page.click("#report-save")
        page.until(lambda: not page.find("#report-dialog").is_displayed())
        path = page.until(lambda: next((path for path in downloads.iterdir() if path.suffix == ".html"), None))
        assert page.text("take-status") == f"Saved {path.name}."
        page.script("document.getElementById('report-title').value = 'x'.repeat(201)")  # the server refuses it
        page.click("#save-report")
        page.click("#report-save")
        page.until(lambda: "title has 201 characters" in page.text("report-status"))
        assert complaints(browser)  # Chromium logs the status 400
        page.find("#report-dialog").send_keys(Keys.ESCAPE)
    page.open(path.as_uri())
    assert page.text("head-heading") == "Cross-attention, layer 1, head 3"
    assert page.fragment.items() >= {"head": "cross.1.3", "cell": "4-2", "palette": "magma"}.items()
    assert page.text("model") == "<b>Dogs</b>"
    assert page.text("author-note") == "Look at the verb & the noun."


def test_calculation_ends_at_the_output_and_links_to_its_page(page, browser, translator):
    page.open(translator.url, "#head=cross.2.5&cell=3-11")
    assert page.text("calculation-output").startswith("Output: W_O maps Σ weight · v to the vector that this head adds")
    rows = {row.text.split(" ")[0]: row for row in page.all("#terms tbody tr")}
    norms = {name: parse_number(row.text.rsplit(" ", 1)[1]) for name, row in rows.items() if name.isdigit()}
    stated = page.text("calculation-output").rpartition("The largest part comes from home, with length ")[2]
    assert parse_number(stated.rstrip(".")) == max(norms.values()) == norms["11"]
    width = page.script("return document.querySelector('#vectors tr:last-child').cells.length - 2")
    assert f"{width} numbers" in page.text("vectors-note")
    for key in (10, 11):  # both are listed, so the rest of the calculation stays the same
        page.open(translator.url, f"#head=cross.2.5&cell=3-{key}")
        assert f"cell=3-{key}" in page.find("#explain-link").get_property("href")
        page.module_script("state.cell && ask('cursor', { query: 3, key: arguments[0] })", 21 - key)
        page.until(lambda key=key: f"cell=3-{21 - key}" in page.find("#explain-link").get_property("href"))
    page.open(translator.url, "#head=cross.2.5&cell=3-11")
    first = browser.current_window_handle
    page.click("#explain-link")
    page.until(lambda: len(browser.window_handles) == 2)
    browser.switch_to.window(next(handle for handle in browser.window_handles if handle != first))
    page.until(lambda: "Head cross.2.5 of en-ja, row 4" in browser.title)
    assert complaints(browser) == []
    browser.close()
    browser.switch_to.window(first)
