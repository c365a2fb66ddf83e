"""Tests of loading models by folder, GGUF file or hub id, and of recording a text."""

import json
import re

import numpy as np
import pytest
import torch
import transformers

from clearhead.models import load, load_source, record, record_repeated
from clearhead.recording.protocol import RecordableModel
from support.tiny_models import SIZES, make
from support.tiny_tokenizer import WORDS, tokenizer

TEXT = "The dogs running."


@pytest.fixture
def folder(tmp_path):
    make("bert").save_pretrained(tmp_path / "tiny")
    tokenizer().save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def test_recordings_of_a_folder_are_the_attentions_of_the_model(folder):
    model = load(folder)
    assert model.name == "tiny"
    assert model.model.config._attn_implementation == "clearhead"
    made = record(model, "The dogs running.")
    axis = made["encoder"].queries
    assert axis.texts == ("[CLS]", "the", "dog", "##s", "run", "##ning", ".", "[SEP]")
    assert axis.special == (True, *[False] * 6, True)
    assert axis.words == (None, 0, 1, 1, 2, 2, 3, None)
    with torch.no_grad():
        outputs = model.model(**model.tokenizer("The dogs running.", return_tensors="pt"), output_attentions=True)
    for kept, weights in zip(made["encoder"].layers, outputs.attentions, strict=True):
        assert torch.equal(kept.dense(), weights.dense())
        assert kept.value is None
    assert record(folder, "dogs", values=True)["encoder"].has_values


def test_words_are_the_indices_in_the_given_list(folder):
    axis = record(load(folder), ["the", "dogs.", "running"])["encoder"].queries
    assert axis.texts == ("[CLS]", "the", "dog", "##s", ".", "run", "##ning", "[SEP]")
    assert axis.words == (None, 0, 1, 1, 1, 2, 2, None)


def test_records_a_transformers_model_with_its_tokenizer(folder):
    model = make("bert", "sdpa")
    assert record(model, "the dog", tokenizer=tokenizer())["encoder"].queries.texts[1:3] == ("the", "dog")
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(ValueError, match="tokenizer is None"):
        record(model, "the dog")


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_encoder_decoders_are_recorded_with_a_target_or_their_output(name):
    model, pieces = make(name), tokenizer()
    made = record(model, "the dogs run .", tokenizer=pieces, target="run , dog !")
    assert made["encoder"].queries.texts == ("[CLS]", "the", "dog", "##s", "run", ".", "[SEP]")
    start = model.config.decoder_start_token_id
    ids = [start, *pieces("run , dog !")["input_ids"][:-1]]
    assert made["decoder"].queries.texts == tuple(WORDS[token] for token in ids)
    assert made["cross"].keys == made["encoder"].keys
    assert made["cross"].queries == made["decoder"].queries
    written = record(model, "the dogs run .", tokenizer=pieces)
    assert len(written["decoder"].queries) >= 1
    with pytest.raises(ValueError, match="target is given, but .* is not an encoder–decoder"):
        record(make("bert"), "the dog", tokenizer=pieces, target="dog")


def test_token_ids_are_recorded_as_the_text_is(folder):
    model = load(folder)
    by_text = record(model, TEXT)["encoder"]
    ids = model.tokenizer(TEXT)["input_ids"]
    for given in (ids, tuple(ids), torch.tensor(ids), torch.tensor([ids], dtype=torch.int32), np.array(ids)):
        made = record(model, input_ids=given)["encoder"]
        assert made.queries.texts == by_text.queries.texts
        assert made.queries.special == by_text.queries.special
        assert set(made.queries.words) == {None}
        assert all(torch.equal(a.dense(), b.dense()) for a, b in zip(made.layers, by_text.layers, strict=True))
    assert record(folder, input_ids=ids, values=True)["encoder"].has_values


