"""Tests of matplotlib figures: pixels, labels and files."""

import io
import json
import re
import sys

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager, get_data_path, pyplot, rcParams
from matplotlib.colors import LogNorm
from rich.console import Console

from clearhead import report
from clearhead.cli.tables import print_alignment
from clearhead.plot import _fonts, plot_alignment, plot_head, plot_heads
from clearhead.plot.figures import MASKED_COLOR
from clearhead.translation import Translator
from clearhead.viewer._charts import HeadChart
from clearhead.viewer.report._page import uncompress
from support.recordings import decoder, translation


@pytest.fixture(autouse=True)
def agg():
    pyplot.switch_backend("agg")
    yield
    pyplot.close("all")


def drawn(axes):
    return np.ma.filled(np.ma.masked_invalid(axes.images[0].get_array()), 0)


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_plot_head_can_be_saved_in_every_format(tmp_path, kind):
    stack = decoder("abcdefghij")["decoder"]
    axes = plot_head(stack.layers[1], 2, stack.queries)
    np.testing.assert_allclose(drawn(axes), stack.layers[1].dense()[0, 2], atol=1e-6)
    assert [label.get_text() for label in axes.get_yticklabels()] == list("abcdefghij")
    assert [label.get_text() for label in axes.get_xticklabels()] == list("abcdefghij")
    assert isinstance(axes.images[0].norm, LogNorm)
    assert len(axes.figure.axes) == 2  # the heatmap and its color bar
    axes.figure.savefig(tmp_path / f"head.{kind}")
    assert (tmp_path / f"head.{kind}").stat().st_size > 3000


def test_plot_head_takes_a_recording_and_an_address():
    recording = decoder("abcdef")
    axes = plot_head(recording, ("decoder", 1, 2))
    np.testing.assert_allclose(drawn(axes), recording["decoder"].layers[1].dense()[0, 2], atol=1e-6)
    assert [label.get_text() for label in axes.get_xticklabels()] == list("abcdef")
    assert len(plot_head(recording, ("decoder", 1, 2), list("uvwxyz")).get_xticklabels()) == 6
    for head in ("decoder.1.2", ["decoder", 1, 2], ("decoder", -1, -2)):
        assert np.array_equal(drawn(plot_head(recording, head)), drawn(axes))
    with pytest.raises(IndexError, match="layer is 2; expected 0 to 1, the layers of 'decoder'"):
        plot_head(recording, ("decoder", 2, 0))
    with pytest.raises(TypeError, match=r"head is \('decoder', 1, 2\); expected an index, because weights is not a re"):
        plot_head(recording["decoder"].layers[1], ("decoder", 1, 2))


def test_masked_cells_differ_from_cells_with_small_weights():
    stack = decoder("abcd")["decoder"]
    axes = plot_head(stack.layers[0], 0)
    mapped = axes.images[0].cmap(axes.images[0].norm(axes.images[0].get_array()))
    assert tuple(np.round(255 * mapped[0, 3, :3]).astype(int)) == tuple(
        int(MASKED_COLOR[start : start + 2], 16) for start in (1, 3, 5)
    )
    assert (mapped[3, 0] != mapped[0, 3]).any()


def test_plot_head_draws_on_existing_axes():
    _, ax = pyplot.subplots()
    weights = decoder("abcd")["decoder"].layers[0]
    assert plot_head(weights, 1, ax=ax, log=False) is ax
    assert len(ax.figure.axes) == 1
    assert ax.images[0].norm.vmax == pytest.approx(float(weights.dense()[0, 1].max()))


def test_large_matrices_are_pooled_and_labeled_with_indices():
    stack = decoder(["x"] * 700, layers=1)["decoder"]
    axes = plot_head(stack.layers[0], 3, stack.queries)
    assert axes.images[0].get_array().shape == (512, 512)
    assert list(axes.images[0].get_extent()) == [0, 700, 700, 0]
    assert "x" not in {label.get_text() for label in axes.get_yticklabels()}


def test_plot_heads_draws_every_head_of_every_layer():
    recording = decoder("abcdefgh")
    figure = plot_heads(recording["decoder"])
    assert [axes.get_title() for axes in figure.axes] == [f"{layer}.{head}" for layer in range(2) for head in range(4)]
    np.testing.assert_allclose(drawn(figure.axes[5]), recording["decoder"].layers[1].dense()[0, 1], atol=1e-6)


