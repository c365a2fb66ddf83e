"""Tests of a report's page in a real browser."""

import base64
import itertools
import re
from dataclasses import replace

import pytest
import torch
from selenium.webdriver.common.by import By

from clearhead import report
from clearhead._utils.text import short_token
from clearhead.recording.next_tokens import NextTokens
from clearhead.recording.row_labels import LABEL_COLUMNS, row_label
from clearhead.viewer import _thumbnails
from clearhead.viewer.report import _report_layer
from support.browser import emulate, requested, resize
from support.recordings import AWKWARD, decoder, translation
from support.viewer_page import PLAIN_TOKENS, parse_number, violations


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return the recordings and URLs of four reports: short, awkward tokens, encoder–decoder, binned."""
    folder = tmp_path_factory.mktemp("reports")
    recordings = {
        "short": decoder(PLAIN_TOKENS),
        "awkward": decoder(AWKWARD),
        "two": replace(
            translation(["a", "b", "c"], ["d", "e", "f", "g"], written=["e", "f", "g", "<b>"]),
            next_tokens=NextTokens((("e", "<i>"),), torch.tensor([[0.75, 0.125]]), (2,)),
        ),
        "binned": decoder([f"w{index}" for index in range(300)]),
    }
    details = {"awkward": {"title": "<b>T", "note": "1\n</p><b>2", "view": "#head=decoder.1.2&cell=7-4"}}
    for name, recording in recordings.items():
        report(recording, folder / f"{name}.html", **details.get(name, {}))
    return {name: (recording, (folder / f"{name}.html").as_uri()) for name, recording in recordings.items()}


def test_opens_without_network_requests(page, written, browser):
    recording, url = written["two"]
    page.open(url)
    assert browser.title == "clearhead: a translator"
    assert len(page.all(".thumb")) == 12
    assert page.text("head-heading").startswith("Cross-attention, layer 0")
    assert "4 × 3 tokens · entropy" in page.text("head-facts")
    addresses = {address.split("#")[0] for address in requested(browser)}
    assert {address for address in addresses if not address.startswith("data:")} <= {url, "about:blank"}
    rows = page.all("#statistics tbody tr")
    assert len(rows) == len(list(recording.heads()))
    assert page.script("return [...document.querySelectorAll('.thumb canvas')].every((canvas) => canvas.width > 1)")


def test_short_texts_show_every_cell(page, written):
    recording, url = written["short"]
    page.open(url, "#head=decoder.1.2")
    weights = recording.weights(("decoder", 1, 2))[0, 0]
    readout = page.point(4.5, 7.5)
    assert readout.startswith("query 7 t7 → key 4 t4: weight ")
    assert parse_number(readout.split("weight")[1]) == pytest.approx(float(weights[7, 4]), rel=2e-3)
    page.click("#window-table summary")
    cells = [
        [cell.text for cell in row.find_elements(By.CSS_SELECTOR, "th, td")] for row in page.all("#window-table tr")
    ]
    assert cells[0] == ["", *PLAIN_TOKENS]
    assert parse_number(cells[8][5]) == pytest.approx(float(weights[7, 4]), rel=1e-2)
    lines = page.all("#lines .every path")
    assert len(lines) == int((weights >= 0.02).sum())


def test_words_show_the_heads_of_a_layer_and_the_written_tokens(page, written):
    recording, url = written["two"]
    page.open(url, "#head=cross.0.1&cell=2-1")
    assert [word.text for word in page.all("#lines .queries .word")] == ["d → e", "e → f", "f → g", "g → <b>"]
    assert page.text("caption").endswith("when it writes g")
    assert page.text("readout").startswith("query 2 f (writes g) → key 1 b: weight ")
    assert page.text("from-heading") == "What f → g attends to"
    assert page.text("next").replace("\u00a0", " ") == "After f the model expects e 75 %<i> 13 %"
    label = "return [...figures.map.left[0].major_label_overrides.values()].map((label) => label.text)[3]"
    assert page.module_script(label) == "\u2068g → <b>\u2069"
    page.click("#heads-all")
    cells = recording["cross"].layers[0].dense()[0]
    assert len(page.all("#lines .every path")) == int((cells >= 0.02).sum())
    sent = page.module_script("return [...state.words.weights]")
    assert sent == pytest.approx(cells.flatten().tolist(), rel=2e-3, abs=1e-6)
    page.choose("word-stack", "encoder")
    assert page.fragment["head"] == "encoder.0.1"
    assert page.text("next") == ""
    assert [word.text for word in page.all("#lines .queries .word")] == ["a", "b", "c"]


def test_words_of_a_longer_text_are_the_stored_weights(page, written):
    recording, url = written["binned"]
    page.open(url, "#head=decoder.1.0&cell=200-13")
    queries, keys, sent = page.module_script(
        "const { queries, keys, weights } = state.words; return [queries, keys, weights]"
    )
    assert 200 in queries
    assert len(queries) == 20
    top = recording["decoder"].layers[1].topk(8)
    stored = torch.zeros(4, len(queries), 300).scatter(2, top.keys[0][:, queries], top.weights[0][:, queries])
    shown = torch.tensor(sent).view(4, len(queries), len(keys))
    torch.testing.assert_close(shown, stored[:, :, keys], rtol=2e-3, atol=1e-6)
    assert set(top.keys[0, 0, 200, :1].tolist()) <= set(keys)
    assert len(page.all("#lines .every path")) > 0


def test_readout_shows_the_range_and_weight_of_a_bin(page, written):
    recording, url = written["binned"]
    page.open(url, "#head=decoder.0.3")
    weights = recording.weights(("decoder", 0, 3))[0, 0]
    for reduce, word in (("max", "largest"), ("mean", "mean")):
        page.click(f"[name=reduce][value={reduce}]")
        readout = page.point(31.5, 121.5)
        assert readout.startswith(f"queries 120 to 122 → keys 30 to 32: {word} weight ")
        expected = float(getattr(weights[120:123, 30:33], reduce)())
        least = 0.1 / 300
        if expected > least:  # rounding to two digits and half a shade
            assert parse_number(readout.split("weight")[1]) == pytest.approx(expected, rel=0.06)
        else:
            assert "less than" in readout


def test_query_lists_its_top_keys(page, written):
    recording, url = written["binned"]
    page.open(url, "#head=decoder.1.0&cell=200-13")
    top = recording.weights(("decoder", 1, 0)).topk(8)
    expected = [
        f"w{key} {float(weight):.3g}"
        for key, weight in zip(top.keys[0, 0, 200].tolist(), top.weights[0, 0, 200], strict=True)
    ]
    shown = [button.text for button in page.all(".kept button")]
    assert [text.split()[0] for text in shown] == [text.split()[0] for text in expected]
    assert [parse_number(text.split()[1]) for text in shown] == pytest.approx(
        [parse_number(text.split()[1]) for text in expected], rel=1e-2
    )
    assert len(page.all("#from tr")) == 8
    assert not page.find("#to").is_displayed()
    page.click(".kept button")
    assert page.fragment["cell"] == f"200-{top.keys[0, 0, 200, 0]}"
    assert "weight" in page.text("live")


def test_address_selects_head_and_window(page, written, browser):
    _, url = written["short"]
    page.open(url, "#head=decoder.1.3&rows=2-8&keys=0-6")
    assert page.text("head-heading") == "Decoder, layer 1, head 3"
    assert page.window() == [2, 8, 0, 6]
    page.click("[data-head='decoder.0.1'].thumb")
    assert page.fragment["head"] == "decoder.0.1"
    browser.back()
    page.until(lambda: page.text("head-heading") == "Decoder, layer 1, head 3")
    page.open(url, "#head=nothing.9.9&cell=99-99")
    assert page.text("head-heading").startswith("Decoder, layer")


def test_keyboard_moves_the_cursor_and_zooms(page, written):
    recording, url = written["short"]
    page.open(url, "#head=decoder.0.0&cell=5-2")
    readout = page.keys("\ue015", "\ue014")  # down, right
    assert readout.startswith("query t6, key t3, weight ")
    assert parse_number(readout.split("weight")[1]) == pytest.approx(
        float(recording.weights(("decoder", 0, 0))[0, 0, 6, 3]), rel=2e-3
    )
    page.keys("+")
    assert page.window()[1] - page.window()[0] == 6
    page.keys("0")
    assert page.window() == [0, 12, 0, 12]


def test_wheel_zooms_and_axes_show_tokens(page, written):
    _, url = written["binned"]
    page.open(url, "#head=decoder.0.0")
    assert page.module_script("return figures.map.left[0].major_label_overrides.size") == 0
    page.wheel(100, 100, 12)
    row, row_end, _, _ = page.window()
    assert row_end - row < 300
    assert "rows" in page.fragment
    page.open(url, "#head=decoder.0.0&rows=100-120&keys=90-110")
    assert (
        page.module_script(
            "return [...figures.map.left[0].major_label_overrides.values()].map((label) => label.text)[0]"
        )
        == "\u2068w100\u2069"
    )


def test_axes_and_pinned_maps_have_the_labels_of_the_figures(page, tmp_path):
    tokens = ["帰宅した", "学校から帰ると", "internationally", "d" * 15, "constructor"]
    recording = translation(["e" * 16, "f" * 17, "夕食" * 5], tokens, written=[*tokens[1:], "。"])
    report(recording, tmp_path / "report.html")
    page.open((tmp_path / "report.html").as_uri(), "#head=cross.0.1&pin=cross.0.2")
    stack = recording["cross"]
    expected = [
        [row_label(stack, query) for query in range(5)],
        [short_token(text, LABEL_COLUMNS) for text in stack.keys.texts],
    ]
    assert expected[0][0] == "帰宅… → 学校か…"
    axes = page.module_script("""
        const labels = (axis) => [...axis.major_label_overrides.values()].map(({ text }) => text.slice(1, -1));
        return [labels(figures.map.left[0]), labels(figures.map.above[0])];
    """)
    assert axes == expected
    page.until(lambda: page.module_script("return Boolean(state.compare)"))
    assert page.module_script("return [state.compare.queries, state.compare.keys]") == expected


def test_tokens_are_escaped(page, written, browser):
    _, url = written["awkward"]
    page.open(url)
    shown = page.script("return [...document.querySelectorAll('#lines .word')].map((word) => word.textContent)")
    assert "</script>" in shown
    assert "$$x$$" in shown
    assert "日本語" in shown
    assert page.script("return document.querySelectorAll('#lines b').length") == 0
    page.point(0.5, 3.5)
    assert "</script>" in page.text("readout")
    assert browser.title == "<b>T"
    assert page.find("#author-note").text == "1\n</p><b>2"
    assert page.text("origin").startswith("a model · 20")


def test_opens_on_the_view_of_the_sender(page, written):
    _, url = written["awkward"]
    page.open(url)
    assert page.text("head-heading") == "Decoder, layer 1, head 2"
    assert page.fragment["cell"] == "7-4"
    page.open(url, "#head=decoder.0.1")
    assert page.text("head-heading") == "Decoder, layer 0, head 1"


def test_table_sorts_and_opens_heads(page, written):
    recording, url = written["short"]
    page.open(url)
    page.click("#statistics thead th:nth-child(3) button")
    read = """
        const rows = [...document.querySelectorAll("#statistics tbody tr")];
        return rows.map((row) => [row.cells[0].textContent, row.cells[2].textContent]);
    """
    rows = page.script(read)
    values = [float(value) for _, value in rows]
    assert values == sorted(values, reverse=True)
    page.click("#statistics thead th:nth-child(3) button")
    assert [float(value) for _, value in page.script(read)] == sorted(values)
    page.click("#statistics tbody tr .place")
    name, layer, head = page.script(read)[0][0].replace(" ", ".").split(".")
    assert page.fragment["head"] == f"{name}.{layer}.{head}"
    entropy = float(recording.weights((name, int(layer), int(head))).entropy().mean())
    assert min(values) == pytest.approx(entropy, abs=1e-3)


def test_entropy_bars_align_with_stored_queries(page, tmp_path, monkeypatch):
    monkeypatch.setattr(_report_layer, "MAX_STORED_QUERIES", 200)
    recording = decoder([f"w{index}" for index in range(300)])
    report(recording, tmp_path / "subsampled.html")
    page.open((tmp_path / "subsampled.html").as_uri(), "#head=decoder.0.1")
    code = (
        "const { start, end, value } = figures.entropy.renderers[0].data_source.data; return [start, end, [...value]]"
    )
    starts, ends, values = page.module_script(code)
    assert starts[0] == 0
    assert ends[-1] == 300
    assert starts[1:] == ends[:-1]
    entropies = recording.weights(("decoder", 0, 1)).entropy()[0, 0]
    queries = page.module_script("return state.model.stacks[0].places")
    assert all(start <= query and query <= end for start, query, end in zip(starts, queries, ends, strict=True))
    assert {later - earlier for earlier, later in itertools.pairwise(queries)} == {1, 2}
    assert values == pytest.approx(entropies[queries].tolist(), abs=3e-3)


def test_screen_readers_announce_the_cell_and_its_bin(page, written):
    _, url = written["binned"]
    page.open(url, "#head=decoder.0.3&cell=121-31")
    readout = page.keys("\ue015")  # down
    assert readout.startswith("query 122 w122, key 31 w31, in the bin of queries 120 to 122")
    assert page.keys("\ue015") != readout


def test_page_marks_sampled_data(page, tmp_path, monkeypatch):
    monkeypatch.setattr(_thumbnails, "MAX_EXACT_TOKENS", 100)
    monkeypatch.setattr(_report_layer, "MAX_SAMPLED_QUERIES", 50)
    recording = decoder([f"w{index}" for index in range(210)])
    report(recording, tmp_path / "long.html")
    page.open((tmp_path / "long.html").as_uri(), "#head=decoder.0.2&cell=100-3")
    assert "50 evenly spaced queries of 210" in page.text("notes")
    assert "Sampled: computed from 50 evenly spaced queries" in page.text("heads-note")
    assert "(sampled)" in page.text("head-facts")
    assert "(sampled)" in page.point(3.5, 100.5)
    note = page.find("#strip p").text
    nearest = int(re.match(r"Query (\d+) w\1, the stored query nearest to 100", note)[1])
    assert abs(nearest - 100) <= 3
    assert page.text("from-heading") == f"What w{nearest} (query {nearest}, the nearest that is stored) attends to"
    top = recording.weights(("decoder", 0, 2)).topk(1).keys[0, 0, nearest, 0]
    assert page.find(".kept button").text.startswith(f"w{top} ")


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (800, "dark")])
def test_page_has_no_accessibility_violations(page, written, browser, theme, width):
    resize(browser, width)
    emulate(browser, theme=theme)
    page.open(written["short" if theme == "light" else "binned"][1])
    page.click("#window-table summary")
    assert violations(browser) == []


def test_colors_follow_the_theme_and_the_palette(page, written, browser):
    emulate(browser, theme="dark")
    page.open(written["short"][1], "#head=decoder.0.0")
    assert page.module_script("return figures.map.left[0].major_label_text_color") == "rgb(236, 238, 242)"
    masked = "return figures.map.center.find((part) => part.name === 'masked').hatch_color"
    assert page.module_script(masked) == "rgb(93, 100, 115)"
    assert page.color(0, 0) == [253, 231, 36]
    page.choose("palette", "greys")
    assert page.color(0, 0) == [0, 0, 0]


def test_prints_with_light_colors(page, written, browser):
    emulate(browser, theme="dark")
    page.open(written["short"][1])
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    emulate(browser, media="print", theme="dark")
    assert page.script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.find(".controls .zoom").is_displayed()
    emulate(browser, theme="dark")
    assert page.module_script("return figures.map.left[0].major_label_text_color") == "rgb(236, 238, 242)"  # dark again