def test_token_ids_need_no_tokenizer():
    model = make("llama", "sdpa")
    made = record(model, input_ids=[4, 98, 4])["decoder"]
    assert made.queries.texts == ("4", "98", "4")
    assert not any(made.queries.special)
    assert made.layers[0].shape == (1, 4, 3, 3)
    assert record(model, input_ids=[4, 5], tokenizer=tokenizer())["decoder"].queries.texts == ("the", "dog")


def test_token_ids_of_encoder_decoders():
    model, pieces = make("bart"), tokenizer()
    made = record(model, input_ids=[4, 5, 6], decoder_input_ids=[2, 7])
    assert made["cross"].keys.texts == ("4", "5", "6")
    assert made["cross"].queries.texts == made["decoder"].keys.texts == ("2", "7")
    assert len(record(model, input_ids=[4, 5, 6])["decoder"].queries) >= 1  # the greedy output
    by_text = record(model, "the dogs", tokenizer=pieces, target="run")
    by_ids = record(model, input_ids=pieces("the dogs")["input_ids"], tokenizer=pieces, target="run")
    assert by_ids["cross"].queries == by_text["cross"].queries
    assert torch.equal(by_ids["cross"].layers[1].dense(), by_text["cross"].layers[1].dense())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "text, input_ids, image, pixel_values and audio are None; expected one"),
        ({"text": "a", "input_ids": [1]}, ValueError, "text and input_ids are both given; expected one of them"),
        ({"text": "a", "decoder_input_ids": [1]}, ValueError, "decoder_input_ids is given without input_ids"),
        ({"input_ids": [4, 99]}, ValueError, "input_ids contains 99; expected ids from 0 to 98"),
        ({"input_ids": [4, -1]}, ValueError, "input_ids contains -1; expected ids from 0 to 98"),
        ({"input_ids": []}, ValueError, "input_ids has no tokens; expected at least one"),
        ({"input_ids": [[4], [5]]}, ValueError, "input_ids has shape [2, 1]; expected the token ids of one sequence"),
        ({"input_ids": 4}, ValueError, "input_ids has shape []; expected the token ids of one sequence"),
        ({"input_ids": [[4], [5, 6]]}, TypeError, "input_ids is [[4], [5, 6]]; expected the token ids"),
        ({"input_ids": "the dog"}, TypeError, "input_ids is 'the dog'; expected the token ids of one sequence"),
        ({"input_ids": torch.ones(3)}, TypeError, "input_ids is a tensor of torch.float32; expected the token ids"),
        ({"input_ids": [True, False]}, TypeError, "input_ids is [True, False]; expected the token ids"),
        ({"input_ids": [4] * 513}, ValueError, "input_ids has 513 tokens, but BertModel takes at most 512"),
        ({"input_ids": [4], "decoder_input_ids": [5]}, ValueError, "BertModel is not an encoder–decoder; omit it"),
        ({"input_ids": [4], "target": "dog"}, ValueError, "target is given, but BertModel is not an encoder–decoder"),
    ],
)
def test_rejects_wrong_token_ids(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        record(make("bert"), **arguments)


def test_rejects_token_ids_that_do_not_fit_the_model():
    for arguments, message in (
        ({"target": "dog"}, "target is given, but tokenizer is None; pass decoder_input_ids instead"),
        ({"target": "dog", "decoder_input_ids": [2]}, "target and decoder_input_ids are both given"),
        ({"decoder_input_ids": [2, 99]}, "decoder_input_ids contains 99; expected ids from 0 to 98"),
    ):
        with pytest.raises(ValueError, match=message):
            record(make("t5"), input_ids=[4, 5], **arguments)
    with pytest.raises(ValueError, match="ViTModel has no token embeddings; expected a model that takes text"):
        record(make("vit"), input_ids=[4, 5])
    with pytest.raises(TypeError, match="model is en-ja, which does not support input_ids"):
        record("en-ja", input_ids=[4, 5])


def save(model, path):
    model.save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("make_model", "stack"),
    [
        (lambda: make("llama"), "decoder"),
        (lambda: make("t5"), "cross"),
        (lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)), "encoder"),
        (lambda: transformers.BertForPreTraining(transformers.BertConfig(**SIZES)), "encoder"),
    ],
    ids=["causal", "seq2seq", "masked", "pretraining"],
)
def test_models_with_a_head_return_a_loss_and_the_same_recordings(make_model, stack, tmp_path):
    torch.manual_seed(0)
    path = save(make_model(), tmp_path / "saved")
    whole, base = load(path, head=True), load(path)
    ids = torch.tensor([[4, 5, 6, 7]])
    with torch.no_grad():
        outputs = whole.model(input_ids=ids, labels=ids)
    assert outputs.loss > 0
    assert outputs.logits.shape == (1, 4, SIZES["vocab_size"])
    assert whole.model.config._attn_implementation == "clearhead"
    made, plain = (record(model, TEXT)[stack] for model in (whole, base))
    assert made.queries == plain.queries
    assert all(torch.equal(a.dense(), b.dense()) for a, b in zip(made.layers, plain.layers, strict=True))


