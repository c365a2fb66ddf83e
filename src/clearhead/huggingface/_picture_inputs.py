"""Inputs of a transformers model that reads pictures: from a processor, or as tensors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from clearhead._utils.checks import describe
from clearhead._utils.tensor_checks import check_float_tensor
from clearhead.huggingface._model_inputs import checked_ids
from clearhead.recording.media import MAX_FILES, Picture
from clearhead.recording.pictures import picture_of_values, read_image

Size = tuple[int, int]  # rows and columns of patches


@dataclass(frozen=True, eq=False)
class PictureInputs:
    """Arguments of a model that reads pictures.

    Attributes:
        arguments: arguments of the model's forward, on the device of the model.
        pictures: the pictures as the model reads them.
        grids: rows and columns of the patches of each picture; None if unknown.
        block: side of the blocks in which the vision tower reads patches.
        tokenizer: tokenizer of the text, or None.
    """

    arguments: dict[str, Any]
    pictures: tuple[Picture, ...] = ()
    grids: list[Size | None] = field(default_factory=list)
    block: int = 1
    tokenizer: Any = None


def takes(model: Any, name: str) -> bool:
    """Return whether the forward of a model has an argument of this name."""
    return name in inspect.signature(model.forward).parameters


def is_pair(model: Any) -> bool:
    """Return whether a model has a tower for pictures and one for texts, as CLIP and SigLIP have."""
    return callable(getattr(model, "get_image_features", None)) and callable(getattr(model, "get_text_features", None))


def prepare_pictures(
    owner: Any,
    *,
    text: str | None = None,
    input_ids: object = None,
    image: object = None,
    pixel_values: object = None,
    processor: Any = None,
) -> PictureInputs:
    """Return the arguments of a model for pictures, with a text if the model reads both.

    Args:
        owner: `HuggingFaceModel`; its tokenizer may be None.
        text: text of a model that reads both.
        input_ids: token ids instead of a text.
        image: a picture, or a list of pictures; requires `processor`.
        pixel_values: input of the vision tower instead of `image`, or a dict of several arguments.
        processor: processor or image processor of the model.
    """
    model = owner.model
    if image is None and pixel_values is None and not is_pair(model):
        raise ValueError(f"image and pixel_values are None; expected a picture, because {owner.name} reads pictures")
    if (image is not None or pixel_values is not None) and not takes(model, "pixel_values"):
        given = "image" if image is not None else "pixel_values"
        raise ValueError(f"{given} is given, but {owner.name} does not read pictures; expected a vision tower")
    reads_text = takes(model, "input_ids")
    if not reads_text and (text is not None or input_ids is not None):
        given = "text" if text is not None else "input_ids"
        raise ValueError(f"{given} is given, but {owner.name} reads pictures only; omit it")
    if reads_text and not is_pair(model) and text is None and input_ids is None and not isinstance(pixel_values, dict):
        raise ValueError(f"text is None; expected a text, because {owner.name} reads pictures within a text")
    tokenizer = getattr(processor, "tokenizer", None) or owner.tokenizer
    if image is not None:
        arguments = _processed(owner, processor, _images(image), text)
    else:
        arguments = {} if pixel_values is None else _given_values(pixel_values)
        arguments |= _tokenized(owner, tokenizer, text, padding=False) if text is not None else {}
    if input_ids is not None:
        ids = checked_ids(owner, "input_ids", input_ids)[None]
        arguments |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    arguments = {name: _moved(model, value) for name, value in arguments.items() if isinstance(value, Tensor)}
    pictures, grids, block = _pictures(model, arguments, processor)
    return PictureInputs(_completed(model, arguments), pictures, grids, block, tokenizer)


def _images(image: object) -> list[Any]:
    several = isinstance(image, list | tuple) and bool(image)
    given = list(image) if several and isinstance(image, Sequence) else [image]
    if len(given) > MAX_FILES:
        raise ValueError(f"image has {len(given)} pictures; expected at most {MAX_FILES}")
    return [read_image(each, f"image[{index}]" if several else "image") for index, each in enumerate(given)]


def _processed(owner: Any, processor: Any, images: list[Any], text: str | None) -> dict[str, Any]:
    """Return the results of a processor for pictures, and for a text that a model reads with them."""
    if processor is None:
        raise ValueError("processor is None; expected the processor of the model with image=, or pixel_values=")
    if not callable(processor):
        raise TypeError(f"processor is {describe(processor)}; expected the processor of the model")
    tokenizer = getattr(processor, "tokenizer", None)
    if text is None or tokenizer is None:
        arguments = {**_image_processor(processor)(images=images, return_tensors="pt")}
        return arguments | (_tokenized(owner, owner.tokenizer, text, padding=False) if text is not None else {})
    if is_pair(owner.model):
        arguments = {**_image_processor(processor)(images=images, return_tensors="pt")}
        return arguments | _tokenized(
            owner, tokenizer, text, padding=owner.model.config.model_type.startswith("siglip")
        )
    encode: Any = processor
    return {**encode(images=images, text=_with_image_tokens(processor, text, len(images)), return_tensors="pt")}


def _image_processor(processor: Any) -> Any:
    return getattr(processor, "image_processor", processor)


def _with_image_tokens(processor: Any, text: str, count: int) -> str:
    """Return a text that contains a token for each picture, as the model's chat template writes it."""
    token = getattr(processor, "image_token", None)
    if token is None or token in text:
        return text
    if getattr(processor, "chat_template", None):
        content = [*({"type": "image"} for _ in range(count)), {"type": "text", "text": text}]
        return processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    return token * count + "\n" + text


