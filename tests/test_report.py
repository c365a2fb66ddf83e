"""Reports: what they keep, how large they are, and the page in a real browser."""

import base64
import itertools
import json
import re
import zlib

import numpy as np
import pytest
import torch
from selenium.webdriver.common.by import By
from typer.testing import CliRunner

from browser import browser, emulate, requested, resize
from clearhead import Causal, Recording, report
from clearhead.analysis.roles import Roles, head_roles
from clearhead.cli import app
from clearhead.recording.recording import Stack
from clearhead.viewer import _thumbnails
from clearhead.viewer.report import _layer_summary
from clearhead.viewer.report import export as report_module
from clearhead.viewer.report._layer_summary import outline
from recordings import AWKWARD, decoder, translation
from viewer_page import number, page, violations

__all__ = ["browser", "page"]
PLAIN = [f"t{place}" for place in range(12)]


def kept(recording, name="decoder", layer=0, side=128):
    stack = recording[name]
    own = outline(stack, side)
    return own, _layer_summary.digest(name, stack, layer, own)


def facts_of(written):
    return json.loads(re.search(r"const FACTS = (.*);", written.html)[1])


def arrays_in(written):
    """How much room they take."""
    return sum(map(len, re.findall(r'id="layer-[^>]*>([^<]*)<', written.html)))


