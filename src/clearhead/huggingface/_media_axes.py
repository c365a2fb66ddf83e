"""Tokens of the axes of a model that reads pictures: patches, image tokens within a text, and special tokens."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any

from jaxtyping import Int
from torch import Tensor, nn

from clearhead.huggingface._picture_inputs import PictureInputs, image_token_of, takes
from clearhead.recording.decoding import decoded
from clearhead.recording.media import Patches
from clearhead.recording.pictures import patch_tokens
from clearhead.recording.recording import Tokens

MAX_SPECIAL = 32  # tokens before the patches of a vision transformer
CLASS_TOKENS = ("cls_token", "class_embedding", "class_token")


def is_vision(model: Any, name: str) -> bool:
    """Return whether a module is part of the vision tower, by the nearest configuration above it."""
    vision = getattr(model.config, "vision_config", None)
    if vision is None:
        return not takes(model, "input_ids")
    parts = name.split(".")
    above = (model.get_submodule(".".join(parts[:depth])) for depth in range(len(parts), -1, -1))
    configs = (getattr(module, "config", None) for module in above)
    nearest = next((config for config in configs if hasattr(config, "model_type")), None)
    return nearest is not None and nearest.model_type == vision.model_type


def vision_axes(
    model: nn.Module, inputs: PictureInputs, picture: int, q_len: int, kv_len: int
) -> tuple[Tokens, Tokens]:
    """Return the tokens of the queries and keys of a layer of the vision tower."""
    keys = _patch_axis(model, inputs, picture, kv_len) or _positions(kv_len)
    if q_len == kv_len:
        return keys, keys
    if q_len == 1:  # a learned query that pools the patches
        return Tokens(("probe",), (True,), (None,)), keys
    return _patch_axis(model, inputs, picture, q_len) or _positions(q_len), keys


def text_axes(model: Any, inputs: PictureInputs, q_len: int, kv_len: int) -> tuple[Tokens, Tokens]:
    """Return the tokens of the queries and keys of a layer that reads a text, and may attend to a picture."""
    text = _text_axis(model, inputs) if "input_ids" in inputs.arguments else None

    def of_length(length: int) -> Tokens:
        if text is not None and len(text) == length:
            return text
        return _patch_axis(model, inputs, 0, length) or _positions(length)

    return of_length(q_len), of_length(kv_len)


def _text_axis(model: Any, inputs: PictureInputs) -> Tokens:
    """Return the tokens of a text. Runs of image tokens are the patches of pictures, as far as their grid is known."""
    ids: Int[Tensor, " tokens"] = inputs.arguments["input_ids"][0].cpu()
    tokens, image_token = decoded(inputs.tokenizer, ids.tolist()), image_token_of(model)
    if image_token is None:
        return tokens
    texts, regions, start, picture = list(tokens.texts), [], 0, 0
    for is_image, run in groupby(ids.tolist(), key=lambda token: token == image_token):
        count = len(list(run))
        while is_image and picture < len(inputs.grids) and (grid := _merged(inputs.grids[picture], count)):
            patches = Patches(start, *grid, picture)
            for cell, position in enumerate(patches.positions()):
                texts[position] = f"{cell // grid[1]},{cell % grid[1]}"
            regions.append(patches)
            start, count, picture = start + len(patches), count - len(patches), picture + 1
        start += count
    special = [flag and token != image_token for flag, token in zip(tokens.special, ids.tolist(), strict=True)]
    return replace(tokens, texts=tuple(texts), special=tuple(special), regions=tuple(regions))


def _merged(grid: tuple[int, int] | None, count: int) -> tuple[int, int] | None:
    """Return the grid of image tokens in a run of `count` tokens, each of which stands for side × side patches."""
    if grid is None or not count:
        return None
    rows, columns = grid
    for side in range(1, min(rows, columns) + 1):
        # several pictures may follow each other in one run
        if not (rows % side or columns % side) and not count % (rows * columns // side**2):
            return rows // side, columns // side
    return None


def _patch_axis(model: nn.Module, inputs: PictureInputs, picture: int, length: int) -> Tokens | None:
    grid = inputs.grids[picture] if picture < len(inputs.grids) else None
    if grid is None or not 0 <= length - grid[0] * grid[1] <= MAX_SPECIAL:
        return None
    special = _special_tokens(model, length - grid[0] * grid[1])
    return patch_tokens(*grid, special=special, picture=picture, block=inputs.block)


def _special_tokens(model: nn.Module, count: int) -> list[str]:
    """Return the names of the tokens before the patches: the class token, that of distillation, and registers."""
    names = {name.rpartition(".")[2] for name, _ in model.named_parameters()}
    special = ["cls"] if names & {*CLASS_TOKENS} else []
    special += ["dist"] if "distillation_token" in names else []
    return [*special, *(f"reg{index}" for index in range(count))][:count]


def _positions(count: int) -> Tokens:
    return Tokens(tuple(map(str, range(count))), (False,) * count, (None,) * count)
