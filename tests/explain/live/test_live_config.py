"""Tests of the configuration of a live page, and of the reasons why a page cannot be edited."""

import json
import re

import pytest
import torch

from clearhead import MultiHeadAttention, trace
from clearhead.explain import load, trace_head
from clearhead.explain.live.page import live_config, live_modules
from clearhead.explain.render import render
from clearhead.nn import Rotary
from support.recordings import decoder


def test_origins_and_notes_have_the_ids_of_matrices():
    config = live_config(load("song").trace(), "Song", 3)
    assert isinstance(config, dict)
    assert config["origins"] == {
        "input": "printed in the text",
        "key-1": "given by the text, not computed",
        "W_Q-1": "printed in the text",
        "W_V-1": "drawn at random (seed 5)",
        "W_O": "identity: leaves C unchanged",
    }
    assert config["notes"].keys() == {"query-1"}
    heads = live_config(load("causal-decoder").trace(), "", 3)
    assert isinstance(heads, dict)
    assert {"W_Q-1", "W_K-2", "M", "W_O"} <= heads["origins"].keys()


def test_selected_steps_stay_selected():
    traced = load("two-heads").trace()
    config = live_config(traced.select(["weights", "output"]), "", 3)
    assert isinstance(config, dict)
    assert config["steps"] == ["weights", "output"]
    assert "heads" not in config  # the reader can add heads, which are shown
    chosen = live_config(traced.select(["key", "scores"], heads=[1]), "", 3)
    assert isinstance(chosen, dict)
    assert (chosen["steps"], chosen["heads"]) == (["key", "scores"], [2])
    cells = live_config(traced.select_cells(["weights.2:1,3"]), "", 3)
    assert isinstance(cells, dict)
    assert cells["cells"] == {"weights-2": ((0, 2),)}


@pytest.mark.parametrize(
    ("traced", "reason"),
    [
        (lambda: trace(MultiHeadAttention(4, 2), torch.randn(25, 4)), "it has 25 tokens; expected at most 12"),
        (
            lambda: trace(MultiHeadAttention(8, 2, rope=Rotary()), torch.randn(3, 8)),
            "the layer rotates queries and keys (RoPE)",
        ),
        (
            lambda: trace_head(decoder(["a", "b", "c"], layers=1, kv_heads=4), "decoder.0.1"),
            "it shows a head of a model, whose input and weights are not on it",
        ),
    ],
)
def test_other_pages_say_why_they_cannot_be_edited(traced, reason):
    page = render(traced(), "html")
    assert f"<p>This page cannot be edited: {reason}.</p>" in page
    assert "importmap" not in page


def test_page_has_its_layer_and_every_module_that_it_imports():
    page = render(load("two-heads").trace(), "html", title="</script><b>")
    [text] = re.findall(r'<script type="application/json" id="live-config">(.*?)</script>', page)
    config = json.loads(text)
    assert config["title"] == "</script><b>"
    assert config["layer"]["heads"] == 2
    assert "clearhead/explain_page.js" in live_modules()["imports"]
