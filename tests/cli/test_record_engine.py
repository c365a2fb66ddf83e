"""Tests of `clearhead record --engine vllm`, with a function in place of vLLM."""

import os

import pytest

from clearhead import Recording
from clearhead.cli.record import VLLM_ENVIRONMENT
from clearhead.serving import engine
from support.command_line import error_of, run
from support.recordings import decoder

RECORD = ("record", "--engine", "vllm", "--model", "someone/something")


@pytest.fixture
def calls(monkeypatch):
    """Replace the function that runs vLLM by one that returns a small recording; return the list of its calls."""
    made = []

    def record_generation(model, text, **options):
        made.append((model, text, options, os.environ.get("HF_HUB_OFFLINE"), os.environ.get("VLLM_LOGGING_STREAM")))
        return decoder("abc")

    monkeypatch.setattr(engine, "record_generation", record_generation)
    for name in ("HF_HUB_OFFLINE", *VLLM_ENVIRONMENT):
        monkeypatch.setenv(name, "")  # restored after the test even if it is not set now
        monkeypatch.delenv(name)
    return made


def test_records_a_generation(calls, tmp_path):
    path = tmp_path / "seen.safetensors"
    output = run(*RECORD, "The old dog", "--output", path).stdout
    assert output.startswith(f"wrote {path}: Recording(")
    assert list(Recording.load(path).heads()) == list(decoder("abc").heads())
    options = {"max_tokens": 64, "dtype": "auto", "values": True}
    assert calls == [("someone/something", "The old dog", options, "1", "ext://sys.stderr")]


def test_options_of_a_generation(calls, tmp_path):
    (tmp_path / "text.txt").write_text("The cat")
    given = ("--max-tokens", 7, "--dtype", "bfloat16", "--no-values", "--download", "--file", tmp_path / "text.txt")
    run(*RECORD, *given, "--output", tmp_path / "seen.safetensors")
    options = {"max_tokens": 7, "dtype": "bfloat16", "values": False}
    assert calls == [("someone/something", "The cat", options, None, "ext://sys.stderr")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*RECORD,), "TEXT is missing; expected a text that vLLM continues, or --file"),
        ((*RECORD, " "), "TEXT is empty; expected a text"),
        ((*RECORD, "a", "--image", "cat.png"), "--image is given with --engine vllm; expected a text only"),
        ((*RECORD, "a", "--audio", "cat.wav"), "--audio is given with --engine vllm; expected a text only"),
        ((*RECORD, "a", "--device", "cpu"), "--device is 'cpu', but vLLM chooses the device; omit it with"),
        (("record", "--engine", "vllm", "a"), "--model is en-ja; expected a folder or hub id of a model that vLLM"),
        (("record", "a", "--max-tokens", 3), "--max-tokens is given without --engine vllm; the engine transformers"),
    ],
)
def test_rejects_other_options(calls, tmp_path, arguments, message):
    assert f"clearhead: {message}" in error_of(*arguments, "--output", tmp_path / "seen.safetensors")
    assert calls == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [("--engine", "jax"), ("--engine", "vllm", "--max-tokens", "0")])
def test_rejects_other_engines_and_no_tokens(calls, arguments):
    assert "Invalid value for" in run("record", "a", *arguments, "--output", "x.safetensors", status=2).stderr


def test_model_that_is_not_cached_needs_download(calls, monkeypatch, tmp_path):
    def fail(*args, **kwargs):
        raise FileNotFoundError("Cannot find an appropriate cached snapshot folder")

    monkeypatch.setattr(engine, "record_generation", fail)
    given = (*RECORD, "a", "--output", tmp_path / "seen.safetensors")
    assert error_of(*given).endswith("has no model of that name; pass --download to download it from the hub")
    assert error_of(*given, "--download").endswith("Cannot find an appropriate cached snapshot folder")
