"""Tests of figures over a picture and along a sound."""

import numpy as np
import pytest
import torch
from matplotlib import pyplot

from clearhead import record
from clearhead.plot import plot_picture, plot_sound
from support import media_models


@pytest.fixture(autouse=True)
def agg():
    pyplot.switch_backend("agg")
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def picture():
    pixels = torch.randn(3, 32, 48, generator=torch.Generator().manual_seed(1))
    return record(media_models.make("vit"), pixel_values=pixels)


def test_attention_of_a_query_lies_over_the_picture(tmp_path, picture):
    head = ("encoder", 1, 2)
    dense = picture.weights(head).dense()[0, 0]
    for query, expected in (("cls", dense[0]), ("1,3", dense[1 + 6 + 3]), (5, dense[5]), ("mean", dense.mean(dim=0))):
        axes = plot_picture(picture, head, query)
        under, over = axes.images
        assert np.array_equal(under.get_array(), picture.media.pictures[0].pixels.numpy())
        np.testing.assert_allclose(over.get_array(), expected[1:].view(4, 6), rtol=1e-5)
        assert over.get_alpha().max() == pytest.approx(0.7)
    axes.figure.savefig(tmp_path / "picture.png")
    assert "mean of all queries" in axes.get_title()
    for same in ("encoder.1.2", ["encoder", -1, 2]):
        assert plot_picture(picture, same, "mean").get_title() == axes.get_title()
    _, ax = pyplot.subplots()
    assert plot_picture(picture, head, ax=ax) is ax
    assert len(ax.figure.axes) == 1


def test_attention_lies_along_a_sound(tmp_path):
    recording = record(
        media_models.make("whisper"), audio=media_models.sound(), sampling_rate=16_000, decoder_input_ids=[2, 4, 5]
    )
    figure = plot_sound(recording, ("cross", 0, 1), 1)
    weights, sound = figure.axes
    values, edges, _ = weights.patches[0].get_data()
    np.testing.assert_allclose(values, recording.weights(("cross", 0, 1)).dense()[0, 0, 1], rtol=1e-5)
    assert weights.get_title() == "cross 0.1: 4 → 5"  # the token that the row reads, and the one that it writes
    assert edges[-1] == pytest.approx(1.0)  # the model reads one second
    assert sound.get_xlim() == pytest.approx((0, 1))
    figure.savefig(tmp_path / "sound.pdf")


def test_wrong_heads_and_queries_are_refused(picture):
    head = ("encoder", 1, 2)
    with pytest.raises(IndexError, match="layer is 9; expected 0 to 1, the layers of 'encoder'"):
        plot_picture(picture, ("encoder", 9, 2))
    with pytest.raises(ValueError, match="query is '9,9'; expected 'cls', '0,0'"):
        plot_picture(picture, head, "9,9")
    with pytest.raises(ValueError, match="query is 25; expected a whole number of at least 0 and at most 24"):
        plot_picture(picture, head, 25)
    with pytest.raises(ValueError, match="the keys of 'encoder' are not patches of picture 1"):
        plot_picture(picture, head, picture=1)
    with pytest.raises(ValueError, match="the keys of 'encoder' are not frames of sound 0"):
        plot_sound(picture, head)
