"""Tests of `clearhead record`, and of the commands that read recordings."""

import json
import sys

import pytest
import torch
from typer.testing import CliRunner

from clearhead import Recording
from clearhead.analysis.roles import Roles
from clearhead.cli import app
from support.numerics import assert_matches
from support.recordings import decoder

TEXT = "She plays the piano in the garden every day."


def run(*arguments, status=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == status, result.output
    return result


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    path = tmp_path_factory.mktemp("kept") / "piano.safetensors"
    output = run("record", TEXT, "--output", path).stdout
    assert output.startswith(f"wrote {path}: Recording('en-ja': encoder 4 × 8 heads, 11 × 11 tokens;")
    assert output.endswith(f" MiB\nclearhead view {path}\n")
    return path


def test_no_values_option_omits_the_values(kept, tmp_path):
    layer = Recording.load(kept)["cross"].layers[0]
    assert layer.value is not None
    assert "holds query and key" in repr(layer)
    run("record", TEXT, "--no-values", "--output", tmp_path / "lean.safetensors")
    lean = Recording.load(tmp_path / "lean.safetensors")["cross"].layers[0]
    assert lean.value is None
    call = layer._call.map_tensors(torch.Tensor.double)
    exact = torch.softmax(call.query @ call.key.mT * call.scale, dim=-1)
    assert_matches(lean.dense(), exact, layer.dense(), scale=float(layer.lse.abs().max()))
    assert (tmp_path / "lean.safetensors").stat().st_size < kept.stat().st_size


def test_stats_of_a_recording_equal_those_of_its_model(kept):
    ours = json.loads(run("stats", kept, "--json").stdout)
    theirs = json.loads(run("stats", TEXT, "--model", "en-ja", "--json").stdout)
    assert ours["model"] == theirs["model"] == "en-ja"
    for name, values in theirs["heads"].items():
        assert ours["heads"][name] == (
            values if name in ("stack", "layer", "head") else pytest.approx(values, abs=1e-5)
        )
    some = json.loads(run("stats", kept, "--layers", "3", "--json").stdout)
    assert set(some["heads"]["layer"]) == {3}


@pytest.mark.parametrize("command", ["stats", "roles"])
def test_default_model_is_the_bundled_one(command):
    default = run(command, TEXT, "--json")
    assert default.stdout == run(command, TEXT, "--model", "en-ja", "--json").stdout


def test_roles_of_a_recording_cover_all_heads(kept, tmp_path):
    run("roles", kept, "--output", tmp_path / "roles.json")
    assert len(Roles.from_json((tmp_path / "roles.json").read_text()).heads) == 96
    assert "heads with a clear role" in run("roles", kept).stdout


def test_records_a_file_or_the_default_text(tmp_path):
    (tmp_path / "text.txt").write_text("He reads.")
    run("record", "--file", tmp_path / "text.txt", "--output", tmp_path / "read.safetensors")
    assert Recording.load(tmp_path / "read.safetensors")["encoder"].keys.texts[0] == "he"
    run("record", "--output", tmp_path / "ours.safetensors")
    assert Recording.load(tmp_path / "ours.safetensors")["encoder"].keys.texts[:2] == ("my", "mother")


def test_recordings_do_not_require_transformers(kept, monkeypatch, tmp_path):
    for name in [
        name for name in sys.modules if name.startswith(("clearhead.huggingface", "clearhead.analysis.corpus"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    for arguments in (("stats", kept), ("roles", kept), ("stats", TEXT, "--model", "en-ja")):
        run(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("record", TEXT, "--output", "x.json"), "--output is x.json; expected a name that ends in .safetensors"),
        (("record", TEXT, "--file", "y", "--output", "x.safetensors"), "TEXT and --file are both given"),
        (("record", " ", "--output", "x.safetensors"), "TEXT is empty"),
        (("record", TEXT, "--output", "/nowhere/x.safetensors"), "there is no folder /nowhere"),
        (("stats", "{kept}", "--model", "en-ja"), "is a recording, which cannot be combined with --file or --model"),
        (("stats", "none.safetensors"), "none.safetensors: there is no such file"),
        (("stats", "{kept}", "--layers", "9"), "--layers is '9', but the layers are 0 to 3"),
        (("roles", "{kept}", "--treebank", "{treebank}"), "sentences is not empty, but model is a recording"),
        (("stats", TEXT, "--image", "x.png"), "--image is given with en-ja; expected --model with a model that reads"),
        (("roles", "{cut}"), "cut.safetensors: not a complete safetensors file"),
    ],
)
def test_rejects_invalid_arguments_in_one_line(kept, tmp_path, arguments, message):
    cut, treebank = tmp_path / "cut.safetensors", tmp_path / "one.conllu"
    cut.write_bytes(kept.read_bytes()[:1000])
    treebank.write_text("1\tHe\the\tPRON\t_\t_\t2\tnsubj\t_\t_\n2\treads\tread\tVERB\t_\t_\t0\troot\t_\t_\n\n")
    result = run(*(str(part).format(kept=kept, cut=cut, treebank=treebank) for part in arguments), status=2)
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["stats", "roles"])
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("\x1b]0;X\x07\x1b[2J", r"\x1b]0;X\x07\x1b[2J: "),
        ("my[/model]", "my[/model]: "),
        ("llama[v2]", "llama[v2]: "),
    ],
)
def test_model_name_is_printed_literally(tmp_path, command, name, shown):
    made = decoder(["a", "b", "\x1b[2J"])
    path = tmp_path / "r.safetensors"
    Recording(name, {"dec[/x]": made["decoder"]}).save(path)
    output = run(command, path).stdout
    assert shown in output
    assert "dec[/x]" in output
    assert "\x1b" not in output
    assert json.loads(run(command, path, "--json").stdout)["model"] == name


@pytest.mark.parametrize("layers", ["0-9999999999", "9999999999", f"0-{'9' * 5000}", "1-0"])
def test_rejects_huge_layer_ranges(tmp_path, layers):
    decoder("abc").save(tmp_path / "r.safetensors")
    output = run("stats", tmp_path / "r.safetensors", "--layers", layers, status=2).stderr
    assert output.endswith(", but the layers are 0 to 1\n")
    assert len(output) < 100
