"""Tests of reports: their data, their size, and the command that writes them."""

import base64
import json
import re
import zlib
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from bokeh.document import Document
from bokeh.io import doc
from bokeh.io.doc import curdoc, patch_curdoc
from typer.testing import CliRunner

from clearhead import Causal, Recording, report
from clearhead.analysis.roles import Roles, head_roles
from clearhead.cli import app
from clearhead.recording.next_tokens import NextTokens
from clearhead.recording.recording import Stack
from clearhead.viewer import _thumbnails
from clearhead.viewer._recording_cache import RecordingCache
from clearhead.viewer.report import _details, _report_layer, export
from clearhead.viewer.report._report_layer import SamplingPlan, summarize_layer
from support.fonts import embedded
from support.recordings import decoder, translation, with_values
from support.viewer_page import PLAIN_TOKENS


def summarize(recording, name="decoder", layer=0, max_bins=128, chosen=()):
    """Return the sampling plan of a stack, and the stored data of a layer."""
    stack = recording[name]
    plan = SamplingPlan.from_stack(stack, max_bins, chosen=chosen)
    return plan, summarize_layer(name, stack, layer, plan)


def model_payload(written):
    return json.loads(re.search(r'id="stored-model">(.*)</script>', written.html)[1])


def array_bytes(written):
    """Return the size of the arrays in a report's page."""
    return sum(map(len, re.findall(r'<script[^>]* id="layer-[^>]*>([^<]*)<', written.html)))


