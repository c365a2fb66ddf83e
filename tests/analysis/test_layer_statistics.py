"""Tests of the statistics of one layer from weights in memory, which equal those of the lazy matrix."""

from dataclasses import asdict

import pytest
import torch

from clearhead import Causal
from clearhead.analysis import measure_layer
from clearhead.recording.recording import Stack
from clearhead.viewer import _thumbnails
from support.crafted_recordings import tokens, weights_of

TEXTS = ["[CLS]", "a", "b", "c", "a", "b", "d", "a", "b", "e", "[SEP]"]


def values(statistics) -> dict[str, float]:
    return {name: float("inf") if value is None else value for name, value in asdict(statistics).items()}


def crafted_stack(kv_len: int, mask) -> Stack:
    generator = torch.Generator().manual_seed(3)
    weights = torch.rand(5, len(TEXTS), kv_len, generator=generator, dtype=torch.float64) ** 3
    return Stack((weights_of(weights, mask),), tokens(TEXTS), tokens(TEXTS[:kv_len]))


@pytest.mark.parametrize("mask", [None, Causal()])
@pytest.mark.parametrize(("name", "kv_len"), [("decoder", 11), ("cross", 7)])
def test_cells_in_memory_give_the_statistics_of_the_lazy_matrix(name, kv_len, mask):
    stack = crafted_stack(kv_len, mask)
    lazy = measure_layer(name, stack, 0)
    dense = measure_layer(name, stack, 0, stack.layers[0].dense()[0])
    for one, other in zip(dense, lazy, strict=True):
        assert values(one) == pytest.approx(values(other), rel=1e-9, abs=1e-12)


def test_cells_of_another_shape_are_refused():
    stack = crafted_stack(11, None)
    with pytest.raises(ValueError, match=r"cells has shape \(5, 11, 10\); expected \(5, 11, 11\)"):
        measure_layer("decoder", stack, 0, stack.layers[0].dense()[0, :, :, :10])


def test_thumbnails_do_not_depend_on_the_heads_in_memory(monkeypatch):
    stack = crafted_stack(11, Causal())
    monkeypatch.setattr(_thumbnails, "MAX_THUMBNAIL_BINS", 4)
    whole = _thumbnails.layer_thumbnails("decoder", stack, 0)
    monkeypatch.setattr(_thumbnails, "MAX_DENSE_CELLS", 2 * 11 * 11)
    parts = _thumbnails.layer_thumbnails("decoder", stack, 0)
    pooled = stack.layers[0].pool(4, 4, reduce="max")[0]
    for head, (one, other) in enumerate(zip(whole, parts, strict=True)):
        torch.testing.assert_close(torch.tensor(one.values), pooled[head].float())
        assert (one.values == other.values).all()
        assert values(one.statistics) == pytest.approx(values(other.statistics), rel=1e-6)
