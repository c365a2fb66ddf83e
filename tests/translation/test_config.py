"""Tests of configurations: reading, defaults, round trips and error messages."""

import re
from dataclasses import replace
from importlib import resources

import pytest

from clearhead.translation.config import Config, ModelConfig, TextConfig, TrainingConfig
from clearhead.translation.normalizer import Normalizer
from clearhead.translation.run_directory import RunDirectory

EVERYTHING = """
[model]
d_model = 30
heads = 3
encoder_layers = 2
decoder_layers = 5
feed_forward = 17
dropout = 0
positions = "rope"
[training]
steps = 7
batch_tokens = 101
learning_rate = 0.001
warmup = 3
weight_decay = 0.1
label_smoothing = 0.2
clip = 2.5
validate_every = 5
patience = 11
seed = 13
[text]
vocabulary = 211
max_tokens = 19
bleu = "char"
validation = 23
[text.source]
lowercase = true
[text.target]
join = true
plain = true
"""


def read(tmp_path, text: str) -> Config:
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    return Config.from_file(path)


def test_every_key_is_read(tmp_path):
    assert read(tmp_path, EVERYTHING) == Config(
        ModelConfig(30, 3, 2, 5, 17, 0, "rope"),
        TrainingConfig(7, 101, 0.001, 3, 0.1, 0.2, 2.5, 5, 11, 13),
        TextConfig(Normalizer(lowercase=True), Normalizer(remove_spaces=True, plain=True), 211, 19, "char", 23),
    )


def test_omitted_keys_keep_their_defaults(tmp_path):
    assert read(tmp_path, "") == Config()
    got = read(tmp_path, "[training]\nsteps = 7\n[text.target]\njoin = true")
    assert got.training == replace(TrainingConfig(), steps=7)
    assert got.text == replace(TextConfig(), target=Normalizer(remove_spaces=True))
    assert got.model == ModelConfig()


@pytest.mark.parametrize("text", ["", EVERYTHING], ids=["defaults", "everything"])
def test_to_dict_and_from_dict_round_trip(text, tmp_path):
    config = read(tmp_path, text)
    assert Config.from_dict(config.to_dict()) == config


def test_the_configuration_of_the_bundled_model_is_read():
    config, _ = RunDirectory(str(resources.files("clearhead.translation") / "en-ja")).read()
    assert config.text.target.remove_spaces
    assert Config.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle = 1", "modle is not a known key; expected any of model, text, training"),
        ("[modle]\nheads = 1", "modle is not a known key"),
        ("[model]\nhead = 3", "model.head is not a known key; expected any of d_model, decoder_layers, dropout"),
        ("[text.source]\nlower = true", "text.source.lower is not a known key; expected any of join, lowercase"),
        ("model = 3", "model is 3; expected a table"),
        ("[text]\nsource = true", "text.source is True; expected a table"),
        ("[model]\nheads = '3'", "model.heads is '3'; expected a whole number"),
        ("[model]\nheads = 3.0", "model.heads is 3.0; expected a whole number"),
        ("[model]\nheads = true", "model.heads is True; expected a whole number"),
        ("[model]\ndropout = true", "model.dropout is True; expected a number"),
        ("[model]\ndropout = '0.1'", "model.dropout is '0.1'; expected a number"),
        ("[text.source]\nlowercase = 1", "text.source.lowercase is 1; expected true or false"),
        ("[model]\npositions = 'alibi'", "model.positions is 'alibi'; expected 'rope' or 'sinusoidal'"),
        ("[text]\nbleu = ['13a']", "text.bleu is ['13a']; expected 'none', '13a', 'char' or 'ja-mecab'"),
        ("[model]\nheads = 0", "heads is 0; expected a whole number of at least 1"),
        ("[model]\nencoder_layers = -1", "encoder_layers is -1; expected a whole number of at least 1"),
        ("[training]\nwarmup = 0", "warmup is 0; expected a whole number of at least 1"),
        ("[training]\npatience = -1", "patience is -1; expected a whole number of at least 0"),
        ("[text]\nvalidation = 0", "validation is 0; expected a whole number of at least 1"),
        ("[model]\nheads = 3", "d_model is 128; expected a multiple of twice the 3 heads"),
        ("[model]\nd_model = 12", "d_model is 12; expected a multiple of twice the 4 heads"),
        ("[model]\ndropout = 1", "dropout is 1; expected a number in [0, 1)"),
        ("[model]\ndropout = nan", "dropout is nan; expected a number in [0, 1)"),
        ("[training]\nlabel_smoothing = -0.1", "label_smoothing is -0.1; expected a number in [0, 1)"),
        ("[training]\nlearning_rate = 0", "learning_rate is 0; expected a number above 0"),
        ("[training]\nlearning_rate = inf", "learning_rate is inf; expected a number above 0"),
        ("[training]\nclip = -1.0", "clip is -1.0; expected a number above 0"),
        ("[model\nheads = 3", "config.toml: Expected"),
        ("[model]\nheads = 3\nheads = 4", "config.toml: Cannot overwrite a value"),
    ],
)
def test_a_wrong_file_is_rejected_in_one_line(text, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        read(tmp_path, text)
    assert str(error.value).startswith(f"{tmp_path / 'config.toml'}: ")
    assert "\n" not in str(error.value)


def test_wrong_arguments_are_rejected():
    with pytest.raises(ValueError, match="d_model is 30; expected a multiple of twice the 4 heads"):
        Config(model=ModelConfig(d_model=30))
    with pytest.raises(TypeError, match="steps is 7.0; expected a whole number"):
        Config(training=TrainingConfig(steps=7.0))
    with pytest.raises(ValueError, match="training.step is not a known key"):
        Config.from_dict({"training": {"step": 7}})


def test_a_missing_or_binary_file_is_rejected(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.toml: there is no such file"):
        Config.from_file(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="binary.toml: 'utf-8' codec can't decode"):
        Config.from_file(tmp_path / "binary.toml")
