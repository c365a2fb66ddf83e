"""Models by name, folder, file or hub id: `load` one, or `record` one on a text.

Nothing is fetched from the network unless `download=True`: a hub id is read from the local Hugging Face cache.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clearhead.recording.protocol import RecordableModel, RecordsRepeatedTokens
from clearhead.recording.recording import Recording
from clearhead.translation.run_directory import RunDirectory
from clearhead.translation.translator import BUNDLED_MODELS, Translator

RECORDING_SUFFIX = ".safetensors"  # by which the path of a recording is told from the name of a model


def load(
    name: str | os.PathLike[str],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    download: bool = False,
) -> RecordableModel:
    """Load a model by its name, its folder of Hugging Face files or of a training run, its GGUF file, or its hub id.

    Args:
        name: "en-ja" is the bundled translator.
        dtype: dtype of the parameters (default: float32, which is the only one for translators).
        download: fetch the model from the hub if it is not in the local cache.
    """
    if str(name) in BUNDLED_MODELS or RunDirectory(Path(name)).is_run:
        if dtype not in (None, torch.float32):
            raise ValueError(f"dtype is {dtype}, but {name} is a model of our own; expected torch.float32")
        return Translator.load(name, device=device)
    from clearhead.huggingface.model import HuggingFaceModel  # needs transformers, which is an extra

    return HuggingFaceModel.load(name, device=device, dtype=dtype, download=download)


def load_source(
    source: RecordableModel | Recording | str | os.PathLike[str],
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    download: bool = False,
) -> RecordableModel | Recording:
    """Return a model or a recording: load it from its name or path, or return it as it is if it is loaded.

    Args:
        source: a model or a recording, or what `load` takes, or the path of a recording (.safetensors).
        device, dtype, download: as `load` takes them. They are refused with a source that is loaded already.
    """
    if not isinstance(source, str | os.PathLike):
        _refuse_load_options(source, device, dtype, download)
        return source if isinstance(source, Recording) else _with_tokenizer(source, None)
    if not str(source).endswith(RECORDING_SUFFIX):
        return load(source, device=device or "cpu", dtype=dtype, download=download)
    if dtype is not None or download:
        raise ValueError(f"dtype is {dtype} and download is {download}, but {source} is a recording; expected a model")
    return Recording.load(source, device=device or "cpu")


def record(
    model: RecordableModel | str | os.PathLike[str] | nn.Module,
    text: str | Sequence[str],
    *,
    tokenizer: Any = None,
    target: str | None = None,
    values: bool = False,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    download: bool = False,
) -> Recording:
    """Run a model on a text and keep its attention: (query, key, log-sum-exp) of every layer.

    Args:
        model: what `load` returns or takes, or a transformers model, with its `tokenizer`.
        text: a string, or its words, which are then joined by spaces and numbered.
        target: text that an encoder–decoder writes (default: what it writes greedily).
        values: keep the values too, for each key's contribution to the output, and queries and keys in any case:
            of short texts a recording otherwise holds the scores, where they are fewer numbers.
        device, dtype, download: as `load` takes them, for a model by name.
    """
    if isinstance(model, str | os.PathLike):
        model = load(model, device=device or "cpu", dtype=dtype, download=download)
    else:
        _refuse_load_options(model, device, dtype, download)
    return _with_tokenizer(model, tokenizer).record(text, target=target, values=values)


def record_repeated(
    model: RecordableModel | nn.Module, length: int = 64, *, tokenizer: Any = None, seed: int = 0
) -> Recording:
    """Record random tokens, twice in a row, which show induction heads and duplicate-token heads.

    The tokens that the tokenizer adds before and after a text are there too.

    Args:
        model: a Hugging Face model from `load`, or a transformers model with its `tokenizer`.
        length: the number of different tokens.
    """
    loaded = _with_tokenizer(model, tokenizer)
    if not isinstance(loaded, RecordsRepeatedTokens):
        raise TypeError(f"model is {loaded.name}, which does not read random tokens; expected a language model")
    return loaded.record_repeated(length, seed=seed)


def _refuse_load_options(
    source: object, device: torch.device | str | None, dtype: torch.dtype | None, download: bool
) -> None:
    options = {"device": device, "dtype": dtype, "download": download or None}
    for option, value in options.items():
        if value is not None:
            raise ValueError(
                f"{option} is {value}, but {type(source).__name__} is loaded already; expected {option} with the name"
                " of a model"
            )


def _with_tokenizer(model: RecordableModel | nn.Module, tokenizer: Any) -> RecordableModel:
    if isinstance(model, nn.Module):
        from clearhead.huggingface.model import HuggingFaceModel

        return HuggingFaceModel.from_module(model, tokenizer)
    if not callable(getattr(model, "record", None)):
        raise TypeError(f"model is {model!r}; expected a model from load(), or a transformers model with its tokenizer")
    return model