class TestWhatIsKept:
    def test_single_cells_of_a_short_text(self):
        recording = decoder(PLAIN)
        own, found = kept(recording)
        weights = recording["decoder"].layers[0]
        assert own.cells
        assert own.places.tolist() == list(range(12))
        np.testing.assert_allclose(found.largest, weights.dense()[0], atol=1e-6)
        np.testing.assert_allclose(found.entropy, weights.entropy()[0], atol=1e-3)
        np.testing.assert_allclose(found.received, weights.received()[0], atol=1e-5)
        top = weights.topk(8)
        np.testing.assert_array_equal(found.top_keys, top.keys[0])
        np.testing.assert_allclose(found.top_weights, top.weights[0], atol=1e-3)

    def test_bins_of_whole_cells(self):
        recording = decoder([str(place) for place in range(37)])
        own, found = kept(recording, side=8)
        assert own.bins == (5, 5)  # 8 bins, the last of two tokens
        dense = recording["decoder"].layers[0].dense()[0].numpy()
        for reduce, values in (("max", found.largest), ("mean", found.mean)):
            expected = np.stack(
                [
                    [
                        [getattr(head[row : row + 5, key : key + 5], reduce)() for key in range(0, 37, 5)]
                        for row in range(0, 37, 5)
                    ]
                    for head in dense
                ]
            )
            np.testing.assert_allclose(values, expected, atol=1e-6)

    def test_of_long_texts_exact_rows(self, monkeypatch):
        monkeypatch.setattr(_thumbnails, "EXACT", 100)
        monkeypatch.setattr(_layer_summary, "SAMPLED", 40)
        recording = decoder([str(place) for place in range(210)], mask=Causal())
        own, found = kept(recording, side=16)
        dense = recording["decoder"].layers[0].dense()[0]
        rows = dense[:, own.places]
        assert own.sampled
        assert len(own.places) == 40
        assert own.bar == 6
        np.testing.assert_allclose(found.entropy, torch.special.entr(rows).sum(-1), atol=3e-3)
        np.testing.assert_allclose(found.top_weights, rows.topk(8).values, atol=1e-3)
        received = rows.sum(1) * 210 / 40
        np.testing.assert_allclose(found.received, received.view(4, 35, 6).mean(-1), rtol=1e-4)
        bins = own.places // own.bins.rows
        for row in range(15):
            inside = rows[:, bins == row]
            for key in range(15):
                part = inside[:, :, 14 * key : 14 * key + 14]
                np.testing.assert_allclose(found.largest[:, row, key], part.amax((1, 2)), atol=1e-6)
                np.testing.assert_allclose(found.mean[:, row, key], part.mean((1, 2)), atol=1e-6)
        assert found.statistics[0].queries == 40

    @pytest.mark.parametrize("side", [128, 8])
    def test_packed_arrays_are_those_in_the_page(self, side, monkeypatch):
        monkeypatch.setattr(report_module, "SIDE", side)
        recording = decoder([str(place) for place in range(37)])
        _, found = kept(recording, side=side)
        written = report(recording)
        text = re.search(r'id="layer-decoder-0">([^<]*)<', written.html)[1]
        raw = zlib.decompress(base64.b64decode(text))
        heads, queries, top = found.top_keys.shape
        keys = np.frombuffer(raw, np.uint16, heads * queries * top)
        shown = found.top_weights > 0  # a query with fewer keys has none there
        np.testing.assert_array_equal(keys.reshape(found.top_keys.shape)[shown], found.top_keys[shown])
        if side == 128:
            maps = np.frombuffer(raw, np.float16, heads * 37 * 37, len(raw) - heads * 37 * 37 * 2)
            np.testing.assert_allclose(maps.reshape(heads, 37, 37), found.largest, atol=1e-3)
            return
        levels = np.frombuffer(raw, np.uint8, 2 * heads * 64, len(raw) - 2 * heads * 64).reshape(2, heads, 8, 8)
        floor = 0.1 / 37
        for shades, values in zip(levels, (found.largest, found.mean), strict=True):
            assert ((shades == 0) == (values == 0)).all()
            seen = shades > 1
            # half a shade either way
            np.testing.assert_allclose(
                floor ** (1 - shades[seen] / 255), values[seen], rtol=-np.log(floor) / 255 / 2 + 1e-4
            )

    def test_queries_are_left_out_where_there_is_no_room(self, monkeypatch):
        monkeypatch.setattr(_layer_summary, "KEPT", 200)
        recording = decoder([str(place) for place in range(300)])
        room = arrays_in(report(recording)) - 1
        monkeypatch.setattr(report_module, "LIMIT", room)
        written = report(recording)
        stack = facts_of(written)["stacks"][0]
        assert stack["kept"] == len(stack["places"]) == 100
        assert written.notes == (
            "decoder: thinned, largest weights and entropy are those of 100 evenly spaced queries of 300",
        )
        assert arrays_in(written) <= room

    def test_many_heads_get_smaller_maps(self, monkeypatch):
        monkeypatch.setattr(report_module, "HEADS", 2)
        stack = facts_of(report(decoder([str(place) for place in range(200)])))["stacks"][0]
        assert stack["bins"] == [4, 4]  # of 8 heads, with 64 bins each way
        assert stack["bar"] == 1

    def test_however_many_heads_there_are_the_file_stays_small(self):
        recording = decoder([str(place) for place in range(300)], layers=1, heads=16, mask=None)
        [weights], own = recording["decoder"].layers, recording["decoder"].queries
        many = Recording("many", {"decoder": Stack((weights,) * 40, own, own)})
        written = report(many)
        assert len(written.html) < 20e6
        stack = facts_of(written)["stacks"][0]
        assert stack["bins"] == [4, 4]  # at most 85 bins each way
        assert stack["kept"] == 300

    def test_few_queries_on_many_keys_are_not_sampled(self, monkeypatch):
        monkeypatch.setattr(_thumbnails, "EXACT", 100)
        monkeypatch.setattr(_layer_summary, "SAMPLED", 50)
        written = report(translation([str(place) for place in range(150)], ["a", "b", "c"]))
        cross = facts_of(written)["stacks"][2]
        assert cross["sampled"] == 0
        assert cross["bar"] == 1
        assert [note.split(":")[0] for note in written.notes] == ["encoder"]

    def test_what_is_sampled_and_what_is_thinned_are_told_apart(self, monkeypatch):
        monkeypatch.setattr(_thumbnails, "EXACT", 100)
        monkeypatch.setattr(_layer_summary, "SAMPLED", 64)
        recording = decoder([str(place) for place in range(300)])
        monkeypatch.setattr(report_module, "LIMIT", arrays_in(report(recording)) - 1)
        written = report(recording)
        assert written.notes == (
            "decoder: sampled, all that is shown is from 64 evenly spaced queries of 300, each of them exact",
            "decoder: thinned, largest weights and entropy are those of 32 evenly spaced queries of 300",
        )
        assert facts_of(written)["stacks"][0]["sampled"] == 64

    def test_a_tiny_weight_is_not_none(self):
        tiny = _layer_summary._cells(np.array([[[0.0, 1e-12, 0.5]]], np.float32))
        assert tiny[0, 0, 0] == 0
        assert 0 < tiny[0, 0, 1] < 1e-7
        assert tiny[0, 0, 2] == 0.5

    def test_labels_are_those_of_this_text_or_of_roles(self):
        recording = decoder(PLAIN)
        assert "previous token" not in report(recording).html
        roles = head_roles([recording])
        own = {**roles.heads}
        statistics = own["decoder", 1, 2]
        own["decoder", 1, 2] = type(statistics)(**{**vars(statistics), "previous": 0.9, "keys": 20.0})
        written = report(recording, roles=Roles(roles.model, own))
        assert "previous token" in facts_of(written)["stacks"][0]["layers"][1][2]["labels"]
        assert facts_of(written)["labelled"]

    def test_wrong_arguments_are_named(self, tmp_path):
        with pytest.raises(TypeError, match="recording is str; expected a Recording"):
            report("en-ja")
        with pytest.raises(FileNotFoundError, match="there is no folder"):
            report(decoder(PLAIN), tmp_path / "missing" / "report.html")
        with pytest.raises(ValueError, match="roles is of 'another'"):
            report(decoder(PLAIN), roles=Roles("another", {}))
        assert list(tmp_path.iterdir()) == []

    def test_a_file_stays_as_it_was_when_something_goes_wrong(self, tmp_path):
        path = tmp_path / "report.html"
        path.write_text("mine")

        def stop(done, of):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            report(decoder(PLAIN), path, progress=stop)
        assert path.read_text() == "mine"
        assert list(tmp_path.iterdir()) == [path]


