"""Loading of models by name, folder, file or hub id, and recording of their attention.

Hub ids are read from the local Hugging Face cache. Only `download=True` uses the network.
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
from clearhead.watching.seen import Seen

RECORDING_SUFFIX = ".safetensors"  # distinguishes the path of a recording from the name of a model


def load(
    name: str | os.PathLike[str],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    download: bool = False,
) -> RecordableModel:
    """Load a model and its tokenizer.

    Args:
        name: `"en-ja"` (the bundled translator), the folder of a training run, a folder of Hugging Face files, a GGUF
            file, or a Hugging Face hub id.
        device: device of the parameters.
        dtype: dtype of the parameters (default: float32). Translators support float32 only.
        download: download the model from the hub if it is not in the local cache.

    Raises:
        FileNotFoundError: if a GGUF file is missing, or a folder has no `config.json`.
        ValueError: if no such model exists, its files are damaged, or clearhead cannot read its attention.
    """
    if str(name) in BUNDLED_MODELS or RunDirectory(Path(name)).is_run:
        if dtype not in (None, torch.float32):
            raise ValueError(f"dtype is {dtype}, but {name} is a translator; expected torch.float32")
        return Translator.load(name, device=device)
    from clearhead.huggingface.model import HuggingFaceModel  # requires transformers, an optional dependency

    return HuggingFaceModel.load(name, device=device, dtype=dtype, download=download)


def load_source(
    source: RecordableModel | Recording | Seen | str | os.PathLike[str],
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    download: bool = False,
) -> RecordableModel | Recording:
    """Load a model or a recording by name or path. Return a source that is already loaded unchanged.

    Args:
        source: a model, a recording, the result of `watch`, a name that `load` accepts, or the path of a recording
            (.safetensors).
        device: see `load`. Only for a name or path.
        dtype: see `load`. Only for the name of a model.
        download: see `load`. Only for the name of a model.
    """
    if not isinstance(source, str | os.PathLike):
        _refuse_load_options(source, device, dtype, download)
        if isinstance(source, Seen):
            return source.recording()
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
    """Run a model on a text and record its attention: queries, keys and log-sum-exp of every layer.

    Args:
        model: a model from `load`, a name that `load` accepts, or a transformers model (pass its `tokenizer` too).
        text: a string, or a list of words, which are joined by spaces. With a list, `Tokens.words` contains the index
            of each token's word.
        tokenizer: tokenizer of a transformers model.
        target: output of an encoder–decoder (default: its greedy output).
        values: record the values too, which are required for each key's contribution to the output. Also keeps queries
            and keys for short texts; by default the recording then contains the scores if they take less memory.
        device: see `load`. Only for the name of a model.
        dtype: see `load`. Only for the name of a model.
        download: see `load`. Only for the name of a model.
    """
    if isinstance(model, str | os.PathLike):
        model = load(model, device=device or "cpu", dtype=dtype, download=download)
    else:
        _refuse_load_options(model, device, dtype, download)
    return _with_tokenizer(model, tokenizer).record(text, target=target, values=values)


def record_repeated(
    model: RecordableModel | nn.Module, length: int = 64, *, tokenizer: Any = None, seed: int = 0
) -> Recording:
    """Record a random sequence of tokens, repeated once, which reveals induction and duplicate-token heads.

    The tokenizer's special tokens surround the sequence, as in an ordinary text.

    Args:
        model: a Hugging Face model from `load`, or a transformers model (pass its `tokenizer` too).
        length: number of tokens of the sequence, all different.
        tokenizer: tokenizer of a transformers model.
        seed: seed of the random sequence.
    """
    loaded = _with_tokenizer(model, tokenizer)
    if not isinstance(loaded, RecordsRepeatedTokens):
        raise TypeError(f"model is {loaded.name}, which does not support random tokens; expected a language model")
    return loaded.record_repeated(length, seed=seed)


def _refuse_load_options(
    source: object, device: torch.device | str | None, dtype: torch.dtype | None, download: bool
) -> None:
    options = {"device": device, "dtype": dtype, "download": download or None}
    for option, value in options.items():
        if value is not None:
            raise ValueError(
                f"{option} is {value}, but {type(source).__name__} is already loaded; expected {option} only with"
                " the name of a model"
            )


def _with_tokenizer(model: RecordableModel | nn.Module, tokenizer: Any) -> RecordableModel:
    if isinstance(model, nn.Module):
        from clearhead.huggingface.model import HuggingFaceModel

        return HuggingFaceModel.from_module(model, tokenizer)
    if not callable(getattr(model, "record", None)):
        raise TypeError(f"model is {model!r}; expected a model from load(), or a transformers model with its tokenizer")
    return model
