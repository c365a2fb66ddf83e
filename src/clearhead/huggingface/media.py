"""Recordings of transformers models on pictures and sounds."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from clearhead._utils.checks import describe
from clearhead._utils.evaluating import evaluating
from clearhead._utils.text import one_line
from clearhead.huggingface._media_axes import is_vision, text_axes, vision_axes
from clearhead.huggingface._media_loading import load_with_processor
from clearhead.huggingface._picture_inputs import PictureInputs, is_pair, prepare_pictures, takes
from clearhead.huggingface._sound_inputs import SoundInputs, prepare_sound
from clearhead.huggingface.model import HuggingFaceModel
from clearhead.recording.media import Media
from clearhead.recording.recording import Recording, Stack, Tokens
from clearhead.recording.sounds import frame_tokens
from clearhead.watching.seen import Seen, Watched
from clearhead.watching.watcher import watch
from clearhead.weights.matrix import AttentionWeights

Axes = tuple[Tokens, Tokens]


@dataclass(frozen=True, eq=False)
class MediaRequest:
    """Arguments of `clearhead.record` for a model that reads pictures or sounds."""

    text: str | Sequence[str] | None = None
    input_ids: object = None
    image: object = None
    pixel_values: object = None
    audio: object = None
    sampling_rate: object = None
    target: str | None = None
    decoder_input_ids: object = None
    processor: Any = None

    def __post_init__(self) -> None:
        kinds = [name for name in ("image", "pixel_values", "audio") if getattr(self, name) is not None]
        if len(kinds) > 1:
            raise ValueError(f"{kinds[0]} and {kinds[1]} are both given; expected one of them")
        if self.text is not None and self.input_ids is not None:
            raise ValueError("text and input_ids are both given; expected one of them")
        if self.text is not None and not isinstance(self.text, str):
            raise TypeError(f"text is {describe(self.text)}; expected a string")
        if self.audio is None:
            for name in ("sampling_rate", "target", "decoder_input_ids"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is given without audio; omit it")
        else:
            for name in ("text", "input_ids"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is given with audio; expected target, the transcript")

    def record(
        self,
        model: object,
        tokenizer: Any = None,
        *,
        values: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        download: bool = False,
    ) -> Recording:
        """Run a model, and return its attention. Loads a model that is given by name."""
        processor, text = self.processor, self.text
        assert text is None or isinstance(text, str)
        if isinstance(model, str | os.PathLike):
            options = {"device": device or "cpu", "dtype": dtype, "download": download}
            owner, processor = load_with_processor(model, processor=processor, **options)
        elif isinstance(model, HuggingFaceModel):
            owner = model if tokenizer is None else replace(model, tokenizer=tokenizer)
        elif isinstance(model, nn.Module):
            owner = HuggingFaceModel.from_module(model, tokenizer)
        else:
            raise TypeError(f"model is {describe(model)}; expected a transformers model, or its name")
        if self.audio is not None:
            return record_sound(
                owner,
                self.audio,
                self.sampling_rate,
                processor=processor,
                target=self.target,
                decoder_input_ids=self.decoder_input_ids,
                values=values,
            )
        return record_pictures(
            owner,
            text=text,
            input_ids=self.input_ids,
            image=self.image,
            pixel_values=self.pixel_values,
            processor=processor,
            values=values,
        )


def record_pictures(
    owner: HuggingFaceModel,
    *,
    text: str | None = None,
    input_ids: object = None,
    image: object = None,
    pixel_values: object = None,
    processor: Any = None,
    values: bool = False,
) -> Recording:
    """Run a model on pictures, or on pictures and a text, and return its attention; see `clearhead.record`."""
    inputs = prepare_pictures(
        owner, text=text, input_ids=input_ids, image=image, pixel_values=pixel_values, processor=processor
    )
    with _watched(owner, values) as seen:
        if is_pair(owner.model):
            _run_pair(owner.model, inputs.arguments)
        else:
            _run(owner.model, inputs.arguments)
    stacks: dict[str, list[tuple[int, AttentionWeights, Axes]]] = {}
    for watched in _recordable(owner, inputs, seen):
        stack, layer = seen.address(watched)
        for title, weights, axes in _picture_matrices(owner, inputs, watched, stack):
            stacks.setdefault(title, []).append((layer, weights, axes))
    return Recording(owner.name, _stacks(stacks), input=text, media=Media(pictures=inputs.pictures))


def record_sound(
    owner: HuggingFaceModel,
    audio: object,
    sampling_rate: object = None,
    *,
    processor: Any = None,
    target: str | None = None,
    decoder_input_ids: object = None,
    values: bool = False,
) -> Recording:
    """Run a speech model on a sound, and return its attention; see `clearhead.record`."""
    inputs = prepare_sound(
        owner, audio, sampling_rate, processor=processor, target=target, decoder_input_ids=decoder_input_ids
    )
    with _watched(owner, values) as seen:
        _run(owner.model, inputs.arguments)
    stacks: dict[str, list[tuple[int, AttentionWeights, Axes]]] = {}
    for watched in seen.values():
        stack, layer = seen.address(watched)
        weights = _only(owner, watched)
        stacks.setdefault(stack, []).append((layer, weights, _sound_axes(stack, weights, inputs)))
    return Recording(owner.name, _stacks(stacks), output=inputs.output, media=Media(sounds=(inputs.sound,)))


@contextmanager
def _watched(owner: HuggingFaceModel, values: bool) -> Iterator[Seen]:
    try:
        with evaluating(owner.model), torch.no_grad(), watch(owner.model, values=values) as seen:
            yield seen
    except (
        RuntimeError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:  # input that does not fit the model
        raise ValueError(f"{owner.name} raised {type(error).__name__}: {one_line(error)}") from error


def _run(model: Any, arguments: dict[str, Any]) -> None:
    """Run a model once. A language-model head computes the logits of one token, because they are not used."""
    options = {"logits_to_keep": 1, "use_cache": False}
    model(**arguments, **{name: value for name, value in options.items() if takes(model, name)})


def _run_pair(model: Any, arguments: dict[str, Any]) -> None:
    """Run the towers of a model for pictures and texts whose input is given."""
    if "pixel_values" in arguments:
        options = {name: arguments[name] for name in ("pixel_values", "interpolate_pos_encoding") if name in arguments}
        model.get_image_features(**options)
    if "input_ids" in arguments:
        model.get_text_features(
            **{name: arguments[name] for name in ("input_ids", "attention_mask") if name in arguments}
        )


def _recordable(owner: HuggingFaceModel, inputs: PictureInputs, seen: Seen) -> list[Watched]:
    """Return the modules to record: not a vision tower with windows, if the model reads a text too."""
    tower = [watched for watched in seen.values() if is_vision(owner.model, watched.name)]
    windowed = [watched for watched in tower if len(list(_sequences(watched))) != max(1, len(inputs.pictures))]
    others = [watched for watched in seen.values() if watched not in tower]
    if not windowed or not others:
        return list(seen.values())
    warnings.warn(
        f"{owner.name}: {windowed[0].name!r} attends within windows, so the attention of the vision tower is not"
        " recorded",
        stacklevel=5,  # the call of `record`
    )
    return others


def _picture_matrices(
    owner: HuggingFaceModel, inputs: PictureInputs, watched: Watched, stack: str
) -> Iterator[tuple[str, AttentionWeights, Axes]]:
    """Yield the stack, the weights and the tokens of a module, once for each picture of a vision tower."""
    matrices = list(_sequences(watched))
    if not is_vision(owner.model, watched.name) or len(matrices) != max(1, len(inputs.pictures)):
        weights = _only(owner, watched)
        yield stack, weights, text_axes(owner.model, inputs, *weights.shape[2:])
        return
    for picture, weights in enumerate(matrices):
        title = stack if len(matrices) == 1 else f"{stack}, picture {picture + 1}"
        yield title, weights, vision_axes(owner.model, inputs, picture, *weights.shape[2:])


def _sequences(watched: Watched) -> Iterator[AttentionWeights]:
    """Yield the weights of each call and each sequence of its batch."""
    for call in watched.calls:
        count = call.weights.shape[0]
        for index in range(count):
            yield call.weights if count == 1 else call.kept.part(batch=index).weights()


def _only(owner: HuggingFaceModel, watched: Watched) -> AttentionWeights:
    """Return the weights of a module that ran on one sequence."""
    matrices = list(_sequences(watched))
    if len(matrices) != 1:
        raise ValueError(
            f"{owner.name}: {watched.name!r} attends within {len(matrices)} sequences or windows; expected one. Use"
            " clearhead.watch and choose one with seen.recording(batch=0)"
        )
    return matrices[0]


def _sound_axes(stack: str, weights: AttentionWeights, inputs: SoundInputs) -> Axes:
    q_len, kv_len = weights.shape[2:]
    written = inputs.written
    if written is not None and q_len == len(written):
        return written, written if not stack.endswith("cross") else _frames(kv_len, inputs)
    return _frames(q_len, inputs), _frames(kv_len, inputs)


def _frames(count: int, inputs: SoundInputs) -> Tokens:
    return frame_tokens(count, inputs.seconds / count, sound=0)


def _stacks(layers: dict[str, list[tuple[int, AttentionWeights, Axes]]]) -> dict[str, Stack]:
    """Return the stacks of layers. Layers whose tokens differ are different stacks."""
    stacks: dict[str, Stack] = {}
    for name, matrices in layers.items():
        by_axes: dict[Axes, list[tuple[int, AttentionWeights]]] = {}
        for layer, weights, axes in matrices:
            by_axes.setdefault(axes, []).append((layer, weights))
        for axes, group in by_axes.items():
            size = "" if len(by_axes) == 1 else f" {len(axes[0])} × {len(axes[1])}"
            ordered = tuple(weights for _, weights in sorted(group, key=lambda entry: entry[0]))
            written = _written(axes[0]) if name.endswith(("decoder", "cross")) else None
            stacks[f"{name}{size}"] = Stack(ordered, *axes, written)
    return stacks


def _written(read: Tokens) -> Tokens:
    """Return the token that follows each token of a decoder. That of the last one is unknown."""
    return Tokens((*read.texts[1:], ""), (*read.special[1:], False), (*read.words[1:], None))