def test_rejects_models_without_a_language_model_head(folder, tmp_path):
    with pytest.raises(ValueError, match="is a BertModel without a language-model head; expected a language model"):
        load(folder, head=True)
    classifier = transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**SIZES))
    path = save(classifier, tmp_path / "classifier")
    with pytest.raises(ValueError, match="is a LlamaForSequenceClassification without a language-model head"):
        load(path, head=True)
    classifier.config.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(ValueError, match=r"has no parameter lm_head\.weight of a language-model head"):
        load(path, head=True)
    with pytest.raises(ValueError, match=r"en-ja is a translator; expected a Hugging Face model for head=True"):
        load("en-ja", head=True)
    with pytest.raises(TypeError, match="head is 'yes'; expected True or False"):
        load(folder, head="yes")


def test_record_repeated_repeats_random_tokens_once(folder):
    model = load(folder)
    axis = record_repeated(model, 5, seed=3)["encoder"].queries
    assert axis.special == (True, *[False] * 10, True)
    assert axis.texts[1:6] == axis.texts[6:11]
    assert len(set(axis.texts[1:6])) == 5
    assert axis == record_repeated(model, 5, seed=3)["encoder"].queries
    assert axis != record_repeated(model, 5, seed=4)["encoder"].queries


def test_record_repeated_takes_a_transformers_model_with_its_tokenizer(folder):
    loaded = load(folder)
    made = record_repeated(loaded.model, 5, tokenizer=loaded.tokenizer, seed=3)
    assert made["encoder"].queries == record_repeated(loaded, 5, seed=3)["encoder"].queries
    with pytest.raises(ValueError, match="tokenizer is None"):
        record_repeated(loaded.model, 5)
    with pytest.raises(TypeError, match="model is 'en-ja'; expected a model from load"):
        record_repeated("en-ja", 5)


def test_record_runs_without_dropout(folder):
    model = make("bert").train()
    first, second = (record(model, TEXT, tokenizer=tokenizer())["encoder"].layers[1].dense() for _ in range(2))
    assert torch.equal(first, second)
    assert model.training


def test_unknown_words_are_not_special(folder):
    axis = record(load(folder), "the 😀 dog")["encoder"].queries
    assert axis.texts[2] == "[UNK]"
    assert axis.special == (True, False, False, False, True)


def test_layers_that_share_a_module_are_recorded_separately(folder):
    torch.manual_seed(0)
    model = transformers.AlbertModel(transformers.AlbertConfig(**SIZES, embedding_size=16)).eval()
    model.set_attn_implementation("clearhead")
    pieces = tokenizer()
    made = record(model, TEXT, tokenizer=pieces)["encoder"]
    with torch.no_grad():
        outputs = model(**pieces(TEXT, return_tensors="pt"), output_attentions=True)
    assert len(made.layers) == 2
    for kept, weights in zip(made.layers, outputs.attentions, strict=True):
        assert torch.equal(kept.dense(), weights.dense())


