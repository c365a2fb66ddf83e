"""Tests of `--model package.module:function` and `--model timm:NAME`."""

import importlib
import json
import re
import sys

import pytest
import torch

from clearhead import Recording
from clearhead.watching.functions import record_function
from support import command_line
from support.attention_calls import captured_calls
from support.command_line import run

MODULE = """
import torch
from torch import nn
from torch.nn import functional

print("imported")
TOKENS = ["the", "old", "dog", "<b>barked</b>", "."]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(12, 36)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        query, key, value = self.project(self.dropout(x)).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        return x + functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Attention(), Attention()])

    def forward(self, x, scale=1.0):
        assert not torch.is_grad_enabled() and not self.training
        for block in self.blocks:
            x = block(x * scale)
        return x


def model():
    torch.manual_seed(3)
    return Model()


def inputs(batch=1):
    return torch.randn(batch, len(TOKENS), 12, generator=torch.Generator().manual_seed(5))


def tensor():
    return model(), inputs()


def positional():
    return model(), (inputs(), 1.0), TOKENS


def keywords(length=5):
    return model(), {"x": inputs(), "scale": 1.0}, TOKENS


def two_sequences():
    return model(), inputs(batch=2)


def wrong_tokens():
    return model(), inputs(), ["a", "b"]


def tokens_are_a_number():
    return model(), inputs(), 3


def without_attention():
    return nn.Linear(12, 12), inputs()


def required(argument):
    return model(), inputs()


def nothing():
    return None


def one():
    return (model(),)


def no_model():
    return "model", inputs()


def wrong_inputs():
    return model(), [1, 2]


def fails():
    raise RuntimeError("no weights\\non two lines \\x1b[2J")


def model_fails():
    return model(), torch.zeros(1, 2, 3)


CONSTANT = 3
"""


@pytest.fixture
def own_model(tmp_path, monkeypatch):
    """Return the name of a module in the current folder."""
    name = re.sub(r"\W", "_", f"own_{tmp_path.name}")
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / f"{name}_broken.py").write_text("import a_package_that_does_not_exist")
    (tmp_path / f"{name}_syntax.py").write_text("def f(:")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    return name


def error_of(*arguments):
    line = command_line.error_of(*arguments)
    assert line.startswith("clearhead: ")
    return line.removeprefix("clearhead: ")


@pytest.mark.parametrize("function", ["tensor", "positional", "keywords"])
def test_record_writes_the_attention_of_a_function(own_model, function):
    run("record", "--model", f"{own_model}:{function}", "--output", "own.safetensors")
    recording = Recording.load("own.safetensors")
    assert recording.model == f"{own_model}:{function}"
    [(name, stack)] = recording.stacks.items()
    assert name == "blocks"
    module = importlib.import_module(own_model)
    expected = [*"01234"] if function == "tensor" else module.TOKENS
    assert list(stack.queries.texts) == list(stack.keys.texts) == expected
    assert stack.has_values
    model = module.model().eval()
    with torch.no_grad(), captured_calls(model) as calls:
        model(module.inputs())
    for layer, (_, [call]) in zip(stack.layers, calls.items(), strict=True):
        call.assert_equals(layer.dense())


def test_record_omits_values_on_request(own_model):
    run("record", "--model", f"{own_model}:tensor", "--no-values", "--output", "own.safetensors")
    assert not Recording.load("own.safetensors")["blocks"].has_values


def test_stats_are_those_of_the_recording(own_model):
    name = f"{own_model}:keywords"
    run("record", "--model", name, "--output", "own.safetensors")
    from_model = json.loads(
        run("stats", "--model", name, "--spans", "start=0:1", "--json").stdout.removeprefix("imported\n")
    )
    from_recording = json.loads(run("stats", "own.safetensors", "--spans", "start=0:1", "--json").stdout)
    assert from_model == from_recording
    assert from_model["model"] == name
    assert from_model["heads"]["layer"] == [0, 0, 0, 1, 1, 1]
    assert len(json.loads(run("stats", "--model", name, "--layers", "1", "--json").stdout)["heads"]["head"]) == 3


def test_view_writes_a_report(own_model, tmp_path):
    output = run("view", "--model", f"{own_model}:keywords", "--output", "report.html").stdout
    assert f"wrote report.html: Recording('{own_model}:keywords': blocks 2 × 3 heads, 5 × 5 tokens" in output
    assert "<b>barked" not in (tmp_path / "report.html").read_text()