class TestContents:
    def test_short_texts_store_single_cells(self):
        recording = decoder(PLAIN_TOKENS)
        plan, layer = summarize(recording)
        weights = recording["decoder"].layers[0]
        assert plan.single_cells
        assert plan.query_indices.tolist() == list(range(12))
        np.testing.assert_allclose(layer.maps.largest, weights.dense()[0], atol=1e-6)
        np.testing.assert_allclose(layer.entropy, weights.entropy()[0], atol=1e-3)
        np.testing.assert_allclose(layer.received, weights.received()[0], atol=1e-5)
        top = weights.topk(8)
        np.testing.assert_array_equal(layer.top_keys, top.keys[0])
        np.testing.assert_allclose(layer.top_weights, top.weights[0], atol=1e-3)

    def test_bins_contain_whole_cells(self):
        recording = decoder([str(index) for index in range(37)])
        plan, layer = summarize(recording, max_bins=8)
        assert plan.bin_size == (5, 5)  # 8 bins, the last with two tokens
        dense = recording["decoder"].layers[0].dense()[0].numpy()
        for reduce, values in (("max", layer.maps.largest), ("mean", layer.maps.mean)):
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

    def test_long_texts_store_exact_rows(self, monkeypatch):
        monkeypatch.setattr(_thumbnails, "MAX_EXACT_TOKENS", 100)
        monkeypatch.setattr(_report_layer, "MAX_SAMPLED_QUERIES", 40)
        recording = decoder([str(index) for index in range(210)], mask=Causal())
        plan, layer = summarize(recording, max_bins=16)
        dense = recording["decoder"].layers[0].dense()[0]
        rows = dense[:, plan.query_indices]
        assert plan.sampled
        assert len(plan.query_indices) == 40
        assert plan.keys_per_bar == 6
        np.testing.assert_allclose(layer.entropy, torch.special.entr(rows).sum(-1), atol=3e-3)
        np.testing.assert_allclose(layer.top_weights, rows.topk(8).values, atol=1e-3)
        received = rows.sum(1) * 210 / 40
        np.testing.assert_allclose(layer.received, received.view(4, 35, 6).mean(-1), rtol=1e-4)
        bins = plan.query_indices // plan.bin_size.rows
        for row in range(15):
            inside = rows[:, bins == row]
            for key in range(15):
                part = inside[:, :, 14 * key : 14 * key + 14]
                np.testing.assert_allclose(layer.maps.largest[:, row, key], part.amax((1, 2)), atol=1e-6)
                np.testing.assert_allclose(layer.maps.mean[:, row, key], part.mean((1, 2)), atol=1e-6)
        assert layer.statistics[0].queries == 40

    @pytest.mark.parametrize("max_bins", [128, 8], ids=["exact", "sampled"])
    def test_scaled_matrix_has_the_entropy_of_the_unscaled_one(self, max_bins):
        recording = decoder([str(index) for index in range(37)], layers=1)
        stack = recording["decoder"]
        factors = torch.linspace(0, 1, 37)
        scaled = Recording("scaled", {"decoder": replace(stack, layers=(stack.layers[0].scaled(factors),))})
        (_, plain), (_, layer) = (summarize(each, max_bins=max_bins) for each in (recording, scaled))
        np.testing.assert_allclose(layer.entropy, plain.entropy, atol=1e-3)
        np.testing.assert_allclose(layer.received, plain.received * factors.numpy(), atol=1e-4)
        assert "layer-decoder-0" in report(scaled).html

    @pytest.mark.parametrize("max_bins", [128, 8])
    def test_page_contains_the_packed_arrays(self, max_bins, monkeypatch):
        monkeypatch.setattr(export, "MAX_HEATMAP_BINS", max_bins)
        recording = decoder([str(index) for index in range(37)])
        _, layer = summarize(recording, max_bins=max_bins)
        written = report(recording)
        text = re.search(r'id="layer-decoder-0">([^<]*)<', written.html)[1]
        raw = zlib.decompress(base64.b64decode(text))
        heads, queries, top = layer.top_keys.shape
        keys = np.frombuffer(raw, np.uint16, heads * queries * top)
        stored = layer.top_weights > 0  # a query with fewer than 8 visible keys has fewer
        np.testing.assert_array_equal(keys.reshape(layer.top_keys.shape)[stored], layer.top_keys[stored])
        if max_bins == 128:
            maps = np.frombuffer(raw, np.float16, heads * 37 * 37, len(raw) - heads * 37 * 37 * 2)
            np.testing.assert_allclose(maps.reshape(heads, 37, 37), layer.maps.largest, atol=1e-3)
            return
        levels = np.frombuffer(raw, np.uint8, 2 * heads * 64, len(raw) - 2 * heads * 64).reshape(2, heads, 8, 8)
        floor = 0.1 / 37
        for shades, values in zip(levels, (layer.maps.largest, layer.maps.mean), strict=True):
            assert ((shades == 0) == (values == 0)).all()
            visible = shades > 1
            # rounding error: half a shade
            np.testing.assert_allclose(
                floor ** (1 - shades[visible] / 255), values[visible], rtol=-np.log(floor) / 255 / 2 + 1e-4
            )

    def test_large_files_store_fewer_queries(self, monkeypatch):
        monkeypatch.setattr(_report_layer, "MAX_STORED_QUERIES", 200)
        recording = decoder([str(index) for index in range(300)])
        limit = array_bytes(report(recording)) - 1
        monkeypatch.setattr(export, "MAX_ARRAY_BYTES", limit)
        written = report(recording)
        stack = model_payload(written)["stacks"][0]
        assert stack["kept"] == len(stack["places"]) < 130
        assert set(range(292, 300)) < set(stack["places"])
        assert written.notes == (
            f"decoder: subsampled, top keys and entropy are stored for {stack['kept']} of 300 queries: evenly spaced,"
            " and the tokens at the end and in focus",
        )
        assert array_bytes(written) <= limit

    def test_many_heads_get_smaller_heatmaps(self, monkeypatch):
        monkeypatch.setattr(export, "MAX_FULL_SIZE_HEADS", 2)
        stack = model_payload(report(decoder([str(index) for index in range(200)])))["stacks"][0]
        assert stack["bins"] == [4, 4]  # 8 heads with at most 64 bins per axis
        assert stack["bar"] == 1

    @pytest.mark.slow
    def test_many_heads_keep_the_file_small(self):
        recording = decoder([str(index) for index in range(300)], layers=1, heads=16, mask=None)
        [weights], tokens = recording["decoder"].layers, recording["decoder"].queries
        many = Recording("many", {"decoder": Stack((weights,) * 40, tokens, tokens)})
        written = report(many)
        assert len(written.html) < 20e6
        stack = model_payload(written)["stacks"][0]
        assert stack["bins"] == [4, 4]  # at most 85 bins per axis
        assert stack["kept"] == 300

    def test_few_queries_on_many_keys_are_not_sampled(self, monkeypatch):
        monkeypatch.setattr(_thumbnails, "MAX_EXACT_TOKENS", 100)
        monkeypatch.setattr(_report_layer, "MAX_SAMPLED_QUERIES", 50)
        written = report(translation([str(index) for index in range(150)], ["a", "b", "c"]))
        cross = model_payload(written)["stacks"][2]
        assert cross["sampled"] == 0
        assert cross["bar"] == 1
        assert [note.split(",")[0] for note in written.notes] == ["encoder: sampled", "encoder: subsampled"]

    def test_notes_distinguish_sampled_from_subsampled(self, monkeypatch):
        monkeypatch.setattr(_thumbnails, "MAX_EXACT_TOKENS", 100)
        monkeypatch.setattr(_report_layer, "MAX_SAMPLED_QUERIES", 64)
        recording = decoder([str(index) for index in range(300)])
        monkeypatch.setattr(export, "MAX_ARRAY_BYTES", array_bytes(report(recording)) - 1)
        written = report(recording)
        stack = model_payload(written)["stacks"][0]
        assert written.notes == (
            "decoder: sampled, everything is computed from 64 evenly spaced queries of 300 (exact rows)",
            f"decoder: subsampled, top keys and entropy are stored for {stack['kept']} of 300 queries: evenly spaced,"
            " and the tokens at the end and in focus",
        )
        assert (stack["sampled"], stack["kept"]) == (64, pytest.approx(46, abs=14))

    @pytest.mark.parametrize("longest", [4096, 100], ids=["exact", "sampled"])
    def test_rows_in_focus_are_stored(self, longest, monkeypatch):
        monkeypatch.setattr(_thumbnails, "MAX_EXACT_TOKENS", longest)
        monkeypatch.setattr(_report_layer, "MAX_SAMPLED_QUERIES", 20)
        monkeypatch.setattr(_report_layer, "MAX_STORED_QUERIES", 20)
        recording = decoder([str(index) for index in range(300)], special=(150,))
        chosen = _details.focused_queries(RecordingCache(recording), "decoder", ("decoder", 77))
        assert {*range(292, 300), 77, 0, 150} <= set(chosen)
        rows = torch.stack([weights[0, :, 77] for weights in recording["decoder"].layers])
        rows[..., [0, 150]] = 0
        assert int(rows.flatten().argmax()) % 300 in chosen  # the key of the strongest link
        plan, layer = summarize(recording, max_bins=16, chosen=chosen)
        plain_plan, plain = summarize(recording, max_bins=16)
        assert plan.query_indices.tolist() == sorted({*chosen, *plain_plan.query_indices.tolist()})
        dense = recording["decoder"].layers[0].dense()[0]
        stored = dense[:, plan.query_indices]
        np.testing.assert_allclose(layer.entropy, torch.special.entr(stored).sum(-1), atol=4e-3)
        np.testing.assert_allclose(layer.top_weights, stored.topk(8).values, atol=1e-3)
        np.testing.assert_array_equal(layer.top_keys[:, :, 0], stored.argmax(-1))
        assert layer.statistics == plain.statistics  # means are over evenly spaced queries only
        np.testing.assert_array_equal(layer.maps.mean, plain.maps.mean)
        np.testing.assert_array_equal(layer.received, plain.received)
        assert (layer.maps.largest >= plain.maps.largest).all()
        last = dense[:, 292:].amax(dim=1)
        assert (layer.maps.largest[:, -1].max(-1) >= last.amax(-1).numpy() - 1e-6).all()  # the end is always drawn

    def test_tiny_weights_are_not_stored_as_0(self):
        tiny = _report_layer._as_half(np.array([[[0.0, 1e-12, 0.5]]], np.float32))
        assert tiny[0, 0, 0] == 0
        assert 0 < tiny[0, 0, 1] < 1e-7
        assert tiny[0, 0, 2] == 0.5

    def test_labels_come_from_the_text_or_from_roles(self):
        recording = decoder(PLAIN_TOKENS)
        assert "previous token" not in report(recording).html
        roles = head_roles([recording])
        heads = {**roles.heads}
        statistics = heads["decoder", 1, 2]
        heads["decoder", 1, 2] = type(statistics)(**{**vars(statistics), "previous": 0.9, "keys": 20.0})
        written = report(recording, roles=Roles(roles.model, heads))
        assert "previous token" in model_payload(written)["stacks"][0]["layers"][1][2]["labels"]
        assert model_payload(written)["labeled"]

    def test_rejects_wrong_arguments(self, tmp_path):
        with pytest.raises(TypeError, match="recording is str; expected a Recording"):
            report("en-ja")
        with pytest.raises(FileNotFoundError, match="there is no folder"):
            report(decoder(PLAIN_TOKENS), tmp_path / "missing" / "report.html")
        with pytest.raises(ValueError, match="roles is of 'another'"):
            report(decoder(PLAIN_TOKENS), roles=Roles("another", {}))
        with pytest.raises(TypeError, match="note is 3; expected a string"):
            report(decoder(PLAIN_TOKENS), note=3)
        with pytest.raises(ValueError, match="title has 201 characters; expected at most 200"):
            report(decoder(PLAIN_TOKENS), title="t" * 201)
        with pytest.raises(ValueError, match="view is 'head=a b'; expected a URL fragment"):
            report(decoder(PLAIN_TOKENS), view="head=a b")
        assert list(tmp_path.iterdir()) == []

    def test_page_embeds_the_glyphs_of_its_texts(self):
        assert embedded(report(decoder(PLAIN_TOKENS)).html) == set()
        predicted = NextTokens((("八",),), torch.tensor([[0.75]]), (2,))
        recording = translation(["一", "b"], ["二", "三", "c"], written=["四", "", ""])
        recording = replace(recording, next_tokens=predicted, input="五", output="六")
        assert embedded(report(recording, title="七", note="九").html) == set("一二三四五六七八九")

    def test_page_carries_title_date_command_note_and_view(self, monkeypatch):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        details = {"title": "<b>Title", "note": "line 1\nline 2 </p><script>", "command": "clearhead view 'a & b'"}
        written = report(decoder(PLAIN_TOKENS), view="#head=decoder.1.2&cell=7-4", **details)
        head = written.html[written.html.index("<header>") : written.html.index("<main>")]
        for text in ("2023-11-14 22:13 UTC", "&lt;b&gt;Title", "line 1\nline 2 &lt;/p&gt;&lt;script&gt;", "a &amp; b"):
            assert text in head
        assert "<b>" not in head
        assert model_payload(written)["view"] == "head=decoder.1.2&cell=7-4"
        texts = {"input": "a < b\x1b " + 30_000 * "x", "output": "ü <i>"}
        shown = report(replace(decoder(PLAIN_TOKENS), **texts)).html
        shown = shown[shown.index('<dl id="texts">') : shown.index("</dl>")]
        assert "a &lt; b\\x1b xxx" in shown
        assert "xxx … (10,007 more characters)" in shown
        assert "ü &lt;i&gt;" in shown
        plain = report(decoder(PLAIN_TOKENS)).html
        assert 'id="author-note"' not in plain
        assert 'id="texts"' not in plain
        assert "<title>clearhead: a model</title>" in plain

    def test_report_works_after_a_viewer_callback_has_failed(self):
        with suppress(ZeroDivisionError), patch_curdoc(Document()):
            _ = 1 / 0
        try:
            with pytest.raises(RuntimeError, match="previously destroyed"):
                curdoc()
            assert str(report(decoder(PLAIN_TOKENS)))
        finally:
            doc._PATCHED_CURDOCS.clear()

    def test_interrupted_report_keeps_the_old_file(self, tmp_path):
        path = tmp_path / "report.html"
        path.write_text("mine")

        def stop(done, total):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            report(decoder(PLAIN_TOKENS), path, progress=stop)
        assert path.read_text() == "mine"
        assert list(tmp_path.iterdir()) == [path]

    @pytest.mark.parametrize("longest", [4096, 100], ids=["exact", "sampled"])
    def test_bins_are_stored_with_values_and_without_sinks(self, longest, monkeypatch):
        monkeypatch.setattr(_thumbnails, "MAX_EXACT_TOKENS", longest)
        monkeypatch.setattr(_report_layer, "MAX_SAMPLED_QUERIES", 30)
        recording, added = with_values(decoder([str(index) for index in range(120)], special=(7, 50)))
        cache = RecordingCache(recording)
        plans = export.sampling_plans(cache, _details.ReportDetails())
        plan = SamplingPlan.from_stack(recording["decoder"], 16, 8, hidden=cache.hidden_keys("decoder"))
        assert plans["decoder"].hidden == plan.hidden == (0, 7, 50)
        layer = summarize_layer("decoder", recording["decoder"], 1, plan, cache.value_shares("decoder", 1))
        dense = recording["decoder"].layers[1].dense()[0][:, plan.query_indices if plan.sampled else slice(None)]
        contributions = (dense[..., None] * added[1][:, None]).norm(dim=-1)
        largest = added[1].norm(dim=-1).amax(dim=1)[:, None, None]
        rows = np.arange(120)[plan.query_indices if plan.sampled else slice(None)] // plan.bin_size.rows
        for stored, cells in ((layer.maps, dense), (layer.weighted_maps, contributions / largest)):
            visible = cells.clone()
            visible[:, :, [0, 7, 50]] = 0
            for shown, columns, whole, reduce in (
                (stored.largest, range(15), cells, "amax"),
                (stored.mean, range(15), cells, "mean"),
                (stored.hidden_largest, (0, 6), visible, "amax"),
                (stored.hidden_mean, (0, 6), visible, "mean"),
            ):
                bins = [
                    [getattr(whole[:, rows == row, 8 * key : 8 * key + 8], reduce)((1, 2)) for key in columns]
                    for row in range(shown.shape[1])
                ]
                np.testing.assert_allclose(shown, np.moveaxis(np.array(bins), 2, 0), rtol=1e-4, atol=1e-7)
        received = dense.sum(dim=1) * 120 / dense.shape[1]
        received[:, [0, 7, 50]] = 0
        width = plan.keys_per_bar
        bars = [received[:, width * bar :][:, :width].mean(dim=1) for bar in sorted({0, 7 // width, 50 // width})]
        np.testing.assert_allclose(layer.hidden_received, torch.stack(bars, dim=1), rtol=1e-4)

    def test_value_weighted_maps_are_left_out_before_queries(self, monkeypatch):
        recording, _ = with_values(decoder([str(index) for index in range(200)]))
        whole, plain = report(recording), report(decoder([str(index) for index in range(200)]))
        assert model_payload(whole)["stacks"][0]["value_weighted"]
        assert 'id="weighted"' in whole.html
        for limit, kept in ((array_bytes(whole) - 1, 200), (array_bytes(plain) - 1, 100)):
            monkeypatch.setattr(export, "MAX_ARRAY_BYTES", limit)
            written = report(recording)
            assert written.notes[0] == "value-weighted maps are left out, because the file would be too large"
            stack = model_payload(written)["stacks"][0]
            assert not stack["value_weighted"]
            assert kept <= stack["kept"] < kept + 20
            assert 'id="weighted"' not in written.html
            assert 'id="hide"' in written.html


class TestCommand:
    def test_writes_a_report_and_prints_its_path(self, tmp_path):
        path = tmp_path / "report.html"
        done = CliRunner().invoke(app, ["view", "I read a book.", "--output", str(path)])
        assert done.exit_code == 0, done.output
        assert done.output.startswith(f"wrote {path}: Recording('en-ja': encoder 4 × 8 heads, 6 × 6 tokens")
        page = path.read_text()
        assert page.startswith("<!doctype html>")
        assert page.count('"value_weighted": true') == 3  # values are recorded

    def test_title_and_note_are_those_of_the_author(self, tmp_path, monkeypatch):
        decoder(PLAIN_TOKENS).save(tmp_path / "recording.safetensors")
        arguments = ["view", str(tmp_path / "recording.safetensors"), "--title", "Mine", "--note", "See head 1.2."]
        monkeypatch.setattr("sys.argv", ["clearhead", *arguments])
        done = CliRunner().invoke(app, [*arguments, "--output", str(tmp_path / "r.html")])
        assert done.exit_code == 0, done.output
        page = (tmp_path / "r.html").read_text()
        assert "<title>Mine</title>" in page
        assert "See head 1.2." in page
        assert "--title Mine --note" in page
        refused = CliRunner().invoke(app, ["view", "--note", "a"])
        assert refused.exit_code == 2
        assert "--note is given without --output" in refused.output

    def test_accepts_a_recording(self, tmp_path):
        decoder(PLAIN_TOKENS).save(tmp_path / "recording.safetensors")
        done = CliRunner().invoke(
            app, ["view", str(tmp_path / "recording.safetensors"), "--output", str(tmp_path / "r.html")]
        )
        assert done.exit_code == 0, done.output
        assert "clearhead: a model" in (tmp_path / "r.html").read_text()

    @pytest.mark.parametrize("name", ["missing/r.html", "recording.safetensors", "."])
    def test_rejects_unwritable_output_before_the_model_runs(self, tmp_path, name, monkeypatch):
        monkeypatch.setattr("clearhead.models.load_source", lambda *a, **k: pytest.fail("the model was loaded"))
        done = CliRunner().invoke(app, ["view", "One.", "--output", str(tmp_path / name)])
        assert done.exit_code == 2
        assert str(tmp_path) in done.output

    def test_rejects_two_texts(self, tmp_path):
        (tmp_path / "a.txt").write_text("One.")
        arguments = ["view", "Two.", "--file", str(tmp_path / "a.txt"), "--output", str(tmp_path / "r.html")]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 2
        assert "2 texts are given; expected one for a report" in done.output