def test_record_rejects_models_of_text_and_images():
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    config = transformers.CLIPConfig(
        text_config={**small, "vocab_size": 50}, vision_config={**small, "image_size": 8, "patch_size": 4}
    )
    with pytest.raises(ValueError, match="has a text encoder; expected a model that takes text only"):
        record(transformers.CLIPModel(config), "the dog", tokenizer=tokenizer())


def test_record_rejects_more_tokens_than_positions():
    config = transformers.RobertaConfig(**SIZES, max_position_embeddings=14, pad_token_id=1)
    model, pieces = transformers.RobertaModel(config), tokenizer()
    assert len(record(model, "the " * 10, tokenizer=pieces)["encoder"].queries) == 12
    with pytest.raises(ValueError, match="text has 13 tokens, but .* takes at most 12"):
        record(model, "the " * 11, tokenizer=pieces)


def test_rejects_load_options_with_a_loaded_model(folder):
    model = load(folder)
    for options in ({"device": "cpu"}, {"dtype": torch.float16}, {"download": True}):
        name = next(iter(options))
        with pytest.raises(ValueError, match=f"{name} is .*, but HuggingFaceModel is already loaded; expected {name}"):
            record(model, TEXT, **options)
        with pytest.raises(ValueError, match=f"{name} is .*, but HuggingFaceModel is already loaded"):
            load_source(model, **options)
    made = record(folder, TEXT, device="cpu", dtype=torch.float64)
    assert made["encoder"].layers[0].dtype == torch.float64


def test_load_source_returns_models_and_recordings(folder, tmp_path):
    model = load(folder)
    assert load_source(model) is model
    made = record(model, TEXT)
    made.save(tmp_path / "made.safetensors")
    assert load_source(made) is made
    assert load_source(tmp_path / "made.safetensors", device="cpu")["encoder"].queries == made["encoder"].queries
    with pytest.raises(ValueError, match=r"dtype is torch.float16 .*, but .*made\.safetensors is a recording"):
        load_source(tmp_path / "made.safetensors", dtype=torch.float16)
    with pytest.raises(ValueError, match="tokenizer is None"):
        load_source(model.model)
    with pytest.raises(TypeError, match="model is 3; expected a model from load"):
        load_source(3)


def test_transformers_models_and_translators_implement_the_protocol(folder):
    for model, layers in ((load(folder), 2), (load("en-ja"), 4)):
        assert isinstance(model, RecordableModel)
        assert model.layer_count == model.record(model.default_text).layer_count == layers
        assert model.token_count("the dog") > 2
        assert sum(parameter.numel() for parameter in model.parameters()) > 0


def test_rejects_unreadable_models_and_wrong_texts(folder, tmp_path):
    with pytest.raises(TypeError, match=r"text is \['the', 3\]; expected a string or a list of words"):
        record(folder, ["the", 3])
    with pytest.raises(ValueError, match="BartModel has no generate\\(\\); pass target"):
        record(make("bart").model, "the dog", tokenizer=tokenizer())
    with pytest.raises(ValueError, match="no-one/nothing: there is no such folder or file.*--download"):
        load("no-one/nothing")
    with pytest.raises(FileNotFoundError, match="a folder without config.json"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"m\.gguf: there is no such file"):
        load(tmp_path / "m.gguf")
    (tmp_path / "text.txt").write_text("x")
    with pytest.raises(ValueError, match="expected a folder of Hugging Face files, a .gguf file, a hub id or en-ja"):
        load(tmp_path / "text.txt")
    (tmp_path / "m.gguf").write_text("x")
    with pytest.raises(ValueError, match=r"m\.gguf"):
        load(tmp_path / "m.gguf")
    (folder / "model.safetensors").write_bytes(b"half")
    with pytest.raises(ValueError, match="tiny"):
        load(folder)
