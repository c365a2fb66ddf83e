"""Tests of heads of real models as worked examples: the numbers are those of the model."""

import json

import numpy as np
import pytest
import torch

from clearhead import ALiBi, Causal, Recording, Window, attention, record
from clearhead.explain import trace_head
from clearhead.explain.render import render
from clearhead.recording.recording import Stack
from clearhead.weights.matrix import AttentionWeights
from support.recordings import decoder, tokens, translation
from support.tiny_models import PAIRS, inputs_for, make

SENTENCE = "The cat ate the fish."


def recorded(name) -> Recording:
    inputs = inputs_for(name)
    ids = {"decoder_input_ids": inputs["decoder_input_ids"][:1]} if name in PAIRS else {}
    return record(make(name), input_ids=inputs["input_ids"][:1], values=True, **ids)


def assert_weights_match(recording: Recording, address) -> None:
    """Compare with the recorded weights. A score is off by the rounding of its products in float32."""
    weights = recording.weights(address)
    traced = trace_head(recording, ".".join(map(str, address)))
    products = traced.step("query").values.abs() @ traced.step("key").values.abs().T
    largest = float(products.max()) * weights.scale + 1
    allowed = 8 * torch.finfo(torch.float32).eps * largest
    step = traced.step("weights")
    assert (step.values - weights[0, 0].double()).abs().max() <= allowed
    masked = weights.scores[0, 0] == -torch.inf
    assert torch.equal(torch.zeros_like(masked) if step.hidden is None else step.hidden, masked)
    assert weights.value is not None
    output = weights[0, 0].double() @ weights.value[0, 0].double()
    assert (traced.output - output).abs().max() <= allowed * (1 + weights.value.abs().max()) * masked.shape[1]


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "gemma2", "gpt-oss", "t5", "bert"])
def test_weights_equal_those_of_the_model(name):
    recording = recorded(name)
    for address in recording.heads():
        if address[1] == 1 and address[2] in (0, 3):
            assert_weights_match(recording, address)


def test_weights_equal_those_of_the_translator():
    recording = record("en-ja", SENTENCE, values=True)
    for address in (("cross", 2, 5), ("decoder", 0, 1), ("encoder", 1, 0)):
        assert_weights_match(recording, address)


def single(**options) -> Recording:
    """Return a recording of one layer with 4 heads and 2 key heads on 7 tokens."""
    generator = torch.Generator().manual_seed(3)
    query, key, value = (torch.randn(1, heads, 7, 5, generator=generator) for heads in (4, 2, 2))
    weights = attention(query, key, value, return_weights="keep_qk", **options)[1]
    assert isinstance(weights, AttentionWeights)
    axis = tokens([f"t{index}" for index in range(7)])
    return Recording("a model", {"decoder": Stack((weights,), axis, axis)})


@pytest.mark.parametrize(
    "options",
    [
        {"mask": Causal()},
        {"mask": Window(2, 0)},
        {"bias": ALiBi([0.5, 0.25, 0.125, 0.0625]), "mask": Causal()},
        {"bias": torch.randn(1, 4, 7, 7, generator=torch.Generator().manual_seed(1))},
        {"bias": torch.zeros(1, 1, 7, 7).masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)},
        {"softcap": 2.0, "scale": 0.3},
        {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
        {"mask": torch.tensor([[[[False] * 7] * 3 + [[True] * 7] * 4]])},
    ],
    ids=["causal", "window", "alibi", "bias", "bias that masks", "softcap and scale", "sinks", "rows without keys"],
)
def test_options_of_attention_are_part_of_the_calculation(options):
    recording = single(**options)
    for head in range(4):
        assert_weights_match(recording, ("decoder", 0, head))
    traced = trace_head(recording, "0.2")
    formula = render(traced, "text").splitlines()[1]
    assert (" + M" in formula) == (traced.step("weights").hidden is not None)
    bias = options.get("bias")
    assert (" + B" in formula) == (isinstance(bias, ALiBi) or (bias is not None and bool(bias.isfinite().all())))
    assert ("sink" in formula) == ("sinks" in options)
    assert ("tanh" in formula) == ("softcap" in options)
    assert json.loads(render(traced, "json"))["softcap"] == options.get("softcap")
    for style in ("html", "markdown", "latex", "json"):
        assert render(traced, style)


