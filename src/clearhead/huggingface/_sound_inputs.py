"""Inputs of a transformers model that reads sound, such as Whisper, with timestamps of the transcript."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import WhisperFeatureExtractor

from clearhead._utils.checks import describe
from clearhead.huggingface._model_inputs import MAX_NEW_TOKENS, checked_ids
from clearhead.huggingface._picture_inputs import takes
from clearhead.huggingface.modules import hooked
from clearhead.recording.decoding import decoded
from clearhead.recording.media import Sound, Timestamps
from clearhead.recording.recording import Tokens
from clearhead.recording.sounds import check_samples, resample, sound_of

WHISPER_RATE, WHISPER_HOP = 16_000, 160  # samples per second, samples per column of the spectrogram


@dataclass(frozen=True, eq=False)
class SoundInputs:
    """Arguments of a model that reads sound.

    Attributes:
        arguments: arguments of the model's forward, on the device of the model.
        sound: the sound.
        seconds: duration of what the encoder reads, with padding.
        written: tokens of the decoder, with timestamps if the model gives them; None without a decoder.
        output: transcript; None without a decoder or a tokenizer.
    """

    arguments: dict[str, Tensor]
    sound: Sound
    seconds: float
    written: Tokens | None
    output: str | None = None


def prepare_sound(
    owner: Any,
    audio: object,
    sampling_rate: object = None,
    *,
    processor: Any = None,
    target: str | None = None,
    decoder_input_ids: object = None,
) -> SoundInputs:
    """Return the arguments of a model for a sound, and the tokens that its decoder writes.

    Args:
        owner: `HuggingFaceModel`; its tokenizer may be None.
        audio: path of a sound file, or its samples.
        sampling_rate: samples per second, if `audio` is not a file.
        processor: processor or feature extractor of the model (default for Whisper: one of its usual settings).
        target: transcript (default: the greedy output).
        decoder_input_ids: token ids of the decoder instead of `target`.
    """
    model = owner.model
    name = next((name for name in ("input_features", "input_values") if takes(model, name)), None)
    if name is None:
        raise ValueError(f"audio is given, but {owner.name} does not read sound; expected a speech model")
    samples, rate = check_samples(audio, sampling_rate)
    extractor = _extractor(owner, processor)
    new_rate = int(extractor.sampling_rate)
    seconds, longest = len(samples) / rate, getattr(extractor, "chunk_length", None)
    if longest is not None and seconds > longest:
        raise ValueError(
            f"audio lasts {seconds:.1f} s at a sampling_rate of {rate}; expected at most {longest} s,"
            f" which {owner.name} reads at once"
        )
    features = extractor(
        resample(samples, rate, new_rate).numpy(),
        sampling_rate=new_rate,
        return_tensors="pt",
        return_attention_mask=True,
    )
    values = features[name].to(model.device, next(model.parameters()).dtype)
    arguments = {name: values}
    if takes(model, "attention_mask") and "attention_mask" in features:
        arguments["attention_mask"] = features["attention_mask"].to(model.device)
    hop = getattr(extractor, "hop_length", 1) if name == "input_features" else 1
    tokenizer = getattr(processor, "tokenizer", None) or owner.tokenizer
    written, output = None, None
    if takes(model, "decoder_input_ids"):
        ids, times = _decoder_ids(owner, arguments, tokenizer, target, decoder_input_ids)
        arguments["decoder_input_ids"] = ids.to(model.device)
        written = _written(tokenizer, ids[0].cpu(), times)
        output = None if tokenizer is None else tokenizer.decode(ids[0].tolist(), skip_special_tokens=True)
    elif target is not None or decoder_input_ids is not None:
        raise ValueError(f"target or decoder_input_ids is given, but {owner.name} has no decoder; omit it")
    return SoundInputs(arguments, sound_of(samples, rate), values.shape[-1] * hop / new_rate, written, output)


def _extractor(owner: Any, processor: Any) -> Any:
    if processor is not None:
        extractor = getattr(processor, "feature_extractor", processor)
        if not callable(extractor) or not hasattr(extractor, "sampling_rate"):
            raise TypeError(f"processor is {describe(processor)}; expected the processor of a speech model")
        return extractor
    config = owner.model.config
    if config.model_type != "whisper":
        raise ValueError(f"processor is None; expected the processor of {owner.name} with audio=")
    seconds = 2 * config.max_source_positions * WHISPER_HOP // WHISPER_RATE  # the encoder halves the frames
    return WhisperFeatureExtractor(feature_size=config.num_mel_bins, chunk_length=seconds)


@torch.no_grad()
def _decoder_ids(
    owner: Any, arguments: dict[str, Tensor], tokenizer: Any, target: str | None, given: object
) -> tuple[Int[Tensor, "1 tokens"], list[float] | None]:
    """Return the decoder's input, and the time of each token if the model gives it."""
    model = owner.model
    if given is not None:
        if target is not None:
            raise ValueError("target and decoder_input_ids are both given; expected one of them")
        return checked_ids(owner, "decoder_input_ids", given)[None], None
    if target is not None:
        if tokenizer is None:
            raise ValueError("target is given, but processor and tokenizer are None; pass decoder_input_ids instead")
        if not isinstance(target, str):
            raise TypeError(f"target is {describe(target)}; expected a string")
        ids = torch.tensor([tokenizer(target)["input_ids"]])
        start = torch.full_like(ids[:, :1], model.config.decoder_start_token_id)
        begins = ids.shape[1] > 0 and int(ids[0, 0]) == int(start)
        return (ids if begins else torch.cat([start, ids], dim=1))[:, :-1], None
    if not hasattr(model, "generate"):
        raise ValueError(f"{type(model).__name__} has no generate(); pass target or decoder_input_ids")
    options: dict[str, Any] = {"do_sample": False, "num_beams": 1}
    longest = getattr(model.config, "max_target_positions", None)
    options["max_new_tokens"] = min(MAX_NEW_TOKENS, longest - 8) if isinstance(longest, int) else MAX_NEW_TOKENS
    has_times = bool(getattr(model.generation_config, "alignment_heads", None))
    options |= {"return_token_timestamps": True} if has_times else {}
    # generate() would leave the model on eager attention
    with hooked(model, {}), _first_decoder_call(model) as prompts, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # transformers passes a tensor to numpy
        result = model.generate(**arguments, **options)
    sequence = (result["sequences"] if has_times else result)[0].tolist()
    times = result["token_timestamps"][0].tolist() if has_times else None
    prompt = prompts[0] if prompts else [model.config.decoder_start_token_id]
    ends = {model.generation_config.eos_token_id, model.generation_config.pad_token_id}
    while len(sequence) > 1 and sequence[-1] in ends:
        sequence.pop()
    if sequence[: len(prompt)] != prompt:  # Whisper returns new tokens only
        sequence, times = prompt + sequence, times and [0.0] * len(prompt) + times
    return torch.tensor([sequence]), times and times[: len(sequence)]


