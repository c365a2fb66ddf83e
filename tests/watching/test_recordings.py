"""Tests of the calls of a generation as one matrix, and of recordings of watched models."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import clearhead
from clearhead import Recording, watch
from support.tiny_models import inputs_for, make
from support.watched_models import MODEL_DIM, OwnModel


class Cached(nn.Module):
    """Attention with a KV cache: one that grows, or a static one of a fixed size that is written in place."""

    def __init__(self, static=False):
        super().__init__()
        self.query, self.key = (nn.Linear(MODEL_DIM, MODEL_DIM, dtype=torch.float64) for _ in range(2))
        self.static, self.length, self.keys = static, 0, None

    def forward(self, x):
        query, new = (layer(x).unflatten(-1, (4, 8)).transpose(1, 2) for layer in (self.query, self.key))
        start, self.length = self.length, self.length + x.shape[1]
        if not self.static:
            self.keys = new if self.keys is None else torch.cat([self.keys, new], dim=2)
            keys, mask = self.keys, None
        else:
            self.keys = new.new_zeros(x.shape[0], 4, 16, 8) if self.keys is None else self.keys
            self.keys[:, :, start : self.length] = new
            keys, mask = self.keys, torch.arange(16) < self.length
        positions = torch.arange(start, self.length)[:, None]
        causal = torch.arange(keys.shape[2]) <= positions
        mask = causal if mask is None else causal & mask
        return functional.scaled_dot_product_attention(query, keys, keys, mask).transpose(1, 2).flatten(2)


def generate(model, x, prompt=5):
    with torch.no_grad(), watch(model) as seen:
        model(x[:, :prompt])
        for position in range(prompt, x.shape[1]):
            model(x[:, position : position + 1])
    return seen


@pytest.mark.parametrize("static", [False, True])
def test_calls_with_a_cache_join_into_one_matrix(static):
    x = torch.randn(2, 9, MODEL_DIM, dtype=torch.float64)
    model = Cached(static)
    seen = generate(model, x)
    query, key = (layer(x).unflatten(-1, (4, 8)).transpose(1, 2).detach() for layer in (model.query, model.key))
    expected = torch.softmax((query @ key.mT / 8**0.5 + torch.full((9, 9), -torch.inf).triu(1)), dim=-1)
    joined = seen[""].joined()
    torch.testing.assert_close(joined.dense(), expected)  # without the unfilled end of a static cache
    torch.testing.assert_close(joined.entropy(), torch.special.entr(expected).sum(dim=-1))
    distance = (torch.arange(9)[:, None] - torch.arange(9)).abs()
    torch.testing.assert_close(joined.distance(), (expected * distance).sum(dim=-1))


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt-oss"])
def test_generation_of_a_language_model_joins(name):
    model, ids = make(name).double(), inputs_for(name)["input_ids"][:1]
    with torch.no_grad(), watch(model) as seen:
        text = model.generate(ids, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    with torch.no_grad(), watch(model) as whole:
        model(text)
    for layer in seen:
        length = text.shape[1] - 1  # the last token is not read
        expected = whole[layer].weights.dense()[:, :, :length, :length]
        torch.testing.assert_close(seen[layer].joined().dense(), expected)


def test_cross_attention_of_a_generation_joins():
    model, inputs = make("bart").double(), inputs_for("bart")
    encoder = {name: inputs[name][:1] for name in ("input_ids",)}
    with torch.no_grad(), watch(model) as seen:
        text = model.generate(**encoder, max_new_tokens=5, min_new_tokens=5, num_beams=1, do_sample=False)
    joined = seen["cross", 0].joined()
    assert joined.shape[2:] == (text.shape[1] - 1, encoder["input_ids"].shape[1])
    with torch.no_grad(), watch(model) as whole:
        model(**encoder, decoder_input_ids=text[:, :-1])
    torch.testing.assert_close(joined.dense(), whole["cross", 0].weights.dense())


def test_other_texts_and_beams_do_not_join():
    model, x = Cached(), torch.randn(1, 6, MODEL_DIM, dtype=torch.float64)
    with torch.no_grad(), watch(model) as seen:
        model(x)
        model.keys, model.length = None, 0
        model(x)
    with pytest.raises(ValueError, match=r"call 1 is \(1, 4, 6, 6\) and does not continue the one before"):
        seen[""].joined()
    batch = torch.randn(2, 6, MODEL_DIM, dtype=torch.float64)
    model = Cached()
    with torch.no_grad(), watch(model) as seen:
        model(batch[:, :5])
        model.keys = model.keys.flip(0)  # as beam search does
        model(batch[:, 5:])
    with pytest.raises(ValueError, match=r"call 1 .* it has other keys, .* if beam search reorders the KV cache"):
        seen[""].joined()


def test_a_joined_matrix_that_is_too_large_is_refused(monkeypatch):
    seen = generate(Cached(), torch.randn(1, 9, MODEL_DIM, dtype=torch.float64))
    monkeypatch.setattr("clearhead.weights.joining.MAX_CELLS", 100)
    with pytest.raises(ValueError, match="the joined matrix has 324 cells .* choose fewer heads"):
        seen[""].joined()


def test_recording_of_own_model(tmp_path):
    model, x = OwnModel().double(), torch.randn(2, 7, MODEL_DIM, dtype=torch.float64)
    with torch.no_grad(), watch(model) as seen:
        model(x)
    tokens = list("abcdefg")
    recording = seen.recording(tokens, batch=1)
    assert recording.stacks["layers"].queries.texts == tuple(tokens)
    assert len(recording["layers"].layers) == 4  # each module runs twice
    torch.testing.assert_close(recording["layers"].layers[1].dense(), seen[0].calls[1].weights.dense()[1:])
    seen.save(tmp_path / "seen.safetensors", tokens, batch=0)
    loaded = Recording.load(tmp_path / "seen.safetensors")
    torch.testing.assert_close(loaded["layers"].layers[3].dense(), seen[1].weights.dense()[:1])
    for options, message in (
        ({}, r"layers.0 ran on 2 sequences; choose one with seen.recording\(batch=0\)"),
        ({"batch": 2}, "batch is 2; expected at most 1"),
        ({"batch": 0, "tokens": ["a"]}, "tokens has 1 entries; expected one for each position: 7"),
        ({"batch": 0, "tokens": {"encoder": tokens}}, "tokens has 'encoder'; expected stacks 'layers'"),
    ):
        with pytest.raises(ValueError, match=message):
            seen.recording(**options)
    with pytest.raises(TypeError, match="tokens is 'abcdefg'; expected a list"):
        seen.recording("abcdefg", batch=0)


def test_recording_of_several_stacks():
    model, inputs = make("bart"), {name: tensor[:1] for name, tensor in inputs_for("bart").items()}
    with torch.no_grad(), watch(model) as seen:
        model(**inputs)
    source = [f"s{index}" for index in range(inputs["input_ids"].shape[1])]
    recording = seen.recording({"encoder": source, "cross": (["t"] * seen["cross", 0].weights.shape[2], source)})
    assert set(recording.stacks) == {"encoder", "decoder", "cross"}
    assert recording["cross"].keys.texts == tuple(source)
    assert recording["decoder"].keys.texts[0] == "0"


def test_report_and_view_accept_what_was_seen():
    model, x = OwnModel(), torch.randn(1, 7, MODEL_DIM)
    with torch.no_grad(), watch(model) as seen:
        model(x)
    assert "layers" in clearhead.report(seen).html
    with clearhead.view(seen, wait=False, browser=False) as viewer:
        assert viewer.url.startswith("http://127.0.0.1")


def test_statistics_cannot_be_recorded():
    model, x = OwnModel(), torch.randn(1, 7, MODEL_DIM)
    with torch.no_grad(), watch(model, entropy=True) as seen:
        model(x)
    with pytest.raises(AttributeError, match="weights were not kept"):
        seen.recording()
