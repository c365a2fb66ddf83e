"""Tests of recordings of finished requests."""

from dataclasses import replace

import pytest
import torch

from clearhead import report
from clearhead.analysis import measure_heads
from clearhead.recording.recording import Recording
from clearhead.serving.recorded import RequestTexts, to_recording
from support.served_requests import HEADS, LAYERS, Tokenizer, finished_request, weights_of


def recording_of(finished, tokenizer=None) -> Recording:
    return to_recording(finished, "model", RequestTexts.decode(finished, tokenizer))


@pytest.mark.parametrize("first_row", [0, 3, 8])
@pytest.mark.parametrize("window", [None, 3])
def test_weights_are_those_of_the_layers(tmp_path, first_row, window):
    finished = finished_request(first_row=first_row, window=window)
    recording_of(finished).save(tmp_path / "r.safetensors")
    stack = Recording.load(tmp_path / "r.safetensors")["decoder"]
    assert stack.has_values
    for weights, layer in zip(stack.layers, finished.recording, strict=True):
        assert weights.shape == (1, HEADS, 12 - first_row, 12)
        assert torch.equal(weights[0], weights_of(layer))
        assert torch.equal(weights.lse[0], layer.lse)
        assert torch.equal(weights.value[0], layer.value)
    if window:
        assert not stack.layers[2][0, :, -1, : 12 - window].any()


def test_values_may_be_missing(tmp_path):
    recording = recording_of(finished_request(values=False))
    assert not recording["decoder"].has_values


@pytest.mark.parametrize("heads", [(1,), (0, 3), (1, 2, 3)])
def test_chosen_heads_only(tmp_path, heads):
    finished = finished_request(heads=heads)
    recording_of(finished).save(tmp_path / "r.safetensors")
    recording = Recording.load(tmp_path / "r.safetensors")
    for weights, layer in zip(recording["decoder"].layers, finished.recording, strict=True):
        assert torch.equal(weights[0], weights_of(layer)[list(heads)])
    assert recording.model == {1: "model, heads 1", 2: "model, heads 0,3", 3: "model, heads 1-3"}[len(heads)]


def test_tokens_of_both_axes_and_the_text():
    finished = finished_request(first_row=3)
    recording = recording_of(finished, Tokenizer())
    stack = recording["decoder"]
    texts = tuple(f"w{token} " for token in finished.token_ids)
    assert stack.keys.texts == texts
    assert stack.keys.special == tuple(token == 0 for token in finished.token_ids)
    assert stack.queries.texts == texts[3:]
    assert stack.written.texts == (*texts[4:], "")
    assert recording.input == "".join(texts[1:7])
    assert recording.output == "".join(texts[7:11])  # the last token, 0, is special


def test_last_token_of_the_answer_is_written():
    finished = replace(finished_request(first_row=3), unread=5)
    recording = recording_of(finished, Tokenizer())
    stack = recording["decoder"]
    assert len(stack.keys) == 12
    assert stack.written.texts[-2:] == ("w0 ", "w5 ")
    assert recording.output.endswith("w5 ")
    assert recording_of(finished)["decoder"].written.texts[-1] == "5"  # without a tokenizer


def test_without_a_tokenizer_tokens_are_ids():
    recording = recording_of(finished_request())
    assert recording["decoder"].keys.texts[:3] == ("0", "1", "2")
    assert recording.input is None
    assert recording.output is None


def test_layers_are_named_if_some_are_missing():
    finished = finished_request()
    object.__setattr__(finished, "recording", finished.recording[1:])
    assert recording_of(finished).model == "model, layers 1-2"


@pytest.mark.slow
def test_statistics_and_report_open_the_file(tmp_path):
    path, finished = tmp_path / "r.safetensors", finished_request(first_row=3)
    recording_of(finished, Tokenizer()).save(path)
    model, statistics = measure_heads([Recording.load(path)])
    assert model == "model"
    assert set(statistics) == {("decoder", layer, head) for layer in range(LAYERS) for head in range(HEADS)}
    entropy = finished.statistics["entropy"][0, 2].mean()
    assert statistics["decoder", 0, 2].entropy == pytest.approx(float(entropy), rel=1e-5)
    page = report(Recording.load(path), tmp_path / "r.html")
    assert page.path is not None
    assert "w10" in page.html
