"""Configuration of a run: model sizes, training settings and text processing, read from a TOML file."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from clearhead._utils.checks import check_choice, check_float, check_int, check_path, describe
from clearhead.translation.normalizer import Normalizer

PositionEncoding = Literal["rope", "sinusoidal"]
TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
BleuTokenizer = Literal["none", "13a", "char", "ja-mecab"]


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the Transformer."""

    d_model: int = 128
    heads: int = 4
    encoder_layers: int = 3
    decoder_layers: int = 3
    feed_forward: int = 512
    dropout: float = 0.1
    positions: PositionEncoding = "sinusoidal"


@dataclass(frozen=True)
class TrainingConfig:
    """Training settings. A step is one batch of about `batch_tokens` tokens, source and target together."""

    steps: int = 1500
    batch_tokens: int = 2048
    learning_rate: float = 2e-3
    warmup: int = 150  # steps of linear warmup; the rate then decays linearly until the last step
    weight_decay: float = 0.01
    label_smoothing: float = 0.1
    clip: float = 1.0  # maximal norm of the gradient
    validate_every: int = 150
    patience: int = 0  # stop after this many validations without a better BLEU; 0: never
    seed: int = 0


@dataclass(frozen=True)
class TextConfig:
    """Text processing: normalization, vocabulary, and scoring of translations."""

    source: Normalizer = field(default_factory=Normalizer)
    target: Normalizer = field(default_factory=Normalizer)
    vocabulary: int = 8000  # subwords of both languages together
    max_tokens: int = 128  # pairs with a longer source or target are left out
    bleu: BleuTokenizer = "13a"  # sacrebleu's tokenizer
    validation: int = 500  # pairs held out from the data if no validation set is passed


@dataclass(frozen=True)
class Config:
    """Configuration of a run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    text: TextConfig = field(default_factory=TextConfig)

    def __post_init__(self) -> None:
        model, training, text = self.model, self.training, self.text
        for item in fields(self):
            table, table_type = getattr(self, item.name), type(item.default_factory())  # pyright: ignore[reportCallIssue]
            if not isinstance(table, table_type):
                raise TypeError(f"{item.name} is {describe(table)}; expected a {table_type.__name__}")
        for title, table, names in (
            ("model", model, ("d_model", "heads", "encoder_layers", "decoder_layers", "feed_forward")),
            ("training", training, ("steps", "batch_tokens", "warmup", "validate_every")),
            ("text", text, ("vocabulary", "max_tokens", "validation")),
        ):
            for name in names:
                check_int(f"{title}.{name}", getattr(table, name))
        check_int("training.patience", training.patience, least=0)
        if model.d_model % (2 * model.heads):
            raise ValueError(f"model.d_model is {model.d_model}; expected a multiple of twice the {model.heads} heads")
        for name, share in (("model.dropout", model.dropout), ("training.label_smoothing", training.label_smoothing)):
            if not 0 <= check_float(name, share, "a number in [0, 1)") < 1:
                raise ValueError(f"{name} is {share}; expected a number in [0, 1)")
        if check_float("training.weight_decay", training.weight_decay, "a number of at least 0") < 0:
            raise ValueError(f"training.weight_decay is {training.weight_decay}; expected a number of at least 0")
        for name in ("learning_rate", "clip"):
            if check_float(f"training.{name}", getattr(training, name), "a number above 0") <= 0:
                raise ValueError(f"training.{name} is {getattr(training, name)}; expected a number above 0")

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Config:
        """Read a TOML file with the tables `model`, `training` and `text`. Omitted keys keep their defaults."""
        if not Path(check_path("path", path)).is_file():
            raise FileNotFoundError(f"{path}: there is no such file")
        try:
            return cls.from_dict(tomllib.loads(Path(path).read_text(encoding="utf-8")))
        except RecursionError:
            raise ValueError(f"{path}: nested too deeply; expected the tables model, training and text") from None
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def from_dict(cls, table: dict[str, Any]) -> Config:
        """Return the configuration in nested dictionaries. Raise ValueError for an unknown key or a wrong value."""
        if not isinstance(table, dict):
            raise TypeError(f"table is {describe(table)}; expected a dict of tables")
        return _from_table(cls, table, "")

    def to_dict(self) -> dict[str, Any]:
        """Return nested dictionaries that `from_dict` reads."""
        return _to_table(self)


def first_difference(config: Config, expected: Config) -> str | None:
    """Return the first setting that differs, such as "training.steps is 5; expected 4"; None if all are equal."""
    settings, expected_settings = (dict(_flat(each.to_dict())) for each in (config, expected))
    for key, value in settings.items():
        if value != expected_settings[key]:
            return f"{key} is {value!r}; expected {expected_settings[key]!r}"
    return None


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        yield from _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(f"{prefix}{name}", value)]


def _from_table(cls: Any, table: dict[str, Any], prefix: str) -> Any:
    """Return a dataclass with the values of a table. `prefix`, such as "text.", precedes the key in error messages."""
    known, hints = {_key(item): item.name for item in fields(cls)}, get_type_hints(cls)
    values = {}
    for name, value in table.items():
        if not isinstance(name, str):
            raise TypeError(f"{prefix}{describe(name)} is not a known key; expected any of {', '.join(sorted(known))}")
        key = f"{prefix}{name}"
        if name not in known:
            raise ValueError(f"{key} is not a known key; expected any of {', '.join(sorted(known))}")
        expected_type = hints[known[name]]
        if is_dataclass(expected_type):
            if not isinstance(value, dict):
                raise ValueError(f"{key} is {value!r}; expected a table")
            value = _from_table(expected_type, value, f"{key}.")
        elif get_args(expected_type):
            value = check_choice(key, value, get_args(expected_type))
        elif type(value) is not expected_type and not (expected_type is float and type(value) is int):
            raise ValueError(f"{key} is {value!r}; expected {TYPE_NAMES[expected_type]}")
        values[known[name]] = value
    return cls(**values)


def _to_table(config: Any) -> dict[str, Any]:
    values = {_key(item): getattr(config, item.name) for item in fields(config)}
    return {key: _to_table(value) if is_dataclass(value) else value for key, value in values.items()}


def _key(item: Field) -> str:
    """Return the key of a field in files: `key` in its metadata (default: its name)."""
    return item.metadata.get("key", item.name)
