"""Recordings of timm models on an image."""

from __future__ import annotations

import difflib
import importlib
import os
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead._utils.text import one_line
from clearhead.recording.media import Media, Picture
from clearhead.recording.pictures import patch_tokens, picture_of_values, read_image
from clearhead.recording.recording import Recording, Tokens
from clearhead.watching.functions import recording_of_one
from clearhead.watching.seen import Seen
from clearhead.watching.watcher import watch

PREFIX = "timm:"
WEIGHTS = "model.safetensors"  # name of the file on the hub


def record_timm(
    name: str,
    image: str | os.PathLike[str],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    download: bool = False,
    values: bool = False,
) -> Recording:
    """Run a pretrained timm model on an image and return its attention.

    Tokens are named "cls", "reg0" and so on for registers, and "row,column" for patches. Turns on timm's fused
    attention for all models that this process creates later.

    Args:
        name: `timm:NAME`, such as `timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k`.
        image: a PNG or JPEG file. It is resized and normalized as the model requires.
        device: device of the parameters.
        dtype: dtype of the parameters (default: float32).
        download: download the weights from the Hugging Face Hub if they are not in the local cache.
        values: record the values too.

    Raises:
        ImportError: if timm or torchvision is not installed.
        ValueError: if there is no such model, its weights are not in the cache, or the image cannot be read.
    """
    timm = _timm(name)
    picture = read_image(image)
    model = _create(timm, name, download).to(device, dtype).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    pixels = transform(picture)[None].to(device, dtype)
    with torch.no_grad(), watch(model, values=values) as seen:
        model(pixels)
    media = Media((_picture(timm, model, pixels[0]),))
    return recording_of_one(name, seen, _tokens(model, seen), media)


def _timm(name: str) -> Any:
    try:
        timm = importlib.import_module("timm")  # not installed with the CPU build of torch, so without its types
        importlib.import_module("timm.data")
        importlib.import_module("timm.layers")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("timm", "torchvision", "PIL"):
            raise
        raise ImportError(f"{name} needs {package}: pip install timm", name=error.name) from None
    return timm


def _create(timm: Any, name: str, download: bool) -> nn.Module:
    """Create a model with pretrained weights. Only `download` uses the network."""
    from huggingface_hub import hf_hub_download

    known = name.removeprefix(PREFIX)
    if not timm.is_model(known):
        close = difflib.get_close_matches(known, timm.list_models(), n=3)
        raise ValueError(f"{name}: timm has no model of that name" + (f"; close: {', '.join(close)}" if close else ""))
    config = timm.get_pretrained_cfg(known)
    if config is None or not config.hf_hub_id:
        raise ValueError(f"{name}: timm has no weights of this model on the Hugging Face Hub")
    try:
        path = hf_hub_download(config.hf_hub_id, config.hf_hub_filename or WEIGHTS, local_files_only=not download)
    except (OSError, ValueError) as error:
        if download:
            raise ValueError(f"{name}: {one_line(error)}") from error
        raise ValueError(
            f"{name}: the local Hugging Face cache has no weights of {config.hf_hub_id}; pass --download"
            " (download=True) to download them from the hub"
        ) from None
    timm.layers.set_fused_attn(True, experimental=True)  # must be set before the model is created
    # `custom_load` is for files of other formats than the one on the hub
    return timm.create_model(known, pretrained=True, pretrained_cfg_overlay={"file": path, "custom_load": False})


def _tokens(model: nn.Module, seen: Seen) -> Tokens | None:
    """Return the tokens of a vision transformer; None for models whose positions have another meaning."""
    grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    prefix = getattr(model, "num_prefix_tokens", None)
    if grid is None or prefix is None:
        return None
    rows, columns = grid
    if prefix + rows * columns not in {watched.weights.shape[3] for watched in seen.values()}:
        return None
    special = (["cls"] if getattr(model, "has_class_token", False) else [])[:prefix]
    special += [f"reg{index}" for index in range(prefix - len(special))]
    return patch_tokens(rows, columns, special=special, picture=0)


def _picture(timm: Any, model: nn.Module, pixels: Float[Tensor, "channels height width"]) -> Picture:
    """Return the picture that a model reads, without a rest that is smaller than a patch."""
    config = timm.data.resolve_model_data_config(model)
    embedding: Any = getattr(model, "patch_embed", None)
    (rows, columns), (height, width) = (getattr(embedding, name, (1, 1)) for name in ("grid_size", "patch_size"))
    shown = pixels if rows * columns == 1 else pixels[:, : rows * height, : columns * width]
    return picture_of_values(shown, config["mean"], config["std"])