def test_plot_alignment_draws_one_head_or_the_mean():
    recording = translation("abcde", "xyz")
    axes = plot_alignment(recording)
    weights = recording["cross"].layers[0].dense()[0]
    np.testing.assert_allclose(drawn(axes), weights.mean(dim=0), atol=1e-6)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x", "y", "z"]
    np.testing.assert_allclose(drawn(plot_alignment(recording, layer=0, head=2)), weights[2], atol=1e-6)


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_a_row_has_the_same_label_in_the_figure_the_viewer_the_report_and_the_terminal():
    recording = Translator.load().record("I came home after the rain had stopped.")
    cross = recording["cross"]
    row = cross.written.texts.index("帰宅した")
    axes = plot_alignment(recording, layer=2)
    assert labels(axes.yaxis)[row] == "後に → 帰宅した"
    assert labels(axes.xaxis)[drawn(axes)[row].argmax()] == "home"
    assert axes.get_ylabel() == "queries (read → written)"
    assert labels(plot_alignment(recording, layer=2, head=5).yaxis) == labels(axes.yaxis)
    assert labels(plot_head(recording["decoder"].layers[0], 0, recording["decoder"]).yaxis) == labels(axes.yaxis)
    chart = HeadChart()
    chart.open(*cross.layers[0].shape[2:], 1e-3)
    chart.label_axes(cross)
    viewer = [text.strip("\u2068\u2069") for text in chart.map.yaxis[0].major_label_overrides.values()]
    assert viewer == labels(axes.yaxis)
    stored = re.search(r'id="labels">(.*)</script>', report(recording).html)[1]
    narrow = dict(json.loads(uncompress(stored)))
    names = list(map("\n".join, zip(cross.queries.texts, cross.written.texts, strict=True)))
    assert [narrow.get(name, name.replace("\n", " → ")) for name in names] == viewer
    assert any(name in narrow for name in names)
    console = Console(file=io.StringIO(), width=100)
    print_alignment(console, recording)
    lines = console.file.getvalue().splitlines()[1:]
    assert [re.split(" {2,}", line.strip())[0] for line in lines] == viewer[:-1]  # the last row writes the end token


def test_given_tokens_are_labels_as_they_are():
    stack = translation("abcde", "xyz", written="yz!")["cross"]
    axes = plot_head(stack.layers[0], 0, (stack.queries, stack.keys))
    assert labels(axes.yaxis) == ["x", "y", "z"]
    assert labels(plot_head(stack.layers[0], 0, stack).yaxis) == ["x → y", "y → z", "z → !"]


def test_unusual_tokens_are_drawn(tmp_path):
    texts = ["$x$", "$", "\n", "שלום", "a" * 300, "\\frac"]
    stack = decoder(texts)["decoder"]
    axes = plot_head(stack.layers[0], 0, stack.queries)
    assert axes.get_xticklabels()[4].get_text() == "a" * 15 + "…"
    axes.figure.savefig(tmp_path / "any.svg")


@pytest.fixture
def system_fonts(monkeypatch):
    """Hide the fonts of the system. Return the list of files that take their place."""
    files = []
    fonts = [entry for entry in font_manager.fontManager.ttflist if entry.fname.startswith(get_data_path())]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: files)
    monkeypatch.setattr(_fonts, "_warned", set())
    return files


@pytest.mark.parametrize("kind", ["png", "svg", "pdf", "eps"])
def test_japanese_tokens_are_drawn_without_a_font_of_the_system(tmp_path, system_fonts, kind):
    before = dict(rcParams)
    axes = plot_alignment(Translator.load().record("I read a book."))
    axes.figure.savefig(tmp_path / f"aligned.{kind}")  # a missing glyph is a warning, and warnings are errors here
    assert "本" in "".join(label.get_text() for label in axes.get_yticklabels())
    assert dict(rcParams) == before


def test_characters_without_a_font_become_boxes_with_one_warning(tmp_path, system_fonts):
    stack = decoder(["我你", "한국", "ไทย", "日本", "a\u200db"])["decoder"]
    with pytest.warns(UserWarning, match="no installed font has .*, drawn as □") as caught:
        axes = plot_head(stack.layers[0], 0, stack.queries)
    assert [each.filename for each in caught] == [__file__] * 2
    packages = sorted(str(each.message).rpartition(" ")[2] for each in caught)
    assert packages == ["fonts-noto-cjk", "fonts-noto-core"]
    assert [label.get_text() for label in axes.get_yticklabels()][:4] == ["我□", "□□", "□□□", "日本"]
    plot_head(stack.layers[0], 1, stack.queries).figure.savefig(tmp_path / "again.png")  # no second warning


def test_other_scripts_use_fonts_installed_after_matplotlib_listed_them(tmp_path, system_fonts):
    """A font with two empty glyphs stands for one that the user installs because of the warning."""
    glyphs = [".notdef", "han", "guk"]
    builder = FontBuilder(1000)
    builder.setupGlyphOrder(glyphs)
    builder.setupCharacterMap({ord("한"): "han", ord("국"): "guk"})
    builder.setupGlyf({name: TTGlyphPen(None).glyph() for name in glyphs})
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (1000, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Hangul of a test", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(tmp_path / "hangul.ttf")
    system_fonts.append(str(tmp_path / "hangul.ttf"))
    stack = decoder(["한국", "日本"])["decoder"]
    axes = plot_head(stack.layers[0], 0, stack.queries)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["한국", "日本"]
    axes.figure.savefig(tmp_path / "drawn.png")


def test_rejects_wrong_tokens_and_missing_heads_and_stacks():
    weights = decoder("abcd")["decoder"].layers[0]
    with pytest.raises(ValueError, match="tokens has 3 texts for 4 queries; expected a stack, one text per query"):
        plot_head(weights, 0, ["a", "b", "c"])
    with pytest.raises(IndexError, match="index 9 is out of range for heads of size 4"):
        plot_head(weights, 9)
    with pytest.raises(KeyError, match="a model has no stack 'cross'"):
        plot_alignment(decoder("ab"))


def test_missing_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"clearhead.plot needs matplotlib: pip install 'clearhead\[plot\]'"):
        plot_head(decoder("abcd")["decoder"].layers[0], 0)
