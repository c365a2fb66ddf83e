"""Payloads of pictures and sounds: the media of a recording, the grid of each stack, and weights over a grid."""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import Any

from clearhead._utils.text import short_token
from clearhead.recording import (
    Address,
    Frames,
    Patches,
    Picture,
    Recording,
    Sound,
    Stack,
    Timestamps,
    Tokens,
    is_self_attention,
    png_bytes,
)

MAX_PICTURES = 8  # pictures that a page shows; the grids of others are empty
MAX_CHIPS = 256  # tokens that are listed above a picture
MAX_GRID_TOKENS = 2**16  # weights over a longer side are not sent
CHIP_COLUMNS = 24
Payload = dict[str, Any]


def media_payload(recording: Recording) -> Payload | None:
    """Return the pictures, the sounds, and the grid of each stack that has one; None if no stack has one."""
    stacks = {name: payload for name, stack in recording.stacks.items() if (payload := _stack_payload(name, stack))}
    if not stacks:
        return None
    return {
        "pictures": [_picture_payload(picture) for picture in recording.media.pictures[:MAX_PICTURES]],
        "sounds": [_sound_payload(sound) for sound in recording.media.sounds[:MAX_PICTURES]],
        "stacks": stacks,
    }


def grid_side(stack: Stack) -> str | None:
    """Return "key" or "query", the side whose tokens are drawn as a grid; None if neither has one."""
    for name, tokens in (("key", stack.keys), ("query", stack.queries)):
        if _grids(tokens) and len(tokens) <= MAX_GRID_TOKENS:
            return name
    return None


def grid_weights(recording: Recording, address: Address, index: Any) -> Payload:
    """Return the weights over a grid: those of one query, or those on one key if the grid is that of the queries."""
    stack, weights = recording[address[0]], recording.weights(address)
    side = grid_side(stack)
    if side is None:
        raise ValueError(f"{address[0]} has no picture and no sound; expected a stack with patches or frames")
    length = len(stack.queries if side == "key" else stack.keys)
    chosen = min(max(int(index), 0), length - 1)
    line = weights[0, 0, chosen] if side == "key" else weights[0, 0, :, chosen]
    name, layer, head = address
    return {"stack": name, "layer": layer, "head": head, "index": chosen, "weights": line.float().cpu().numpy()}


def _grids(tokens: Tokens) -> list[Patches | Frames]:
    return [region for region in tokens.regions if isinstance(region, Patches | Frames)]


def _stack_payload(name: str, stack: Stack) -> Payload | None:
    side = grid_side(stack)
    if side is None:
        return None
    grid, source = (stack.keys, stack.queries) if side == "key" else (stack.queries, stack.keys)
    return {
        "side": side,
        "same": is_self_attention(name, stack),
        "regions": [asdict(region) for region in _grids(grid)],
        "chips": _chips(source),
    }


def _chips(tokens: Tokens) -> list[list[Any]]:
    """Return the tokens outside of a grid: position, text, and the time at which it is spoken or None."""
    inside = {position for region in _grids(tokens) for position in range(region.start, region.start + len(region))}
    outside = [position for position in range(len(tokens)) if position not in inside]
    if len(outside) > MAX_CHIPS:  # special tokens come first, and the last tokens of a text read all others
        outside = outside[: MAX_CHIPS // 4] + outside[-3 * MAX_CHIPS // 4 :]
    times: dict[int, float] = {}
    for region in tokens.regions:
        if isinstance(region, Timestamps):
            times |= dict(enumerate(region.seconds, start=region.start))
    return [[index, short_token(tokens.texts[index], CHIP_COLUMNS), times.get(index)] for index in outside]


def _picture_payload(picture: Picture) -> Payload:
    """Return a picture as a PNG, encoded here from its pixels, so that no bytes of a file reach the page."""
    data = base64.b64encode(png_bytes(picture)).decode()
    return {"url": f"data:image/png;base64,{data}", "width": picture.width, "height": picture.height}


def _sound_payload(sound: Sound) -> Payload:
    low, high = ([round(value, 3) for value in side] for side in sound.envelope.tolist())
    return {"seconds": sound.seconds, "low": low, "high": high}
