"""Tests of matplotlib figures: pixels, labels and files."""

import os
import sys

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.colors import LogNorm

from clearhead.plot import plot_alignment, plot_head, plot_heads
from clearhead.plot.figures import MASKED_COLOR
from clearhead.translation import Translator
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


def test_unusual_tokens_are_drawn(tmp_path):
    texts = ["$x$", "$", "\n", "שלום", "a" * 300, "\\frac"]
    stack = decoder(texts)["decoder"]
    axes = plot_head(stack.layers[0], 0, stack.queries)
    assert axes.get_xticklabels()[4].get_text() == "a" * 15 + "…"
    axes.figure.savefig(tmp_path / "any.svg")


def test_japanese_tokens_have_a_font(tmp_path):
    recording = Translator.load().record("I read a book.")
    try:
        plot_alignment(recording).figure.savefig(tmp_path / "aligned.png")
    except UserWarning as warning:  # this machine has no Japanese font; CI installs one
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(warning))


def test_rejects_wrong_tokens_and_missing_heads_and_stacks():
    weights = decoder("abcd")["decoder"].layers[0]
    with pytest.raises(ValueError, match="tokens has 3 texts for 4 queries; expected one per query and key"):
        plot_head(weights, 0, ["a", "b", "c"])
    with pytest.raises(IndexError, match="index 9 is out of range for heads of size 4"):
        plot_head(weights, 9)
    with pytest.raises(KeyError, match="a model has no stack 'cross'"):
        plot_alignment(decoder("ab"))


def test_missing_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"clearhead.plot needs matplotlib: pip install 'clearhead\[plot\]'"):
        plot_head(decoder("abcd")["decoder"].layers[0], 0)
