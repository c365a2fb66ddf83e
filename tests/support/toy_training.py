"""Tiny training runs that take a fraction of a second: the task is to copy sentences of made-up words."""

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from clearhead.translation import (
    Config,
    Dataset,
    ModelConfig,
    TextConfig,
    TrainingCallbacks,
    TrainingConfig,
    Vocabulary,
    _evaluation,
    _trainer,
    train,
)
from clearhead.translation._decoding import Hypothesis
from clearhead.translation.data._batching import TokenIds, batch_indices, collate
from clearhead.translation.data._corpus import Pair
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
    """Return TINY with other training settings."""
    return replace(TINY, training=replace(TINY.training, **settings))


def sentences(count: int) -> list[str]:
    """Return `count` different sentences of three to six words."""
    rng, texts = random.Random(0), {}
    while len(texts) < count:
        texts[" ".join(rng.choices(WORDS, k=rng.randint(3, 6)))] = None
    return list(texts)


def copying(count: int = 50, valid: int = 7) -> Dataset:
    """Return a dataset of `count` sentences to copy, the same in each epoch, and `valid` other ones for validation."""
    vocabulary = Vocabulary.from_words(WORDS)
    texts = sentences(count + valid)
    pairs = [TokenIds(vocabulary.encode(text), vocabulary.encode(text)) for text in texts]
    references = tuple(Pair(text, text) for text in texts[:valid])
    return Dataset("copying", vocabulary, lambda epoch: pairs[valid:], tuple(pairs[:valid]), references, (), (), 17)


def written_columns(path: Path, count: int = 47) -> str:
    """Write a TSV file of sentences and their uppercase copies; return its path."""
    path.write_text("".join(f"{text}\t{text.upper()}\n" for text in sentences(count)))
    return str(path)


def weights(folder: Path) -> dict[str, dict]:
    """Return the tensors of a run's best weights and last checkpoint."""
    return {name: load_file(folder / f"{name}.safetensors") for name in ("best", "last")}


def assert_same(run, complete_run):
    """Check that two runs have bitwise equal weights, the same state and the same metrics."""
    for name, tensors in weights(run.folder).items():
        expected = weights(complete_run.folder)[name]
        assert tensors.keys() == expected.keys()
        different = [key for key in tensors if not torch.equal(tensors[key], expected[key])]
        assert not different, f"{name}: {different}"
    assert checkpoint_state(run) == checkpoint_state(complete_run)
    metrics, expected = (
        [(line["step"], line["epoch"], line["validation"]) for line in directory.metrics()]
        for directory in (run, complete_run)
    )
    assert metrics == expected


EPOCH_STEPS = len(batch_indices(copying().epoch(0), TINY.training.batch_tokens, (0, 0)))


def stop_run(run, step, monkeypatch, signal_number=signal.SIGINT):
    """Train until a signal arrives during a step; return the messages."""
    batches = []

    def collate_and_signal(pairs):
        batches.append(pairs)
        if len(batches) == step:
            signal.raise_signal(signal_number)
        return collate(pairs)

    messages = []
    with monkeypatch.context() as patch:
        patch.setattr(_trainer, "collate", collate_and_signal)
        with pytest.raises(KeyboardInterrupt):
            train(copying(), TINY, run, callbacks=TrainingCallbacks(on_message=messages.append))
    return messages


@contextmanager
def short_validation() -> Iterator[None]:
    """Validate without translations and statistics of heads, which write no files and take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_evaluation, "decode_all", lambda _, sources, beams: [Hypothesis((), True)] * len(sources))
        patch.setattr(_trainer.Trainer, "head_statistics", lambda self: {})
        yield


def checkpoint_state(run, name="last"):
    """Return the trainer state in a checkpoint."""
    return serialization.read(run.folder / f"{name}.safetensors", "clearhead.Checkpoint", 1, "cpu")[1]["progress"]
