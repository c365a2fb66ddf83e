"""Tests of the key ranges that a report stores, against the scores of every cell."""

import json
import re
import zlib
from base64 import b64decode

import numpy as np
import pytest
import torch

from clearhead import Causal, Dense, Documents, Padding, Window, attention, report
from clearhead.recording.recording import Recording, Stack
from clearhead.viewer.report import _visible_keys
from clearhead.viewer.report._visible_keys import visible_ranges
from support.recordings import decoder, layer, tokens

RANDOM = torch.rand(13, 17, generator=torch.Generator().manual_seed(0)) < 0.5


def cells(ranges, kv_len):
    """Return which cells are in the ranges."""
    first, last = ranges[:, 0, :, None], ranges[:, 1, :, None]
    return ((np.arange(kv_len) >= first) & (np.arange(kv_len) < last)).any(axis=0)


@pytest.mark.parametrize(
    "mask",
    [Causal(), Causal() & Window(3), Padding([11]), Documents([5, 8, 4]), Dense(RANDOM), Dense(RANDOM) & Causal()],
    ids=["causal", "window", "padding", "documents", "dense", "dense and causal"],
)
def test_ranges_are_the_visible_cells(mask):
    weights = layer(17 if isinstance(mask, Documents) else 13, 17, mask=mask)
    visible = (weights.scores[0, 0] > -torch.inf).numpy()
    assert not visible.all()
    assert (cells(visible_ranges(weights), 17) == visible).all()


def test_bias_of_minus_infinity_masks_where_it_does_in_every_head():
    bias = torch.zeros(1, 2, 13, 17).masked_fill(~torch.stack([RANDOM, RANDOM | RANDOM.flip(0)]), -torch.inf)
    query, key = torch.randn(1, 2, 13, 4), torch.randn(1, 2, 17, 4)
    weights = attention(query, key, key, bias=bias, return_weights="keep_qk")[1]
    assert (cells(visible_ranges(weights), 17) == (RANDOM | RANDOM.flip(0)).numpy()).all()


def test_nothing_is_stored_without_a_mask_or_for_too_many_ranges(monkeypatch):
    assert visible_ranges(layer(13, 17)) is None
    monkeypatch.setattr(_visible_keys, "MAX_RANGES", 20)
    assert visible_ranges(layer(13, 17, mask=Dense(RANDOM))) is None
    assert visible_ranges(layer(13, 17, mask=Causal())) is not None
    monkeypatch.setattr(_visible_keys, "MAX_EXACT_TOKENS", 16)
    assert visible_ranges(layer(13, 17, mask=Dense(RANDOM))) is None


def test_equal_masks_of_layers_are_stored_once():
    axis = tokens("abcdefghijklm")
    layers = tuple(layer(13, 13, mask=mask) for mask in (Causal(), Window(2), None, Causal()))
    html = report(Recording("a model", {"decoder": Stack(layers, axis, axis)})).html
    (stack,) = json.loads(re.search(r'id="stored-model">(.*)</script>', html)[1])["stacks"]
    assert stack["masks"] == [0, 1, None, 0]
    stored = [
        np.frombuffer(zlib.decompress(b64decode(text)), np.int32) for text in re.findall(r'"mask-\d">(.*)<', html)
    ]
    ranges = [mask.reshape(-1, 2, 13).cumsum(axis=2) for mask in stored]
    assert (cells(ranges[0], 13) == np.tri(13, dtype=bool)).all()
    assert len(ranges) == 2


def test_mask_of_a_long_text_is_small():
    recording = decoder(["x"] * 3000, layers=1, heads=1, kv_heads=1)
    html = report(recording).html
    assert len(re.search(r'"mask-0">(.*)<', html)[1]) < 1000
