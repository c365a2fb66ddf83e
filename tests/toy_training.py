"""Runs so small that they take a fraction of a second: sentences of a few made-up words, to be copied."""

import random
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from clearhead.translation.config import Config, ModelConfig, TextConfig, TrainingConfig
from clearhead.translation.data._batching import Ids
from clearhead.translation.data._corpus import Pair
from clearhead.translation.data.dataset import Data
from clearhead.translation.tokenizer import Vocabulary
from clearhead.weights import serialization

WORDS = ("ka", "ki", "ku", "ke", "ko", "sa", "su", "se", "so", "ta", "te")
TINY = Config(
    ModelConfig(d_model=16, heads=2, encoder_layers=1, decoder_layers=1, feed_forward=32, dropout=0.1),
    TrainingConfig(steps=12, batch_tokens=128, learning_rate=0.01, warmup=3, validate_every=4),
    TextConfig(bleu="none", vocabulary=60, validation=7),
)
TOML = """
[model]
d_model = 16
heads = 2
encoder_layers = 1
decoder_layers = 1
feed_forward = 32

[training]
steps = 12
batch_tokens = 128
learning_rate = 0.01
warmup = 3
validate_every = 4

[text]
bleu = "none"
vocabulary = 60
validation = 7
"""


def changed(**settings: object) -> Config:
    """TINY with other settings of its training."""
    return replace(TINY, training=replace(TINY.training, **settings))


def sentences(count: int) -> list[str]:
    """Different ones, of three to six words."""
    drawn, found = random.Random(0), {}
    while len(found) < count:
        found[" ".join(drawn.choices(WORDS, k=drawn.randint(3, 6)))] = None
    return list(found)


def copying(count: int = 50, valid: int = 7) -> Data:
    """So many sentences to learn to copy, the same in each epoch, and others to validate with."""
    vocabulary = Vocabulary.of_words(WORDS)
    texts = sentences(count + valid)
    pairs = [Ids(vocabulary.encode(text), vocabulary.encode(text)) for text in texts]
    references = tuple(Pair(text, text) for text in texts[:valid])
    return Data("copying", vocabulary, lambda number: pairs[valid:], tuple(pairs[:valid]), references, (), (), 17)


def written_columns(path: Path, count: int = 47) -> str:
    """A TSV file of sentences and their copies in capitals."""
    path.write_text("".join(f"{text}\t{text.upper()}\n" for text in sentences(count)))
    return str(path)


def weights(folder: Path) -> dict[str, dict]:
    """The tensors of a run's best and last weights, the optimizer's among the latter."""
    return {name: load_file(folder / f"{name}.safetensors") for name in ("best", "last")}


def assert_same(run, whole):
    """Both have the same weights bit for bit, stand at the same step, and measured the same, each step once."""
    for name, own in weights(run.folder).items():
        expected = weights(whole.folder)[name]
        assert own.keys() == expected.keys()
        different = [key for key in own if not torch.equal(own[key], expected[key])]
        assert not different, f"{name}: {different}"
    assert progress_of(run) == progress_of(whole)
    measured, expected = (
        [(line["step"], line["epoch"], line["validation"]) for line in own.metrics()] for own in (run, whole)
    )
    assert measured == expected


def progress_of(run, name="last"):
    return serialization.read(run.folder / f"{name}.safetensors", "clearhead.Checkpoint", 1, "cpu")[1]["progress"]
