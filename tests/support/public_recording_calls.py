"""Valid calls of the public functions that make and read recordings, for `public_calls.py`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from clearhead import MultiHeadAttention, Recording, check, report, trace, watch
from clearhead.models import load
from clearhead.recording.recording import Stack, Tokens
from support.recordings import decoder, with_values
from support.wrong_calls import Call


def watched(**arguments: Any) -> None:
    with watch(**arguments):
        arguments["model"](torch.randn(1, 5, 12))


def recording_calls() -> list[Call]:
    folder, recording, translator = Path(tempfile.mkdtemp()), decoder(["a", "b", "c"]), load("en-ja")
    recording.save(folder / "recording.safetensors")
    stack = recording["decoder"]
    layer = MultiHeadAttention(12, 4)
    options = {"where": None, "layers": None, "heads": None, "queries": None, "keep": None, "values": False}
    details = {"roles": None, "title": None, "note": None, "command": None, "view": None}
    return [
        Call("Tokens", Tokens, lambda: {"texts": ("a", "b"), "special": (False, True), "words": (0, None)}),
        Call(
            "Stack",
            Stack,
            lambda: {"layers": stack.layers, "queries": stack.queries, "keys": stack.keys, "written": None},
            {"queries": ("query tokens",), "keys": ("key tokens",), "layers": ("layer 0",)},
        ),
        Call(
            "Recording",
            Recording,
            lambda: {"model": "a model", "stacks": {"decoder": stack}, "input": None, "output": None},
            {"stacks": ("a stack is named",)},
        ),
        Call(
            "recording.weights",
            recording.weights,
            lambda: {"address": ("decoder", 1, 3)},
            {"address": ("head is", "layer is", "stack")},
        ),
        Call("recording.to", with_values(recording)[0].to, lambda: {"device": "cpu"}),
        Call("recording.save", recording.save, lambda: {"path": folder / "again.safetensors"}),
        Call("Recording.load", Recording.load, lambda: {"path": folder / "recording.safetensors", "device": "cpu"}),
        Call("translator.record", translator.record, lambda: {"text": "a dog .", "target": "犬 。", "values": False}),
        Call(
            "report",
            report,
            lambda: {
                "recording": recording,
                "path": folder / "report.html",
                **details,
                "progress": lambda done, total: None,
            },
            skipped=("progress",),
        ),
        Call("watch", watched, lambda: {"model": layer, **options, "max_bytes": None}, skipped=("model", "where")),
        Call(
            "trace",
            trace,
            lambda: {
                "layer": layer,
                "x": torch.randn(5, 12),
                "memory": None,
                "mask": None,
                "tokens": None,
                "given": None,
            },
        ),
        Call("check", check, lambda: {"example": "two-heads"}, {"example": ("no such file", "not a")}),
    ]