def _given_values(pixel_values: object) -> dict[str, Any]:
    if isinstance(pixel_values, Mapping):
        if not isinstance(pixel_values.get("pixel_values"), Tensor):
            raise ValueError(f"pixel_values is a dict of {list(pixel_values)}; expected a tensor named 'pixel_values'")
        return dict(pixel_values)
    expected = "expected a tensor [channels, height, width] or [pictures, channels, height, width]"
    if not isinstance(pixel_values, Tensor):
        raise TypeError(f"pixel_values is {describe(pixel_values)}; {expected}")
    check_float_tensor("pixel_values", pixel_values, expected.removeprefix("expected "))
    if pixel_values.ndim not in (3, 4) or not pixel_values.numel() or pixel_values.is_meta:
        raise ValueError(f"pixel_values has shape {list(pixel_values.shape)}; {expected}")
    return {"pixel_values": pixel_values if pixel_values.ndim == 4 else pixel_values[None]}


def _tokenized(owner: Any, tokenizer: Any, text: object, *, padding: bool) -> dict[str, Any]:
    if not isinstance(text, str) or not text:
        raise TypeError(f"text is {describe(text)}; expected a string")
    if tokenizer is None:
        raise ValueError(f"text is given, but processor and tokenizer are None; expected those of {owner.name}")
    options = {"padding": "max_length", "truncation": True} if padding else {}
    return {**tokenizer(text, return_tensors="pt", **options)}


def _moved(model: Any, value: Tensor) -> Tensor:
    dtype = next(model.parameters()).dtype
    return value.to(model.device, dtype) if value.is_floating_point() else value.to(model.device)