class TestCommand:
    def test_writes_a_report_and_says_so(self, tmp_path):
        path = tmp_path / "report.html"
        done = CliRunner().invoke(app, ["view", "I read a book.", "--output", str(path)])
        assert done.exit_code == 0, done.output
        assert done.output.startswith(f"wrote {path}: Recording('en-ja': encoder 4 × 8 heads, 6 × 6 tokens")
        assert path.read_text().startswith("<!doctype html>")

    def test_of_a_recording(self, tmp_path):
        decoder(PLAIN).save(tmp_path / "own.safetensors")
        done = CliRunner().invoke(
            app, ["view", str(tmp_path / "own.safetensors"), "--output", str(tmp_path / "r.html")]
        )
        assert done.exit_code == 0, done.output
        assert "clearhead: a model" in (tmp_path / "r.html").read_text()

    @pytest.mark.parametrize("name", ["missing/r.html", "own.safetensors", "."])
    def test_where_it_cannot_be_written_is_said_before_the_model_runs(self, tmp_path, name, monkeypatch):
        monkeypatch.setattr("clearhead.models.load_source", lambda *a, **k: pytest.fail("it was loaded"))
        done = CliRunner().invoke(app, ["view", "One.", "--output", str(tmp_path / name)])
        assert done.exit_code == 2
        assert str(tmp_path) in done.output

    def test_is_of_one_text(self, tmp_path):
        (tmp_path / "a.txt").write_text("One.")
        given = ["view", "Two.", "--file", str(tmp_path / "a.txt"), "--output", str(tmp_path / "r.html")]
        done = CliRunner().invoke(app, given)
        assert done.exit_code == 2
        assert "2 texts are given; a report is of one" in done.output


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Reports of a short text, of one with awkward tokens, of one in bins, of one in samples."""
    folder = tmp_path_factory.mktemp("reports")
    recordings = {
        "short": decoder(PLAIN),
        "awkward": decoder(AWKWARD),
        "two": translation(["a", "b", "c"], ["d", "e", "f", "g"]),
        "binned": decoder([f"w{place}" for place in range(300)]),
    }
    for name, recording in recordings.items():
        report(recording, folder / f"{name}.html")
    return {name: (recording, (folder / f"{name}.html").as_uri()) for name, recording in recordings.items()}


def test_opens_alone_and_asks_nobody(page, written, browser):
    recording, url = written["two"]
    page.open(url)
    assert browser.title == "clearhead: a translator"
    assert len(page.all(".thumb")) == 12
    assert page.text("head-heading").startswith("Cross-attention, layer 0")
    assert "4 × 3 tokens · entropy" in page.text("head-facts")
    assert {address.split("#")[0] for address in requested(browser)} <= {url, "about:blank", "data:,"}
    rows = page.all("#statistics tbody tr")
    assert len(rows) == len(list(recording.heads()))
    assert page.script("return [...document.querySelectorAll('.thumb canvas')].every((own) => own.width > 1)")


def test_every_cell_of_a_short_text_can_be_read(page, written):
    recording, url = written["short"]
    page.open(url, "#head=decoder.1.2")
    weights = recording.weights(("decoder", 1, 2))[0, 0]
    said = page.point(4.5, 7.5)
    assert said.startswith("query 7 t7 → key 4 t4: weight ")
    assert number(said.split("weight")[1]) == pytest.approx(float(weights[7, 4]), rel=2e-3)
    page.click("#window-table summary")
    cells = [[own.text for own in row.find_elements(By.CSS_SELECTOR, "th, td")] for row in page.all("#window-table tr")]
    assert cells[0] == ["", *PLAIN]
    assert number(cells[8][5]) == pytest.approx(float(weights[7, 4]), rel=1e-2)
    lines = page.all("#lines path")
    assert len(lines) == int((weights >= 0.02).sum())


def test_a_bin_says_its_range_and_its_weight(page, written):
    recording, url = written["binned"]
    page.open(url, "#head=decoder.0.3")
    weights = recording.weights(("decoder", 0, 3))[0, 0]
    for reduce, word in (("max", "largest"), ("mean", "mean")):
        page.click(f"[name=reduce][value={reduce}]")
        said = page.point(31.5, 121.5)
        assert said.startswith(f"queries 120 to 122 → keys 30 to 32: {word} weight ")
        expected = float(getattr(weights[120:123, 30:33], reduce)())
        least = 0.1 / 300
        if expected > least:
            assert number(said.split("weight")[1]) == pytest.approx(expected, rel=0.06)  # two digits, and half a shade
        else:
            assert "less than" in said


def test_a_query_says_where_it_looks(page, written):
    recording, url = written["binned"]
    page.open(url, "#head=decoder.1.0&cell=200-13")
    top = recording.weights(("decoder", 1, 0)).topk(8)
    expected = [
        f"w{key} {float(weight):.3g}"
        for key, weight in zip(top.keys[0, 0, 200].tolist(), top.weights[0, 0, 200], strict=True)
    ]
    shown = [own.text for own in page.all(".kept button")]
    assert [text.split()[0] for text in shown] == [text.split()[0] for text in expected]
    assert [number(text.split()[1]) for text in shown] == pytest.approx(
        [number(text.split()[1]) for text in expected], rel=1e-2
    )
    assert len(page.all("#from tr")) == 8
    assert not page.find("#to").is_displayed()
    page.click(".kept button")
    assert page.place["cell"] == f"200-{top.keys[0, 0, 200, 0]}"
    assert "weight" in page.text("live")


def test_layer_and_head_stand_in_the_address(page, written, browser):
    _, url = written["short"]
    page.open(url, "#head=decoder.1.3&rows=2-8&keys=0-6")
    assert page.text("head-heading") == "Decoder, layer 1, head 3"
    assert page.window() == [2, 8, 0, 6]
    page.click("[data-head='decoder.0.1'].thumb")
    assert page.place["head"] == "decoder.0.1"
    browser.back()
    page.until(lambda: page.text("head-heading") == "Decoder, layer 1, head 3")
    page.open(url, "#head=nothing.9.9&cell=99-99")
    assert page.text("head-heading").startswith("Decoder, layer")


def test_the_keyboard_does_everything(page, written):
    recording, url = written["short"]
    page.open(url, "#head=decoder.0.0&cell=5-2")
    said = page.keys("\ue015", "\ue014")  # down, right
    assert said.startswith("query t6, key t3, weight ")
    assert number(said.split("weight")[1]) == pytest.approx(
        float(recording.weights(("decoder", 0, 0))[0, 0, 6, 3]), rel=2e-3
    )
    page.keys("+")
    assert page.window()[1] - page.window()[0] == 6
    page.keys("0")
    assert page.window() == [0, 12, 0, 12]


def test_the_wheel_zooms_and_names_tokens(page, written):
    _, url = written["binned"]
    page.open(url, "#head=decoder.0.0")
    assert page.script("return chart.left[0].major_label_overrides.size") == 0
    page.wheel(100, 100, 12)
    row, row_end, _, _ = page.window()
    assert row_end - row < 300
    assert "rows" in page.place
    page.open(url, "#head=decoder.0.0&rows=100-120&keys=90-110")
    assert (
        page.script("return [...chart.left[0].major_label_overrides.values()].map((own) => own.text)[0]")
        == "\u2068w100\u2069"
    )


def test_tokens_are_never_markup(page, written):
    _, url = written["awkward"]
    page.open(url)
    shown = page.script("return [...document.querySelectorAll('#lines text')].map((own) => own.textContent)")
    assert "</script>" in shown
    assert "$$x$$" in shown
    assert "日本語" in shown
    assert page.script("return document.querySelectorAll('#lines b').length") == 0
    page.point(0.5, 3.5)
    assert "</script>" in page.text("readout")


def test_the_table_sorts_and_opens(page, written):
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
    assert page.place["head"] == f"{name}.{layer}.{head}"
    entropy = float(recording.weights((name, int(layer), int(head))).entropy().mean())
    assert min(values) == pytest.approx(entropy, abs=1e-3)


def test_entropies_stand_where_their_queries_do(page, tmp_path, monkeypatch):
    monkeypatch.setattr(_layer_summary, "KEPT", 200)
    recording = decoder([f"w{place}" for place in range(300)])
    report(recording, tmp_path / "thinned.html")
    page.open((tmp_path / "thinned.html").as_uri(), "#head=decoder.0.1")
    code = "const { start, end, value } = entropy.renderers[0].data_source.data; return [start, end, [...value]]"
    starts, ends, values = page.script(code)
    assert starts[0] == 0
    assert ends[-1] == 300
    assert starts[1:] == ends[:-1]
    entropies = recording.weights(("decoder", 0, 1)).entropy()[0, 0]
    places = page.script("return stackShown().places")
    assert all(start <= place and place + 1 <= end + 1 for start, place, end in zip(starts, places, ends, strict=True))
    assert {later - earlier for earlier, later in itertools.pairwise(places)} == {1, 2}
    assert values == pytest.approx(entropies[places].tolist(), abs=3e-3)


def test_those_who_do_not_see_hear_of_the_cell(page, written):
    _, url = written["binned"]
    page.open(url, "#head=decoder.0.3&cell=121-31")
    said = page.keys("\ue015")  # down
    assert said.startswith("query 122 w122, key 31 w31, in the bin of queries 120 to 122")
    assert page.keys("\ue015") != said


def test_says_what_was_left_out(page, tmp_path, monkeypatch):
    monkeypatch.setattr(_thumbnails, "EXACT", 100)
    monkeypatch.setattr(_layer_summary, "SAMPLED", 50)
    recording = decoder([f"w{place}" for place in range(210)])
    report(recording, tmp_path / "long.html")
    page.open((tmp_path / "long.html").as_uri(), "#head=decoder.0.2&cell=100-3")
    assert "50 evenly spaced queries of 210" in page.text("notes")
    assert "Sampled: from 50 evenly spaced queries" in page.text("heads-note")
    assert "(sampled)" in page.text("head-facts")
    assert "(sampled)" in page.point(3.5, 100.5)
    told = page.find("#lines p").text
    nearest = int(re.match(r"Query (\d+) w\1, the nearest to 100 that is kept", told)[1])
    assert abs(nearest - 100) <= 3
    top = recording.weights(("decoder", 0, 2)).topk(1).keys[0, 0, nearest, 0]
    assert page.find(".kept button").text.startswith(f"w{top} ")


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (800, "dark")])
def test_everyone_can_use_it(page, written, browser, theme, width):
    resize(browser, width)
    emulate(browser, theme=theme)
    page.open(written["short" if theme == "light" else "binned"][1])
    page.click("#window-table summary")
    assert violations(browser) == []


def test_colours_follow_the_theme_and_the_palette(page, written, browser):
    emulate(browser, theme="dark")
    page.open(written["short"][1], "#head=decoder.0.0")
    assert page.script("return chart.left[0].major_label_text_color") == "rgb(236, 238, 242)"
    assert page.colour(0, 5) == [27, 30, 36]  # nothing to see there: the panel's colour
    assert page.colour(0, 0) == [253, 231, 36]
    page.choose("palette", "greys")
    assert page.colour(0, 0) == [0, 0, 0]


def test_paper_is_light(page, written, browser):
    emulate(browser, theme="dark")
    page.open(written["short"][1])
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    emulate(browser, media="print", theme="dark")
    assert page.script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.find(".controls .zoom").is_displayed()
    emulate(browser, theme="dark")
    assert page.script("return chart.left[0].major_label_text_color") == "rgb(236, 238, 242)"  # and dark again
