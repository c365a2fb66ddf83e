"""Tests of `clearhead.models.head_roles`, which runs a model and labels its heads in one call."""

import sys

import pytest
import torch

from clearhead.analysis import corpus_roles, read_conllu
from clearhead.analysis.roles import Loss, Roles
from clearhead.analysis.roles import head_roles as roles_of_recordings
from clearhead.distributed.process_group import ProcessGroup
from clearhead.models import head_roles, load, record, record_repeated
from clearhead.recording.example_texts import EXAMPLE_PASSAGES
from support.paths import DATA
from support.tiny_models import make
from support.tiny_tokenizer import tokenizer

TEXT = (
    "the dogs run . the dog running the dogs . run dog the . . dogs running dog dogs the run run . " * 2 + "the dog ."
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    make("llama").save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def roles(folder):
    return head_roles(folder, texts=TEXT, effects=True)


def test_models_names_and_transformers_models_have_the_same_roles(folder):
    model = load(folder)
    expected = corpus_roles(model, [TEXT])
    assert head_roles(model, texts=TEXT).heads == expected.heads
    assert head_roles(folder, texts=[TEXT]).heads == expected.heads
    assert head_roles(str(folder), texts=[TEXT], device="cpu").heads == expected.heads
    assert head_roles(model.model, model.tokenizer, texts=TEXT).heads == expected.heads
    recordings = [record(model, TEXT), *(record_repeated(model, 64, seed=seed) for seed in range(4))]
    assert roles_of_recordings(recordings).heads == expected.heads
    assert head_roles(model).heads == corpus_roles(model, EXAMPLE_PASSAGES).heads


def test_text_in_place_of_the_tokenizer_is_refused(folder):
    with pytest.raises(TypeError, match=r"tokenizer is 'my text', but the model has its own; .* passed as texts="):
        head_roles(folder, "my text")
    with pytest.raises(TypeError, match="tokenizer is 'my text', but the model has its own"):
        head_roles(record(folder, TEXT), "my text")
    model = load(folder)
    with pytest.raises(TypeError, match="tokenizer is 'my text'; expected a tokenizer of transformers"):
        head_roles(model.model, "my text")
    with pytest.raises(TypeError, match="but the model has its own; expected None"):
        record(model, TEXT, tokenizer=model.tokenizer)


def test_recordings_sentences_and_layers(folder):
    made = record(folder, TEXT)
    assert head_roles(made).heads == roles_of_recordings([made]).heads
    sentences = list(read_conllu(DATA / "tiny.conllu"))
    steps = []
    found = head_roles(
        folder, texts=TEXT, sentences=sentences, layers={1}, progress=lambda done, total: steps.append((done, total))
    )
    assert {layer for _, layer, _ in found.heads} == {1}
    assert steps[-1] == (len(sentences), len(sentences))
    assert found.loss is None
    assert found.effects == {}


def test_effects_are_those_of_labeled_heads(folder, roles):
    assert roles.labeled == [address for address in roles.heads if roles.labels(address)]
    assert len(roles.labeled) > 0
    assert list(roles.effects) == roles.labeled
    assert isinstance(roles.loss, Loss)
    assert roles.loss.text > 0
    model = load(folder, head=True)
    assert head_roles(model.model, model.tokenizer, texts=TEXT, effects=True).effects == roles.effects
    layer = roles.labeled[0][1]
    part = head_roles(model, texts=TEXT, effects=True, layers=[layer])
    assert part.effects == {address: effect for address, effect in roles.effects.items() if address[1] == layer}
    assert part.effects == roles.part(lambda address: address[1] == layer).effects


def test_effects_are_shared_among_processes(folder, roles, monkeypatch):
    gathered = []
    monkeypatch.setattr(ProcessGroup, "all_gather", lambda self, value: gathered.append(value) or [roles.effects])
    monkeypatch.setattr("clearhead.models.corpus_roles", lambda *_, **__: roles)
    head_roles(folder, texts=TEXT, effects=True, process_group=ProcessGroup(1, 2))
    assert list(gathered[0]) == roles.labeled[1::2]


def test_effects_are_kept_in_json(roles):
    again = Roles.from_json(roles.to_json())
    assert again == roles
    document = roles.to_dict()
    assert document["loss"] == {"text": roles.loss.text, "repeated": roles.loss.repeated}
    effects = {(row["stack"], row["layer"], row["head"]): row["effect"] for row in document["heads"]}
    assert {address for address, effect in effects.items() if effect is not None} == set(roles.labeled)
    without = Roles(roles.model, roles.heads)
    assert "loss" not in without.to_dict()
    assert "effect" not in without.to_dict()["heads"][0]
    with pytest.raises(ValueError, match="text is not from Roles.to_json"):
        Roles.from_json(roles.to_json().replace('"repeated": ', '"other": '))


def test_rejects_wrong_arguments(folder):
    model = load(folder)
    for arguments, error, message in (
        ({"effects": "yes"}, TypeError, "effects is 'yes'; expected True or False"),
        ({"texts": 3}, TypeError, "texts is 3; expected a string or a list of strings"),
        ({"texts": [3]}, TypeError, r"texts is \[3\]; expected a string or a list of strings"),
        ({"texts": []}, TypeError, r"texts is \[\]; expected a string or a list of strings"),
        ({"effects": True}, ValueError, "tiny is a LlamaModel; expected a causal or masked language model with its"),
        ({"device": "cpu"}, ValueError, "device is cpu, but HuggingFaceModel is already loaded"),
    ):
        with pytest.raises(error, match=message):
            head_roles(model, **arguments)
    with pytest.raises(ValueError, match="tokenizer is None"):
        head_roles(model.model)
    with pytest.raises(TypeError, match="model is 3; expected a model from load"):
        head_roles(3)
    made = record(model, TEXT)
    with pytest.raises(ValueError, match="texts is given, but tiny is a recording; expected a model"):
        head_roles(made, texts=TEXT)
    with pytest.raises(ValueError, match="tiny is a recording; expected a model to run for effects=True"):
        head_roles(made, effects=True)
    with pytest.raises(ValueError, match="en-ja is a translator; expected a Hugging Face model for head=True"):
        head_roles("en-ja", effects=True)
    with pytest.raises(ValueError, match="model is a Translator; expected a Hugging Face model for effects=True"):
        head_roles(load("en-ja"), effects=True)


def test_progress_bars_are_shown_on_terminals_only(folder, monkeypatch, capsys):
    head_roles(folder, texts=TEXT, effects=True)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with torch.no_grad():
        head_roles(folder, texts=TEXT, effects=True, layers=[])
    assert capsys.readouterr().out == ""
