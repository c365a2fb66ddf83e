"""Pictures of recordings: reading files, undoing the normalization of a model's input, PNG, and tokens of patches."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from clearhead._utils.checks import describe
from clearhead._utils.extras import needs_extra
from clearhead.recording.media import MAX_SIDE, Patches, Picture
from clearhead.recording.recording import Tokens

IMAGE_FORMATS = ("PNG", "JPEG")
EXPECTED = "expected the path of a PNG or JPEG file, a PIL image, or an array of uint8 [height, width, 3]"


def read_image(source: object, name: str = "image") -> Any:
    """Return a picture as a PIL image in RGB.

    Args:
        source: path of a PNG or JPEG file, a PIL image, or an array or tensor of uint8, [height, width, 3].
        name: name of the argument, for errors.

    Raises:
        FileNotFoundError: if there is no such file.
        TypeError: if the source is something else.
        ValueError: if the file is not a complete PNG or JPEG image, or an array has another shape.
    """
    with needs_extra("view", "image="):
        from PIL import Image
    if isinstance(source, Image.Image):
        return source.convert("RGB")
    if not isinstance(source, str | os.PathLike):
        return Image.fromarray(_checked_array(source, name).numpy())
    try:
        with Image.open(source, formats=IMAGE_FORMATS) as image:
            return image.convert("RGB")
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, error.strerror, error.filename) from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{source}: {error}; expected a PNG or JPEG image") from None


def picture_of(source: object, name: str = "image") -> Picture:
    """Return a picture for a recording from a file, a PIL image or an array, reduced to 512 pixels per side."""
    image = read_image(source, name)
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return Picture(pixels.view(image.height, image.width, 3))


def picture_of_values(
    values: Float[Tensor, "channels height width"],
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Picture:
    """Return the picture that a model reads, from its normalized input.

    Args:
        values: input of the model. One channel is shown in gray; of more than three, the first three are shown.
        mean: mean of each channel, which was subtracted. Without it, the smallest value becomes black and the largest
            white.
        std: standard deviation of each channel, by which the difference was divided.
    """
    shown = values.detach().float().cpu().nan_to_num(posinf=0.0, neginf=0.0)
    shown = shown[:3] if shown.shape[0] >= 3 else shown[:1].expand(3, -1, -1)
    if mean is not None and std is not None and len(mean) == len(std) == 3:
        shown = shown * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]
    else:
        low, high = shown.min(), shown.max()
        shown = (shown - low) / (high - low).clamp_min(torch.finfo(torch.float32).tiny)
    height, width = shown.shape[1:]
    if max(height, width) > MAX_SIDE:
        ratio = MAX_SIDE / max(height, width)
        size = (max(1, math.floor(height * ratio)), max(1, math.floor(width * ratio)))
        shown = torch.nn.functional.interpolate(shown[None], size=size, mode="area")[0]
    return Picture((shown.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).contiguous())


def png_bytes(picture: Picture) -> bytes:
    """Return a picture as a PNG file."""
    with needs_extra("view", "png_bytes"):
        from PIL import Image
    buffer = io.BytesIO()
    Image.fromarray(picture.pixels.numpy()).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def patch_tokens(
    rows: int, columns: int, *, special: Sequence[str] = (), picture: int | None = None, block: int = 1
) -> Tokens:
    """Return tokens of a vision transformer: special tokens, then the patches of a picture, named "row,column".

        patch_tokens(14, 14, special=["cls", "reg0", "reg1"], picture=0)

    Args:
        rows: number of rows of patches.
        columns: number of columns of patches.
        special: names of the tokens before the patches.
        picture: index of the picture in the recording's `media` (default: the picture is not recorded).
        block: side of the blocks in which patches come, as in `Patches`.
    """
    patches = Patches(len(special), rows, columns, picture, block)
    texts = list(special) + [""] * len(patches)
    for cell, position in enumerate(patches.positions()):
        texts[position] = f"{cell // columns},{cell % columns}"
    flags = (True,) * len(special) + (False,) * len(patches)
    return Tokens(tuple(texts), flags, (None,) * len(flags), (patches,))


def _checked_array(source: object, name: str) -> UInt8[Tensor, "height width 3"]:
    try:
        pixels = source if isinstance(source, Tensor) else torch.as_tensor(source)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} is {describe(source)}; {EXPECTED}") from None
    if not hasattr(source, "dtype") or pixels.dtype != torch.uint8 or pixels.is_meta:
        dtype = f" of {pixels.dtype}" if hasattr(source, "dtype") else ""
        raise TypeError(f"{name} is {describe(source)}{dtype}; {EXPECTED}")
    if pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.numel():
        raise ValueError(f"{name} has shape {list(pixels.shape)}; {EXPECTED}")
    return pixels.detach().cpu().contiguous()