@contextmanager
def _first_decoder_call(model: Any) -> Iterator[list[list[int]]]:
    """Yield a list to which the decoder's first call adds its token ids: the start token, language and task."""
    prompts: list[list[int]] = []

    def keep(_: object, args: tuple, options: dict[str, Any]) -> None:
        ids = options.get("input_ids", args[0] if args else None)
        if not prompts and isinstance(ids, Tensor):
            prompts.append(ids[0].tolist())

    handle = model.get_decoder().register_forward_pre_hook(keep, with_kwargs=True)
    try:
        yield prompts
    finally:
        handle.remove()


def _written(tokenizer: Any, ids: Int[Tensor, " tokens"], times: list[float] | None) -> Tokens:
    tokens = decoded(tokenizer, ids.tolist())
    words = tokens.words if tokenizer is None else _words(tokens)
    # a float32 in float64 would show digits that the time does not have
    regions = () if times is None else (Timestamps(0, tuple(max(0.0, round(time, 3)) for time in times), 0),)
    return Tokens(tokens.texts, tokens.special, words, regions)


def _words(tokens: Tokens) -> tuple[int | None, ...]:
    """Return the index of each token's word. A word begins with a space, or after a special token."""
    words: list[int | None] = []
    count, is_open = 0, False
    for text, special in zip(tokens.texts, tokens.special, strict=True):
        if not special and (not is_open or text[:1].isspace()):
            count += 1
        is_open = not special
        words.append(None if special else count - 1)
    return tuple(words)