def test_head_can_be_rebuilt_from_json():
    bias = torch.randn(1, 4, 7, 7, generator=torch.Generator().manual_seed(1))
    traced = trace_head(single(mask=Causal(), bias=bias), "decoder.0.1")
    document = json.loads(render(traced, "json"))
    steps = {step["name"]: np.array(step["values"], dtype=float) for step in document["steps"]}
    scores = steps["query"] @ steps["key"].T * document["scale"]
    for name in ("bias", "mask"):
        scores = scores + np.array(document[name][0]["values"], dtype=float)
    weights = np.exp(scores)
    output = weights / weights.sum(axis=1, keepdims=True) @ steps["value"]
    np.testing.assert_allclose(output, traced.output.numpy(), rtol=1e-10, atol=1e-12)


def test_hostile_names_are_escaped():
    axis = tokens(["<script>alert(1)</script>", "*b*"])
    stacks = {"<b>x</b>": Stack(decoder(["a", "b"], layers=1)["decoder"].layers, axis, axis)}
    recording = Recording("<img src=x>", stacks)
    traced = trace_head(recording, "<b>x</b>.0.0")
    for style in ("html", "markdown"):
        text = render(traced, style, title=f"Head of {recording.model}")
        assert "<b>" not in text
        assert "<img" not in text
        assert "<script>alert" not in text


def test_shared_key_heads_and_counting_are_stated():
    traced = trace_head(single(), "decoder.0.3")
    assert traced.step("key").note == "Heads 2 to 3 of this layer share these numbers (key head 1)."
    assert "counted from 0, as in the model: decoder.0.3 is head 3 of layer 0" in traced.counting
    document = json.loads(render(traced, "json"))
    assert {step["head"] for step in document["steps"]} == {"decoder.0.3"}
    assert document["counting"] == traced.counting


def test_long_texts_show_the_first_last_and_strongest_keys():
    recording = decoder([f"t{index}" for index in range(60)], layers=1)
    traced = trace_head(recording, "decoder.0.1")
    strongest = traced.step("weights").values.sum(dim=0).topk(6).indices.tolist()
    assert set(strongest) | {0, 5, 56, 59} <= set(traced.visible["memory"])
    assert 30 not in traced.visible["token"]
    text = render(traced, "text")
    assert "A (60, 60): computed; 50 rows and " in text
    assert "… 50 more" in text
    for style in ("html", "markdown", "latex"):
        assert "not shown" in render(traced, style)
    assert len(json.loads(render(traced, "json"))["steps"][-1]["values"]) == 60


def test_wide_vectors_are_shortened_and_their_dot_product_sums_all():
    recording = record("en-ja", SENTENCE, values=True)
    text = render(trace_head(recording, "cross.2.5"), "text")
    assert "… 28 more" in text
    assert "(the sum of all 32 products)" in text


@pytest.mark.parametrize("head", ["cross.0.4", "cross.1.0", "self.0.0", "0.0", "cross", "cross.0.x", "cross.0.0.0", ""])
def test_rejects_unknown_heads(head):
    recording = translation(["a", "b"], ["x", "y", "z"])
    ranges = "encoder.0.0 to encoder.0.3; decoder.0.0 to decoder.0.3; cross.0.0 to cross.0.3, counted from 0"
    with pytest.raises(ValueError, match=f"which a translator does not have; expected {ranges}"):
        trace_head(recording, head)


def test_rejects_recordings_that_cannot_be_written_out(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 4, 3, 8, generator=generator) for _ in range(3))
    weights = attention(query, key, value, return_weights=True)[1]
    axis = tokens(["a", "b", "c"])
    with pytest.raises(ValueError, match="holds scores instead of queries and keys; expected a recording with values"):
        trace_head(Recording("a model", {"decoder": Stack((weights,), axis, axis)}), "decoder.0.0")
    monkeypatch.setattr("clearhead.explain.real_heads.MAX_SCORES", 40)
    with pytest.raises(ValueError, match="has 7 × 7 scores; expected at most 40: use a shorter text"):
        trace_head(single(), "decoder.0.0")
    with pytest.raises(TypeError, match="recording is .* expected a Recording"):
        trace_head("en-ja", "cross.0.0")


def test_one_row_has_the_numbers_of_the_whole_matrix():
    made = decoder([f"w{index}" for index in range(9)], layers=1)
    made = Recording("a model", {"blocks.attn": made["decoder"]})
    whole, row = trace_head(made, "blocks.attn.0.3"), trace_head(made, "blocks.attn.0.3", query=5)
    assert row.tokens == ("w5",)
    assert row.memory_tokens == whole.memory_tokens
    assert row.counting.endswith("The only row is row 6 of the 9 rows of this head.")
    for name in ("scores", "scaled", "masked", "weights", "head_output"):
        torch.testing.assert_close(row.step(name).values, whole.step(name).values[5:6])
    with pytest.raises(ValueError, match="query is 9; expected at most 8, because head 0.3 has 9 queries"):
        trace_head(made, "0.3", query=9)
