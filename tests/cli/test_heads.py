"""Tests of `clearhead stats` and `clearhead roles`."""

import json
import sys

import pytest
import torch
from typer.testing import CliRunner

from clearhead.analysis.roles import Roles
from clearhead.cli import app
from clearhead.models import head_roles, load
from support.paths import DATA
from support.tiny_models import make
from support.tiny_tokenizer import tokenizer

TREEBANK = DATA / "tiny.conllu"
TEXT = "the dogs running . " * 6
BAD_SPANS = (
    *(
        (("--spans", given), f"--spans is '{given}'; expected name=start:end with token indices, such as system=0:40")
        for given in ("", "a", "a=3", "=0:3", "a=0:", "a=:3", "a=x:3", "a=-1:3", "a=0:3:5", "a=0:9999999999", "a=²:3")
    ),
    (("--spans", "a=3:3"), "--spans is 'a=3:3'; expected start < end"),
    (
        ("--spans", "a=0:3", "--spans", "a=4:6"),
        "--spans is 'a=4:6', whose name is given twice; expected distinct names",
    ),
    (("--spans", "head=0:3"), "--spans is 'head=0:3', whose name is another column of the table"),
    (("--spans", "a=30:39"), "spans['a'] is (30, 39); expected an end of at most 38, the number of tokens"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    make("bert").save_pretrained(path)
    tokenizer().save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny-llama"
    make("llama").save_pretrained(path)
    tokenizer().save_pretrained(path)
    return str(path)


def run(*arguments, status=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == status, result.output
    return result


def test_stats_of_a_text_as_table_and_json(folder):
    table = run("stats", "--model", folder, TEXT).stdout
    assert "tiny: means over queries" in table
    assert len([line for line in table.splitlines() if "encoder" in line]) == 8
    document = json.loads(run("stats", "--model", folder, TEXT, "--json", "--layers", "1").stdout)
    assert document["model"] == "tiny"
    assert document["heads"]["layer"] == [1] * 4
    assert document["heads"]["head"] == [0, 1, 2, 3]
    assert document["heads"]["queries"] == [6 * 6 + 2] * 4


def test_stats_average_over_files(folder, tmp_path):
    for index in range(2):
        (tmp_path / f"{index}.txt").write_text(TEXT)
    files = [part for index in range(2) for part in ("--file", tmp_path / f"{index}.txt")]
    both = json.loads(run("stats", "--model", folder, *files, "--json").stdout)
    one = json.loads(run("stats", "--model", folder, TEXT, "--json").stdout)
    assert both["heads"]["queries"][0] == 2 * one["heads"]["queries"][0]
    assert both["heads"]["entropy"] == pytest.approx(one["heads"]["entropy"])


@pytest.mark.parametrize("command", ["stats", "roles"])
def test_nan_is_one_warning_that_names_the_text_and_the_layer(command, tmp_path):
    model = make("bert")
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[tokenizer().unk_token_id] = torch.nan
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    files = []
    for name, text in (("a", TEXT), ("b", TEXT), ("c", "the cat . ")):
        (tmp_path / name).write_text(text)
        files += ["--file", tmp_path / name]
    stderr = run(command, "--model", tmp_path, *files).stderr
    assert "text 2: the statistics of layer 0 of 'encoder' are NaN, so means over all texts are NaN too" in stderr
    assert stderr.count("NaN,") == 1


def test_stats_show_the_attention_on_spans(folder, tmp_path):
    spans = ("--spans", "start=0:3", "--spans", "rest=3:38", "--spans", "one=5:6")
    table = run("stats", "--model", folder, TEXT, *spans).stdout
    header = next(line for line in table.splitlines() if "entropy" in line)
    assert [name in header for name in ("largest", "start", "rest", "one")] == [True] * 4
    heads = json.loads(run("stats", "--model", folder, TEXT, *spans, "--json", "--layers", "1").stdout)["heads"]
    assert list(heads)[-4:] == ["largest", "start", "rest", "one"]
    weights = load(folder).record(TEXT)["encoder"].layers[1].dense()[0]
    for name, (start, end) in {"start": (0, 3), "rest": (3, 38), "one": (5, 6)}.items():
        assert heads[name] == pytest.approx(weights[:, :, start:end].sum(dim=-1).mean(dim=-1).tolist(), rel=1e-5)
    assert [start + rest for start, rest in zip(heads["start"], heads["rest"], strict=True)] == pytest.approx([1] * 4)
    run("stats", "--model", folder, TEXT, *spans, "--output", tmp_path / "stats.json")
    assert json.loads((tmp_path / "stats.json").read_text())["heads"]["one"][4:] == pytest.approx(heads["one"])


def test_stats_of_stacks_without_the_span_are_blank():
    table = run("stats", "--model", "en-ja", "--spans", "encoder:a=0:2").stdout
    assert '""' not in table
    [cross] = {line.rsplit("│", 2)[1].strip() for line in table.splitlines() if "│ cross" in line}
    assert cross == ""


def test_stats_of_spans_average_over_texts_and_recordings(folder, tmp_path):
    texts = [TEXT, "the dogs running . "]
    files = []
    for index, text in enumerate(texts):
        (tmp_path / f"{index}.txt").write_text(text)
        files += ["--file", tmp_path / f"{index}.txt"]
    both = json.loads(run("stats", "--model", folder, *files, "--spans", "a=1:4", "--json").stdout)["heads"]
    single = []
    for index, text in enumerate(texts):
        path = tmp_path / f"{index}.safetensors"
        run("record", "--model", folder, text, "--output", path)
        single.append(json.loads(run("stats", path, "--spans", "a=1:4", "--json").stdout)["heads"])
    total = sum(alone["queries"][0] for alone in single)
    expected = [sum(alone["a"][head] * alone["queries"][0] for alone in single) / total for head in range(8)]
    assert both["a"] == pytest.approx(expected, rel=1e-5)


def test_stats_of_a_model_with_several_stacks_name_the_stack_of_spans():
    text = "I saw a dog ."
    heads = json.loads(run("stats", text, "--spans", "encoder:verb=1:2", "--json").stdout)["heads"]
    assert {
        value is None for value, stack in zip(heads["verb"], heads["stack"], strict=True) if stack == "encoder"
    } == {False}
    assert {value for value, stack in zip(heads["verb"], heads["stack"], strict=True) if stack != "encoder"} == {None}
    assert "None" not in run("stats", text, "--spans", "encoder:verb=1:2").stdout
    for spans, message in (
        (("--spans", "verb=1:2"), "'encoder', 'decoder' and 'cross'; expected the spans of one stack, such as"),
        (("--spans", "vision:verb=1:2"), "spans has the stack 'vision'; expected a stack that ran: 'encoder',"),
        (("--spans", "encoder:a=1:2", "--spans", "b=1:2"), "expected a stack in all spans or in none"),
    ):
        assert message in run("stats", text, *spans, status=2).stderr


def test_names_of_spans_are_printed_as_they_are(folder):
    table = run("stats", "--model", folder, TEXT, "--spans", "[red]a=b\x1b=0:3").stdout
    assert "[red]a=b\\x1b" in table
    assert "\x1b" not in table


def test_roles_as_table_and_json(folder, tmp_path):
    shown = run("roles", "--model", folder, TEXT).stdout
    for title in ("heads with a clear role", "have no clear role", "Best heads"):
        assert title in shown
    target = tmp_path / "roles.json"
    result = run("roles", "--model", folder, TEXT, "--treebank", TREEBANK, "--output", target)
    assert f"wrote {target}" in result.stderr
    roles = Roles.from_json(target.read_text())
    assert roles.model == "tiny"
    assert len(roles.heads) == 8
    run("roles", "--model", folder, TEXT, "--layers", "1", "--output", target)
    assert {layer for _, layer, _ in Roles.from_json(target.read_text()).heads} == {1}


@pytest.mark.slow
def test_roles_show_the_effects_of_labeled_heads(language_model, tmp_path):
    text = "the dogs run . the dog running the dogs . run dog the . . dogs running dog dogs the run run ."
    result = run("roles", "--model", language_model, text, "--effects")
    assert result.stderr == ""
    assert "loss change, text" in result.stdout
    assert "loss change, repeats" in result.stdout
    expected = head_roles(language_model, texts=text, effects=True)
    assert f"loss with all heads: {expected.loss.text:.3f} on text" in result.stdout
    for address in expected.labeled:
        row = next(line for line in result.stdout.splitlines() if f"{address[0]} {address[1]}.{address[2]} " in line)
        assert f"{expected.effects[address].text:+.3f}" in row
        assert f"{expected.effects[address].repeated:+.3f}" in row
    document = json.loads(run("roles", "--model", language_model, text, "--effects", "--json").stdout)
    assert document == expected.to_dict()
    target = tmp_path / "roles.json"
    run("roles", "--model", language_model, text, "--effects", "--layers", "1", "--output", target)
    assert Roles.from_json(target.read_text()).effects == expected.part(lambda address: address[1] == 1).effects


def test_rejects_effects_without_a_language_model(folder, tmp_path):
    made = tmp_path / "made.safetensors"
    run("record", "--model", folder, TEXT, "--output", made)
    pair = tmp_path / "pair"
    make("t5").save_pretrained(pair)
    tokenizer().save_pretrained(pair)
    for arguments, message in (
        ((made,), "tiny is a recording; expected a model to run for effects=True (--effects)"),
        (("--model", "en-ja"), "en-ja is a translator; expected a Hugging Face model for head=True (--effects)"),
        (("--model", folder), "is a BertModel without a language-model head; expected a language model"),
        (("--model", pair), "pair is an encoder–decoder; expected a causal or masked language model with its head"),
    ):
        result = run("roles", *arguments, "--effects", status=2)
        assert message in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


def test_rejects_hugging_face_models_without_transformers(folder, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("clearhead.huggingface")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    result = run("stats", "--model", folder, TEXT, status=2)
    assert "clearhead.huggingface needs transformers: pip install 'clearhead[hf]'" in result.stderr


def test_rejects_invalid_arguments_in_one_line(folder, tmp_path):
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "bad.conllu").write_text("1\tonly\ttwo\n")
    for arguments, message in (
        (("stats", "--model", "no-one/nothing"), "no-one/nothing: there is no such folder or file"),
        (("stats", "--model", folder, TEXT, "--layers", "7"), "--layers is '7', but the layers are 0 to 1"),
        (("stats", "--model", folder, TEXT, "--layers", "x"), "--layers is 'x'; expected numbers and ranges"),
        (("stats", "--model", folder, "--file", tmp_path / "none.txt"), "none.txt"),
        (("stats", "--model", folder, "--file", tmp_path / "bytes.txt"), "not UTF-8 text"),
        (("stats", "--model", folder, " "), "TEXT is empty"),
        (("stats", "--model", folder, TEXT, "--device", "nowhere"), "--device is 'nowhere', which cannot be used"),
        (("stats", "--model", folder, TEXT * 100), "takes at most 512"),
        *((("stats", "--model", folder, TEXT, *spans), message) for spans, message in BAD_SPANS),
        (("roles", "--model", folder, "--treebank", tmp_path / "bad.conllu"), "line 1: has 3 columns"),
    ):
        result = run(*arguments, status=2)
        assert message in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
