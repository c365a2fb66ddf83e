"""Sounds of recordings: reading files, resampling, and envelopes."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import wave
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.checks import check_float, check_int, check_path, describe
from clearhead._utils.tensor_checks import check_dense_tensor
from clearhead.recording.media import MAX_BINS, Frames, Sound, Timestamps
from clearhead.recording.recording import Tokens

MAX_SAMPLES = 2**26  # 23 minutes at 48 kHz
MAX_RATE = 2**20
EXPECTED = "expected the path of a WAV file, or its samples, an array [samples] or [channels, samples]"


def read_sound(path: str | os.PathLike[str]) -> tuple[Float[Tensor, " samples"], int]:
    """Return the samples of a sound file, the mean of its channels, and its samples per second.

    WAV files with integer samples are read by the standard library, all others by soundfile, if it is installed.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not such a file, is empty, or has more than 67 million samples.
    """
    check_path("audio", path)
    try:
        with wave.open(os.fspath(path), "rb") as file:
            rate, channels, width, count = (
                file.getframerate(),
                file.getnchannels(),
                file.getsampwidth(),
                file.getnframes(),
            )
            _check_size(path, count * channels)
            samples = _integers(file.readframes(count), width)
    except (wave.Error, EOFError) as error:
        return _read_other(path, error)
    if not channels or not len(samples) // channels or not 0 < rate <= MAX_RATE:
        raise ValueError(f"{path}: {len(samples)} samples of {channels} channels at {rate} Hz; expected a sound")
    whole = samples[: len(samples) // channels * channels]
    return torch.from_numpy(whole.reshape(-1, channels).mean(axis=1)), rate


def check_samples(audio: object, sampling_rate: object) -> tuple[Float[Tensor, " samples"], int]:
    """Return the samples of a sound, the mean of its channels, and its samples per second."""
    if isinstance(audio, str | os.PathLike):
        if sampling_rate is not None:
            raise ValueError(f"sampling_rate is {describe(sampling_rate)}, but audio is a file, which contains it")
        return read_sound(audio)
    try:
        samples = audio if isinstance(audio, Tensor) else torch.as_tensor(np.asarray(audio))
        check_dense_tensor("audio", samples, EXPECTED.removeprefix("expected "))
        samples = samples.detach().float().cpu()
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        raise TypeError(f"audio is {describe(audio)}; {EXPECTED}") from None
    if samples.ndim not in (1, 2) or not samples.numel():
        raise ValueError(f"audio has shape {list(samples.shape)}; {EXPECTED}")
    if sampling_rate is None:
        raise ValueError("sampling_rate is None; expected the samples per second of audio, such as 16000")
    rate = check_int("sampling_rate", sampling_rate, most=MAX_RATE)
    _check_size("audio", samples.numel())
    if not bool(samples.isfinite().all()):
        raise ValueError("audio contains values that are not finite; expected samples")
    return samples if samples.ndim == 1 else samples.mean(dim=0), rate


def resample(samples: Float[Tensor, " samples"], rate: int, new_rate: int) -> Float[Tensor, " new_samples"]:
    """Return a sound at another rate. Frequencies that the new rate cannot represent are removed."""
    count = max(1, round(len(samples) * new_rate / rate))
    if count == len(samples):
        return samples
    spectrum = torch.fft.rfft(samples)
    # irfft cuts frequencies above the new limit, or pads with zeros
    return torch.fft.irfft(spectrum[: count // 2 + 1], n=count) * (count / len(samples))


def sound_of(samples: Float[Tensor, " samples"], rate: int) -> Sound:
    """Return the envelope of a sound."""
    bins = min(MAX_BINS, len(samples))
    edges = torch.arange(bins + 1) * len(samples) // bins
    owner = torch.repeat_interleave(torch.arange(bins), edges.diff())
    low, high = (torch.zeros(bins).scatter_reduce(0, owner, samples, kind, include_self=False) for kind in _EXTREMES)
    envelope = torch.stack([low, high])
    peak = float(envelope.abs().max())
    return Sound((envelope / peak if peak else envelope).clamp(-1, 1), len(samples) / rate)


def frame_tokens(count: int, seconds: float, *, sound: int | None = None) -> Tokens:
    """Return the tokens of an audio encoder, named by the time at which each frame begins.

    Args:
        count: number of frames.
        seconds: duration of a frame.
        sound: index of the sound in the recording's `media` (default: the sound is not recorded).
    """
    seconds = check_float("seconds", seconds)
    frames = Frames(0, count, seconds, sound)
    digits = max(0, min(4, -math.floor(math.log10(seconds))))
    texts = tuple(f"{index * seconds:.{digits}f} s" for index in range(count))
    return Tokens(texts, (False,) * count, (None,) * count, (frames,))


def word_times(tokens: Tokens) -> list[tuple[str, float, float | None]]:
    """Return each word of a transcript, the time at which it begins, and the time at which the next one begins.

    The time after the last word is None. The list is empty if the tokens have no timestamps.
    """
    begun: dict[int, tuple[str, float]] = {}
    for stamps in (region for region in tokens.regions if isinstance(region, Timestamps)):
        for position, time in enumerate(stamps.seconds, start=stamps.start):
            word = tokens.words[position]
            if word is not None:
                text, begins = begun.get(word, ("", time))
                begun[word] = (text + tokens.texts[position], begins)
    times = [*(time for _, time in begun.values()), None]
    return [(text.strip(), time, after) for (text, time), after in zip(begun.values(), times[1:], strict=True)]


_EXTREMES = ("amin", "amax")


def _check_size(name: object, count: int) -> None:
    if count > MAX_SAMPLES:
        raise ValueError(f"{name}: {count:,} samples; expected at most {MAX_SAMPLES:,}")


def _integers(raw: bytes, width: int) -> Float[np.ndarray, " samples"]:
    """Return integer samples of 1 to 4 bytes as numbers from −1 to 1."""
    raw = raw[: len(raw) // width * width]
    if width == 1:  # the only unsigned width
        return (np.frombuffer(raw, np.uint8).astype(np.float32) - 128) / 128
    # samples become the upper bytes of 32-bit integers
    padded = np.zeros((len(raw) // width, 4), np.uint8)
    padded[:, 4 - width :] = np.frombuffer(raw, np.uint8).reshape(-1, width)
    return padded.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)


def _read_other(path: str | os.PathLike[str], error: Exception) -> tuple[Float[Tensor, " samples"], int]:
    if importlib.util.find_spec("soundfile") is None:
        raise ValueError(
            f"{path}: {error or 'incomplete'}; expected a WAV file with integer samples. Other formats need soundfile:"
            " pip install soundfile"
        ) from None
    soundfile: Any = importlib.import_module("soundfile")
    try:
        with soundfile.SoundFile(os.fspath(path)) as file:
            _check_size(path, file.frames * file.channels)
            samples, rate = file.read(dtype="float32", always_2d=True), file.samplerate
    except (soundfile.SoundFileError, RuntimeError) as reason:
        raise ValueError(f"{path}: {reason}; expected a sound file") from None
    if not len(samples):
        raise ValueError(f"{path}: no samples; expected a sound")
    return check_samples(samples.mean(axis=1), rate)
