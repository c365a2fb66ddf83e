"""Tests of notebook output, with a real notebook and a real browser."""

import base64
import html
import io
import re

import nbclient
import nbformat
import numpy as np
import pytest
import torch
from bokeh.palettes import Viridis256
from PIL import Image

from clearhead import Causal, MultiHeadAttention, attention, report, watch
from clearhead._utils.color_scales import log_shades
from clearhead.analysis.summary import AttentionSummary
from clearhead.ops.tiled.statistics import AttentionStatistics
from clearhead.weights import notebook
from support.paths import ROOT
from support.recordings import decoder, layer

CELLS = [
    "import torch\nfrom clearhead import Causal, attention, record, report",
    "from clearhead.analysis.corpus import corpus_statistics",
    "query = torch.randn(2, 3, 50, 8)\nattention(query, query, query, mask=Causal(), return_weights=True)[1]",
    "recording = record('en-ja', 'The old dog barked.')\nreport(recording)",
    "corpus_statistics(recording)",
]


@pytest.fixture(scope="module")
def shown():
    """Run a notebook and return the HTML of each cell's result."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    nbformat.validate(notebook)
    results = [output for cell in notebook.cells for output in cell.outputs if output.output_type == "execute_result"]
    assert len(results) == 3
    assert all(output.data["text/plain"] for output in results)
    return [output.data["text/html"] for output in results]


@pytest.mark.slow
def test_notebook_of_the_examples_runs():
    """It has no stored outputs: each assertion in it compares NumPy, `trace` and the fused operator."""
    notebook = nbformat.read(ROOT / "examples" / "attention_by_hand.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    pages = [
        output.data["text/html"]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "text/html" in output.get("data", {})
    ]
    assert len(pages) == 1
    assert "<iframe srcdoc=" in pages[0]


def images(text):
    """Return the inline PNGs as arrays of colors."""
    encoded = re.findall(r'src="data:image/png;base64,([^"]*)"', text)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB")) for image in encoded]


@pytest.mark.slow
def test_notebook_shows_images_without_scripts(shown):
    weights, _, watched = shown
    assert len(images(weights)) == 3
    assert len(images(watched)) == 3 * 3  # entropy, distance and largest weight of three stacks
    for text in (weights, watched):
        assert not re.search(r"<script|<iframe|javascript:|\son\w+=", text)
    assert "AttentionWeights(2 × 3 heads × 50 queries × 50 keys" in html.unescape(weights)
    assert "the first of 2 sequences" in weights


def test_report_works_in_a_notebook(shown, page, tmp_path):
    (tmp_path / "notebook.html").write_text(f"<!doctype html><meta charset='utf-8'>{shown[1]}")
    page.browser.get((tmp_path / "notebook.html").as_uri())
    page.browser.switch_to.frame(page.find("iframe"))
    page.until(lambda: page.text("readout"))
    page.settle()
    assert len(page.all(".thumb")) == 96
    page.click("[data-head='encoder.1.2'].thumb")
    assert page.text("head-heading") == "Encoder, layer 1, head 2"
    page.browser.switch_to.default_content()


def test_report_is_escaped_in_its_frame():
    page = report(decoder(['"><script>alert(1)</script>', "a"]))._repr_html_()
    assert page.startswith('<iframe srcdoc="')
    assert page.count("<") == 2
    assert len(re.findall('"', page)) == 6  # srcdoc, title and style


def test_images_match_the_weights():
    weights = layer(20, 30, heads=4)
    drawn = images(weights._repr_html_())
    expected = log_shades(weights.dense()[0].numpy(), 30)
    for image, shades in zip(drawn, expected, strict=True):
        colors = np.array(
            [[int(Viridis256[shade][start : start + 2], 16) for start in (1, 3, 5)] for shade in shades.ravel()]
        )
        assert np.abs(image.reshape(-1, 3).astype(int) - colors).max() <= 6  # at most one shade


def test_large_matrices_are_sampled(monkeypatch):
    monkeypatch.setattr(notebook, "MAX_EXACT_CELLS", 1000)
    weights = layer(200, 70, heads=2, mask=None)
    text = weights._repr_html_()
    assert "from 14 evenly spaced queries, each of them exact" in text
    assert [image.shape for image in images(text)] == [(14, 70, 3)] * 2


def test_shows_the_first_16_heads_and_empty_matrices():
    query = torch.randn(1, 20, 5, 4)
    text = attention(query, query, query, return_weights=True)[1]._repr_html_()
    assert "the first 16 of 20 heads" in text
    assert len(images(text)) == 16
    empty = attention(query[:, :, :0], query, query, return_weights=True)[1]._repr_html_()
    assert images(empty) == []
    assert "20 heads × 0 queries" in empty


def test_weights_that_require_grad_are_shown():
    query = torch.randn(1, 2, 5, 4, requires_grad=True)
    weights = attention(query, query, query, mask=Causal(), return_weights=True)[1]
    assert len(images(weights._repr_html_())) == 2


def test_attention_summary_is_shown():
    summary = AttentionSummary([("decoder", 0), ("decoder", 1)])
    for index, layer_summary in enumerate(summary):
        weights = layer(6, 6, heads=3 - index, kv_heads=1)  # layers need not have the same number of heads
        layer_summary.add(weights.observe(entropy=True), torch.ones(1, 6, dtype=torch.bool))
    text = summary._repr_html_()
    assert repr(summary) == "AttentionSummary(decoder 2 layers, entropy of 6 queries)"
    single = AttentionSummary([("attn", 0)])
    single[0].module = 0
    single[0].add(layer(1, 6).observe(entropy=True), 1)
    assert repr(single) == "AttentionSummary(attn 1 layer (module 0), entropy of 1 query)"
    assert [image.shape for image in images(text)] == [(2, 3, 3)]
    mean = summary[1].means["entropy"][1]
    assert f"<td>{float(mean):.3f}</td>" in text
    assert 'alt="decoder entropy by layer and head"' in text


def test_watched_models_are_shown_with_the_heatmaps_of_their_last_calls():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(MultiHeadAttention(heads * 4, heads) for heads in (3, 2))

        def forward(self, x):
            return [layer(x[..., : layer.query.in_features]) for layer in self.layers]

    model = Model()
    with watch(model, entropy=True, pool=(3, 3)) as seen:
        model(torch.randn(2, 5, 12))
        model(torch.randn(1, 6, 12))
    text = seen._repr_html_()
    assert repr(seen) == "Seen(Model: 2 attention modules, 4 calls; entropy)"
    assert [image.shape for image in images(text)] == [(2, 3, 3)] + [(3, 3, 3)] * 5
    assert f"<td>{float(seen[1].means['entropy'][1]):.3f}</td>" in text
    with watch(model, entropy=True, keep=0) as seen:
        model(torch.randn(1, 6, 12))
    assert [image.shape for image in images(seen._repr_html_())] == [(2, 3, 3)]


def test_empty_attention_summary_is_shown_without_images():
    assert images(AttentionSummary()._repr_html_()) == []
    unused = AttentionSummary([("decoder", 0)])
    assert "no means" in unused._repr_html_()
    unused[0].add(AttentionStatistics(), torch.ones(1, 2, dtype=torch.bool))
    assert images(unused._repr_html_()) == []
