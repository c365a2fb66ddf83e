"""Loading of models by name, folder, file or hub id, recording of their attention, and the roles of their heads.

Hub ids are read from the local Hugging Face cache. Only `download=True` uses the network.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from clearhead._utils.checks import check_bool, check_path, describe
from clearhead._utils.progress import StageProgress, check_progress
from clearhead._utils.tensor_checks import check_float_dtype
from clearhead.analysis.conllu import Sentence
from clearhead.analysis.corpus import corpus_roles
from clearhead.analysis.resumable import ProgressCallback
from clearhead.analysis.roles import Roles
from clearhead.distributed.process_group import ProcessGroup
from clearhead.recording.example_texts import EXAMPLE_PASSAGES
from clearhead.recording.protocol import RecordableModel, RecordsRepeatedTokens, RecordsTokenIds
from clearhead.recording.recording import Recording
from clearhead.translation.run_directory import RunDirectory
from clearhead.translation.translator import BUNDLED_MODELS, Translator
from clearhead.watching.seen import Seen

if TYPE_CHECKING:
    from clearhead.huggingface.effects import LossWithoutHeads

RECORDING_SUFFIX = ".safetensors"  # distinguishes the path of a recording from the name of a model


def load(
    name: str | os.PathLike[str],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    download: bool = False,
    head: bool | None = False,
    progress: StageProgress | None = None,
) -> RecordableModel:
    """Load a model and its tokenizer.

    Args:
        name: `"en-ja"` (the bundled translator), the folder of a training run, a folder of Hugging Face files, a GGUF
            file, or a Hugging Face hub id.
        device: device of the parameters.
        dtype: dtype of the parameters (default: float32). Translators support float32 only.
        download: download the model from the hub if it is not in the local cache.
        head: load the language-model head of a Hugging Face model too, so that `load(name, head=True).model` returns
            logits and, with labels, a loss. None: load it if the files contain one, as `record` and `view` do. The
            attention is the same with and without it; with it, recordings have the most probable next tokens.
        progress: called with the name of a stage, the steps done and their total, 0 if it is unknown (default: the
            progress bars of transformers, if stderr is a terminal).

    Raises:
        FileNotFoundError: if a GGUF file is missing, or a folder has no `config.json`.
        ValueError: if no such model exists, its files are damaged, clearhead cannot read its attention, or `head` is
            True and it has no language-model head.
    """
    check_path("name", name)
    check_float_dtype("dtype", dtype)
    check_bool("download", download)
    if head is not None:
        check_bool("head", head)
    check_progress(progress)
    if str(name) in BUNDLED_MODELS or RunDirectory(Path(name)).is_run:
        if dtype not in (None, torch.float32):
            raise ValueError(f"dtype is {dtype}, but {name} is a translator; expected torch.float32")
        if head:
            raise ValueError(f"{name} is a translator; expected a Hugging Face model for head=True (--effects)")
        return Translator.load(name, device=device)
    if progress is not None:
        progress("importing transformers", 0, 0)
    from clearhead.huggingface.model import HuggingFaceModel  # requires transformers, an optional dependency

    return HuggingFaceModel.load(name, device=device, dtype=dtype, download=download, head=head, progress=progress)


def load_source(
    source: RecordableModel | Recording | Seen | str | os.PathLike[str],
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    download: bool = False,
    head: bool | None = False,
    progress: StageProgress | None = None,
) -> RecordableModel | Recording:
    """Load a model or a recording by name or path. Return a source that is already loaded unchanged.

    Args:
        source: a model, a recording, the result of `watch`, a name that `load` accepts, or the path of a recording
            (.safetensors).
        device: see `load`. Only for a name or path.
        dtype: see `load`. Only for the name of a model.
        download: see `load`. Only for the name of a model.
        head: see `load`. A model that is already loaded is returned with or without its head.
        progress: see `load`.
    """
    if not isinstance(source, str | os.PathLike):
        _refuse_load_options(source, device, dtype, download)
        if isinstance(source, Seen):
            return source.recording()
        return source if isinstance(source, Recording) else _with_tokenizer(source, None)
    if not str(source).endswith(RECORDING_SUFFIX):
        return load(source, device=device or "cpu", dtype=dtype, download=download, head=head, progress=progress)
    if dtype is not None or download:
        raise ValueError(f"dtype is {dtype} and download is {download}, but {source} is a recording; expected a model")
    return Recording.load(source, device=device or "cpu")


def record(
    model: RecordableModel | str | os.PathLike[str] | nn.Module,
    text: str | Sequence[str] | None = None,
    *,
    input_ids: object = None,
    tokenizer: Any = None,
    target: str | None = None,
    decoder_input_ids: object = None,
    image: object = None,
    pixel_values: object = None,
    audio: object = None,
    sampling_rate: int | None = None,
    processor: Any = None,
    values: bool = False,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    download: bool = False,
) -> Recording:
    """Run a model on a text, token ids, a picture or a sound, and record its attention.

    Queries, keys and log-sum-exp of every layer are recorded. With a picture or a sound, `Tokens.regions` are
    the tokens that are patches or frames, and `Recording.media` contains the picture or the envelope of the sound.

    Args:
        model: a model from `load`, a name that `load` accepts, or a transformers model (pass its `tokenizer` too).
        text: a string, or a list of words, which are joined by spaces. With a list, `Tokens.words` contains the index
            of each token's word.
        input_ids: token ids of one sequence instead of a text: a list or an integer tensor, [tokens] or [1, tokens].
            A transformers model then requires no tokenizer; without one, tokens are shown as their ids.
        tokenizer: tokenizer of a transformers model.
        target: output of an encoder–decoder (default: its greedy output).
        decoder_input_ids: token ids of the decoder's input instead of `target`, with its start token. Only with
            `input_ids` or `audio`.
        image: a picture for a vision transformer, or with `text` for a model that reads both: the path of a PNG or JPEG
            file, a PIL image, an array of uint8 [height, width, 3], or a list of these. Requires `processor`.
        pixel_values: input of the vision tower instead of `image`, [channels, height, width] or with a first axis of
            pictures; or the dict that the processor returned. Without a processor, the recorded picture has its
            smallest value in black and its largest in white.
        audio: a sound for a speech model such as Whisper: the path of a WAV file, or its samples.
        sampling_rate: samples per second, if `audio` is not a file. The sound is resampled for the model.
        processor: processor of the model: an image processor, a feature extractor, or one that contains a tokenizer
            too. Models that are given by name have theirs. Whisper needs none.
        values: record the values too, which are required for each key's contribution to the output. Also keeps queries
            and keys for short texts; by default the recording then contains the scores if they take less memory.
        device: see `load`. Only for the name of a model.
        dtype: see `load`. Only for the name of a model.
        download: see `load`. Only for the name of a model.
    """
    check_bool("values", values)
    if processor is not None or any(given is not None for given in (image, pixel_values, audio, sampling_rate)):
        from clearhead.huggingface.media import MediaRequest

        request = MediaRequest(
            text, input_ids, image, pixel_values, audio, sampling_rate, target, decoder_input_ids, processor
        )
        if not isinstance(model, str | os.PathLike):
            _refuse_load_options(model, device, dtype, download)
        return request.record(model, tokenizer, values=values, device=device, dtype=dtype, download=download)
    if (text is None) == (input_ids is None):
        if text is not None:
            raise ValueError("text and input_ids are both given; expected one of them")
        raise ValueError("text, input_ids, image, pixel_values and audio are None; expected one of them")
    if decoder_input_ids is not None and input_ids is None:
        raise ValueError("decoder_input_ids is given without input_ids; expected target with a text")
    if isinstance(model, str | os.PathLike):
        model = load(model, device=device or "cpu", dtype=dtype, download=download, head=None)
    else:
        _refuse_load_options(model, device, dtype, download)
    if text is not None:
        return _with_tokenizer(model, tokenizer).record(text, target=target, values=values)
    loaded = _with_tokenizer(model, tokenizer, required=False)
    if not isinstance(loaded, RecordsTokenIds):
        raise TypeError(f"model is {loaded.name}, which does not support input_ids; expected a Hugging Face model")
    return loaded.record_ids(input_ids, decoder_input_ids=decoder_input_ids, target=target, values=values)


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


def head_roles(
    model: RecordableModel | Recording | Seen | str | os.PathLike[str] | nn.Module,
    tokenizer: Any = None,
    *,
    texts: str | Sequence[str] | None = None,
    sentences: Sequence[Sentence] = (),
    layers: Collection[int] | None = None,
    effects: bool = False,
    process_group: ProcessGroup | None = None,
    results_folder: Path | None = None,
    progress: ProgressCallback | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    download: bool = False,
) -> Roles:
    """Run a model on texts and on repeated random tokens, and return the role of each head, as `clearhead roles` does.

    `clearhead.analysis.head_roles` does the same for recordings, without running a model.

    Args:
        model: a model from `load`, a name that `load` accepts, a transformers model (pass its `tokenizer` too), or a
            recording or the result of `watch`, whose text is then used.
        tokenizer: tokenizer of a transformers model. Other models have their own.
        texts: a text or a list of texts (default: two passages of English prose).
        sentences: sentences with dependency trees from `clearhead.analysis.read_conllu`, for syntactic relations.
        layers: return only the heads of these layers (default: all layers).
        effects: also measure the increase of the loss without each head that has a label, one at a time. Requires a
            causal or masked language model with its head. Shows progress bars if stderr is a terminal.
        process_group: processes that share the texts and the heads (default: only this process).
        results_folder: folder for the result of each text, as in `clearhead.analysis.run_jobs`.
        progress: called with the number of texts or sentences done and their total.
        device: see `load`. Only for the name of a model.
        dtype: see `load`. Only for the name of a model.
        download: see `load`. Only for the name of a model.
    """
    check_bool("effects", effects)
    if not isinstance(sentences, Sequence) or not all(isinstance(sentence, Sentence) for sentence in sentences):
        raise TypeError(f"sentences is {describe(sentences)}; expected a list of Sentence, from read_conllu")
    if layers is not None and (not isinstance(layers, Sequence | Set) or isinstance(layers, str | bytes)):
        raise TypeError(f"layers is {describe(layers)}; expected a list, set or range of layers")
    if isinstance(model, nn.Module):
        _refuse_load_options(model, device, dtype, download)
        source = _with_tokenizer(model, tokenizer)
    else:
        _refuse_tokenizer(tokenizer)
        source = load_source(model, device=device, dtype=dtype, download=download, head=effects)
    given = _checked_texts(texts, source)
    group = process_group or ProcessGroup()
    measure = _loss_without_heads(source, given) if effects else None
    roles = corpus_roles(
        source,
        given,
        sentences=sentences,
        process_group=group,
        results_folder=results_folder,
        progress=progress,
    )
    if layers is not None:
        roles = roles.part(lambda address: address[1] in layers)
    if measure is None:
        return roles
    share = roles.labeled[group.rank :: group.world_size]
    changes = measure.changes(share, progress=group.is_main and sys.stderr.isatty())
    gathered = {head: change for each in group.all_gather(changes) for head, change in each.items()}
    return replace(roles, loss=measure.whole(), effects={head: gathered[head] for head in roles.labeled})


def _checked_texts(texts: str | Sequence[str] | None, source: RecordableModel | Recording) -> list[str]:
    if isinstance(source, Recording):
        if texts:
            raise ValueError(f"texts is given, but {source.model} is a recording; expected a model")
        return []
    given = list(EXAMPLE_PASSAGES) if texts is None else [texts] if isinstance(texts, str) else texts
    if not isinstance(given, Sequence) or not given or not all(isinstance(text, str) for text in given):
        raise TypeError(f"texts is {describe(texts)}; expected a string or a list of strings")
    return list(given)


def _loss_without_heads(source: RecordableModel | Recording, texts: list[str]) -> LossWithoutHeads:
    if isinstance(source, Recording):
        raise ValueError(f"{source.model} is a recording; expected a model to run for effects=True (--effects)")
    from clearhead.huggingface.effects import LossWithoutHeads
    from clearhead.huggingface.model import HuggingFaceModel

    if not isinstance(source, HuggingFaceModel):
        raise ValueError(f"model is a {type(source).__name__}; expected a Hugging Face model for effects=True")
    return LossWithoutHeads.of(source, texts)


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


def _refuse_tokenizer(tokenizer: object) -> None:
    if tokenizer is not None:
        raise TypeError(
            f"tokenizer is {describe(tokenizer)}, but the model has its own; expected None. A text for head_roles is"
            " passed as texts="
        )


def _with_tokenizer(model: RecordableModel | nn.Module, tokenizer: Any, *, required: bool = True) -> RecordableModel:
    if isinstance(model, nn.Module):
        if tokenizer is None and required:
            raise ValueError("tokenizer is None; expected the tokenizer of the transformers model")
        from clearhead.huggingface.model import HuggingFaceModel

        return HuggingFaceModel.from_module(model, tokenizer)
    _refuse_tokenizer(tokenizer)
    if not callable(getattr(model, "record", None)):
        raise TypeError(f"model is {model!r}; expected a model from load(), or a transformers model with its tokenizer")
    return model