def test_view_serves_the_recording(own_model, monkeypatch):
    served = []

    def view(source, text, **options):
        served.append((source, text, options))
        raise ValueError("stopped by the test")

    monkeypatch.setattr("clearhead.viewer.server.serve.view", view)
    assert error_of("view", "--model", f"{own_model}:keywords") == "stopped by the test"
    [(source, text, options)] = served
    assert isinstance(source, Recording)
    assert text is None
    assert not {"device", "dtype", "download"} & options.keys()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{}_missing:f", "there is no module '{}_missing', neither in the current folder nor installed"),
        ("json.nowhere:f", "there is no module 'json.nowhere'"),
        ("{}_broken:f", "the import of {}_broken failed: ModuleNotFoundError: No module named 'a_package"),
        ("{}_syntax:f", "the import of {}_syntax failed: SyntaxError: "),
        ("{}:absent", "{} has no 'absent'; expected a function"),
        ("{}:CONSTANT", "as 'CONSTANT'; expected a function"),
        ("{}:required", "missing a required argument: 'argument'; expected a function without required arguments"),
        ("{}:nothing", "returned None; expected (model, inputs) or (model, inputs, tokens)"),
        ("{}:one", "expected (model, inputs) or (model, inputs, tokens)"),
        ("{}:no_model", "expected a torch.nn.Module"),
        ("{}:wrong_inputs", "expected a tensor, a tuple of arguments, or a dict of keyword arguments"),
        ("{}:fails", "raised RuntimeError: no weights on two lines"),
        ("{}:model_fails", "the model raised RuntimeError: "),
        ("{}:without_attention", "watch observed no attention of Linear"),
        ("{}:two_sequences", "'blocks.0' attends within 2 sequences or windows; expected one"),
        ("{}:wrong_tokens", "tokens has 2 entries; expected one for each position: 5"),
        ("{}:", "--model is '{}:'; expected a name or path, package.module:function, or timm:NAME"),
        ("{}:tensor:x", "--model is '{}:tensor:x'; expected a name or path, package.module:function"),
        ("{}:tokens_are_a_number", "tokens is 3; expected a list with the text of each token"),
    ],
)
def test_wrong_functions_are_refused_in_one_line(own_model, name, message):
    error = error_of("record", "--model", name.format(own_model), "--output", "own.safetensors")
    assert message.format(own_model) in error
    assert "please report it" not in error


def test_errors_of_own_code_contain_no_control_characters(own_model):
    with pytest.raises(ValueError, match=r"raised RuntimeError: no weights on two lines \\x1b\[2J$"):
        record_function(f"{own_model}:fails")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a text"], "TEXT or --file is given, but --model is {}:tensor, which runs on another input"),
        (["--image", "x.png"], "--image is given, but {}:tensor is a function that returns its model and inputs"),
        (["--download"], "--download is given, but {}:tensor is a function"),
        (["--dtype", "bfloat16"], "--dtype is given, but {}:tensor is a function"),
    ],
)
@pytest.mark.parametrize("command", ["record", "stats", "view"])
def test_options_without_effect_are_refused(own_model, command, arguments, message):
    output = [] if command == "stats" else ["--output", f"x.{'html' if command == 'view' else 'safetensors'}"]
    error = error_of(command, *arguments, "--model", f"{own_model}:tensor", *output)
    assert message.format(own_model) in error


def test_images_are_refused_for_models_of_texts():
    expected = "--image is given with en-ja; expected --model with a model that reads it"
    assert error_of("stats", "--model", "en-ja", "--image", "x.png") == expected
    assert error_of("view", "--image", "x.png", "--output", "x.html") == expected


def test_library_functions_do_not_import_modules_by_name(own_model):
    from clearhead import models

    with pytest.raises(ValueError, match="there is no such folder or file"):
        models.load(f"{own_model}:tensor")


def test_missing_timm_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "timm", None)
    error = error_of("stats", "--model", "timm:vit_tiny_patch16_224", "--image", tmp_path / "x.png")
    assert error == "timm:vit_tiny_patch16_224 needs timm: pip install timm"


def test_timm_models_require_an_image():
    error = error_of("stats", "--model", "timm:vit_tiny_patch16_224")
    assert error == "--model is timm:vit_tiny_patch16_224, which runs on an image; expected --image FILE"
