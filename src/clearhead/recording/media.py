"""Pictures and sounds of a recording, and the regions of tokens that show parts of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from clearhead._utils.checks import check_float, check_int, describe

MAX_SIDE = 512  # pixels of the longer side of a picture
MAX_BINS = 2048  # bins of the envelope of a sound
MAX_FILES = 64  # pictures or sounds of one recording
MAX_SECONDS = 86_400.0


@dataclass(frozen=True)
class Patches:
    """Tokens that are the patches of a picture, row by row.

    Attributes:
        start: position of the first patch among the tokens.
        rows: number of rows of patches.
        columns: number of columns of patches.
        picture: index of the picture in `Media.pictures` (default: the picture is not recorded).
        block: side of a block of patches. Blocks come row by row, and so do the patches of a block. With 1, all patches
            come row by row.
    """

    start: int
    rows: int
    columns: int
    picture: int | None = None
    block: int = 1

    def __post_init__(self) -> None:
        check_int("Patches: start", self.start, least=0)
        _check_reference("Patches: picture", self.picture)
        for name in ("rows", "columns", "block"):
            check_int(f"Patches: {name}", getattr(self, name))
        if self.rows % self.block or self.columns % self.block:
            raise ValueError(
                f"Patches: rows is {self.rows} and columns {self.columns}; expected multiples of block, {self.block}"
            )

    def __len__(self) -> int:
        return self.rows * self.columns

    def positions(self) -> list[int]:
        """Return the position of the token of each patch, row by row."""
        order = torch.arange(len(self)).unflatten(0, (self.rows // self.block, -1, self.block, self.block))
        return (order.transpose(1, 2).flatten() + self.start).tolist()


@dataclass(frozen=True)
class Frames:
    """Tokens that are the frames of a sound, in order.

    Attributes:
        start: position of the first frame among the tokens.
        count: number of frames.
        seconds: duration of a frame.
        sound: index of the sound in `Media.sounds` (default: the sound is not recorded).
    """

    start: int
    count: int
    seconds: float
    sound: int | None = None

    def __post_init__(self) -> None:
        check_int("Frames: start", self.start, least=0)
        check_int("Frames: count", self.count)
        _check_reference("Frames: sound", self.sound)
        if not 0 < check_float("Frames: seconds", self.seconds) <= MAX_SECONDS:
            raise ValueError(f"Frames: seconds is {self.seconds}; expected a number above 0")

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True)
class Timestamps:
    """Tokens of a transcript with the time at which each of them is spoken.

    Attributes:
        start: position of the first of these tokens.
        seconds: time of each token, from the beginning of the sound.
        sound: index of the sound in `Media.sounds` (default: the sound is not recorded).
    """

    start: int
    seconds: tuple[float, ...]
    sound: int | None = None

    def __post_init__(self) -> None:
        check_int("Timestamps: start", self.start, least=0)
        _check_reference("Timestamps: sound", self.sound)
        if not isinstance(self.seconds, tuple):
            raise TypeError(f"Timestamps: seconds is {describe(self.seconds)}; expected a tuple of numbers")
        for index, time in enumerate(self.seconds):
            if not 0 <= check_float(f"Timestamps: seconds[{index}]", time) <= MAX_SECONDS:
                raise ValueError(f"Timestamps: seconds[{index}] is {time}; expected a time from 0")

    def __len__(self) -> int:
        return len(self.seconds)


Region = Patches | Frames | Timestamps


@dataclass(frozen=True, eq=False)
class Picture:
    """Picture as a model reads it: RGB values with a longer side of at most 512 pixels."""

    pixels: UInt8[Tensor, "height width 3"]

    def __post_init__(self) -> None:
        pixels = self.pixels
        if not isinstance(pixels, Tensor) or pixels.dtype != torch.uint8:
            raise ValueError(f"Picture: pixels is {describe(pixels)}; expected a tensor of torch.uint8")
        if pixels.ndim != 3 or pixels.shape[2] != 3 or not 0 < min(pixels.shape) <= max(pixels.shape) <= MAX_SIDE:
            raise ValueError(
                f"Picture: pixels is {tuple(pixels.shape)}; expected [height, width, 3] with 1 to {MAX_SIDE} pixels"
                " per side"
            )

    def __repr__(self) -> str:
        return f"Picture({self.width} × {self.height})"

    @property
    def height(self) -> int:
        """Number of rows of pixels."""
        return self.pixels.shape[0]

    @property
    def width(self) -> int:
        """Number of columns of pixels."""
        return self.pixels.shape[1]


@dataclass(frozen=True, eq=False)
class Sound:
    """Sound as an envelope: the smallest and largest sample of each of at most 2,048 bins of equal duration.

    Attributes:
        envelope: both, relative to the loudest sample.
        seconds: duration of the sound.
    """

    envelope: Float32[Tensor, "2 bins"]
    seconds: float

    def __post_init__(self) -> None:
        envelope = self.envelope
        if not isinstance(envelope, Tensor) or envelope.dtype != torch.float32:
            raise ValueError(f"Sound: envelope is {describe(envelope)}; expected a tensor of torch.float32")
        if envelope.ndim != 2 or envelope.shape[0] != 2 or not 0 < envelope.shape[1] <= MAX_BINS:
            raise ValueError(f"Sound: envelope is {tuple(envelope.shape)}; expected [2, bins], at most {MAX_BINS} bins")
        if not bool((envelope.abs() <= 1).all()):  # also False for nan
            raise ValueError("Sound: envelope has values outside of −1 to 1; expected samples relative to the loudest")
        if not 0 < check_float("Sound: seconds", self.seconds) <= MAX_SECONDS:
            raise ValueError(f"Sound: seconds is {self.seconds}; expected a number above 0")

    def __repr__(self) -> str:
        return f"Sound({self.seconds:.2f} s)"


@dataclass(frozen=True, eq=False)
class Media:
    """Pictures and sounds that a model ran on.

    Attributes:
        pictures: pictures, to which `Patches` refer.
        sounds: sounds, to which `Frames` and `Timestamps` refer.
    """

    pictures: tuple[Picture, ...] = ()
    sounds: tuple[Sound, ...] = ()

    def __post_init__(self) -> None:
        for name, kind, parts in (("pictures", Picture, self.pictures), ("sounds", Sound, self.sounds)):
            if not isinstance(parts, tuple) or not all(isinstance(part, kind) for part in parts):
                raise ValueError(f"Media: {name} is {describe(parts)}; expected a tuple of {kind.__name__}")
            if len(parts) > MAX_FILES:
                raise ValueError(f"Media: there are {len(parts)} {name}; expected at most {MAX_FILES}")

    def pack(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the media as tensors by name and JSON metadata."""
        tensors = {f"media.picture.{index}": picture.pixels for index, picture in enumerate(self.pictures)}
        tensors |= {f"media.sound.{index}": sound.envelope for index, sound in enumerate(self.sounds)}
        return tensors, {"pictures": len(self.pictures), "seconds": [sound.seconds for sound in self.sounds]}

    @classmethod
    def unpack(cls, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> Media:
        """Return the media of `pack`."""
        count = check_int("Media: pictures", header["pictures"], least=0, most=MAX_FILES)
        return cls(
            tuple(Picture(tensors[f"media.picture.{index}"].cpu()) for index in range(count)),
            tuple(
                Sound(tensors[f"media.sound.{index}"].cpu(), seconds) for index, seconds in enumerate(header["seconds"])
            ),
        )


def check_regions(regions: Iterable[Region], count: int) -> None:
    """Raise if regions overlap or do not lie within `count` tokens."""
    taken: list[tuple[int, int]] = []
    for index, region in enumerate(regions):
        if not isinstance(region, Region):
            raise ValueError(f"Tokens: regions[{index}] is {describe(region)}; expected Patches, Frames or Timestamps")
        end = region.start + len(region)
        if end > count:
            raise ValueError(f"Tokens: regions[{index}] ends at {end}; expected at most {count}, the number of tokens")
        taken.append((region.start, end))
    for (_, end), (start, _) in pairwise(sorted(taken)):
        if start < end:
            raise ValueError(f"Tokens: a region starts at {start}, before another one ends at {end}")


def check_references(regions: Iterable[Region], media: Media) -> None:
    """Raise if a region refers to a picture or a sound that is not among the media."""
    for region in regions:
        kind, index, count = (
            ("picture", region.picture, len(media.pictures))
            if isinstance(region, Patches)
            else ("sound", region.sound, len(media.sounds))
        )
        if index is not None and index >= count:
            raise ValueError(f"Recording: a region has {kind} {index}; expected an index below {count}")


def regions_between(regions: Iterable[Region], start: int, end: int) -> tuple[Region, ...]:
    """Return the regions that lie within the tokens from `start` to `end`, as regions of these tokens."""
    inside = (region for region in regions if start <= region.start and region.start + len(region) <= end)
    return tuple(replace(region, start=region.start - start) for region in inside)


def unpack_region(fields: Mapping[str, Any]) -> Region:
    """Return a region from its fields."""
    if "rows" in fields:
        return Patches(**fields)
    if "count" in fields:
        return Frames(**fields)
    return Timestamps(**{**fields, "seconds": tuple(fields["seconds"])})


def _check_reference(name: str, index: object) -> None:
    if index is not None:
        check_int(name, index, least=0, most=MAX_FILES)