def _completed(model: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that a model takes, with those that follow from the others."""
    ids, token = arguments.get("input_ids"), image_token_of(model)
    if ids is not None and token is not None and takes(model, "mm_token_type_ids"):
        arguments.setdefault("mm_token_type_ids", (ids == token).long())
    values = arguments.get("pixel_values")
    if values is not None and values.ndim == 4 and takes(model, "interpolate_pos_encoding"):
        size = _side_pair(getattr(vision_config(model), "image_size", None))
        if size is not None and size != (values.shape[2], values.shape[3]):
            arguments["interpolate_pos_encoding"] = True
    return {name: value for name, value in arguments.items() if takes(model, name)}


def vision_config(model: Any) -> Any:
    """Return the configuration of a model's vision tower."""
    return getattr(model.config, "vision_config", None) or model.config


def image_token_of(model: Any) -> int | None:
    """Return the id of the tokens that stand for parts of a picture in a text."""
    ids = (getattr(model.config, name, None) for name in ("image_token_id", "image_token_index"))
    return next((token for token in ids if isinstance(token, int)), None)


def _pictures(
    model: Any, arguments: dict[str, Any], processor: Any
) -> tuple[tuple[Picture, ...], list[Size | None], int]:
    """Return the pictures of `pixel_values`, their grids, and the side of a block of patches."""
    values = arguments.get("pixel_values")
    if values is None:
        return (), [], 1
    if values.shape[0] > MAX_FILES and values.ndim > 2:
        raise ValueError(f"pixel_values has {values.shape[0]} pictures; expected at most {MAX_FILES}")
    config, source = vision_config(model), _image_processor(processor)
    normalization = (getattr(source, "image_mean", None), getattr(source, "image_std", None))
    patch, grid = _side_pair(getattr(config, "patch_size", None)), arguments.get("image_grid_thw")
    if values.ndim == 2 and grid is not None and patch is not None:
        block = int(getattr(config, "spatial_merge_size", 1))
        parts = _unflattened(values, grid, patch, block, int(getattr(config, "temporal_patch_size", 1)))
        sizes: list[Size | None] = [(int(rows), int(columns)) for _, rows, columns in grid.tolist()]
        return tuple(picture_of_values(part, *normalization) for part in parts), sizes, block
    if values.ndim < 4:
        return (), [], 1
    flat = values.flatten(0, -4)
    if patch is None:
        return tuple(picture_of_values(part, *normalization) for part in flat), [None] * len(flat), 1
    rows, columns = flat.shape[2] // patch[0], flat.shape[3] // patch[1]
    # a rest that is smaller than a patch is not read
    flat = flat[:, :, : max(1, rows) * patch[0], : max(1, columns) * patch[1]]
    size = (rows, columns) if rows and columns else None
    return tuple(picture_of_values(part, *normalization) for part in flat), [size] * len(flat), 1


def _unflattened(values: Tensor, grids: Tensor, patch: Size, block: int, frames: int) -> list[Tensor]:
    """Return pictures from the patches of Qwen2-VL, [patches, channels · frames · height · width], in blocks."""
    pictures, start = [], 0
    for times, rows, columns in grids.tolist():
        count = times * rows * columns
        part = values[start : start + count]
        if len(part) != count or rows % block or columns % block:
            raise ValueError(
                f"image_grid_thw is {grids.tolist()}, but pixel_values has {len(values)} patches; expected as many"
            )
        first = part[: rows * columns].unflatten(1, (-1, frames, *patch))[:, :, 0]  # of the first time
        tiles = first.unflatten(0, (rows // block, columns // block, block, block))
        # [row block, column block, row, column, channel, y, x] -> [channel, row block, row, y, column block, column, x]
        ordered = tiles.permute(4, 0, 2, 5, 1, 3, 6)
        pictures.append(ordered.reshape(ordered.shape[0], rows * patch[0], columns * patch[1]))
        start += count
    if start != len(values):
        raise ValueError(f"pixel_values has {len(values)} patches; expected {start}, those of image_grid_thw")
    return pictures


def _side_pair(size: Any) -> Size | None:
    """Return a size in a configuration, an integer or a pair, as a pair."""
    if isinstance(size, int) and size > 0:
        return size, size
    pair = tuple(size) if isinstance(size, list | tuple) else ()
    return pair if len(pair) == 2 and all(isinstance(side, int) and side > 0 for side in pair) else None
