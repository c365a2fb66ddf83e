"""Bit flips, for tests of damaged files."""

import random


def flipped(contents: bytes, offset: int, bit: int = 0) -> bytes:
    """Return the contents with one bit of one byte flipped."""
    changed = bytearray(contents)
    changed[offset] ^= 1 << bit
    return bytes(changed)


def places(contents: bytes, count: int, seed: int = 0) -> tuple[list[int], list[int]]:
    """Return up to `count` random offsets in the header of a safetensors file, and `count` in its data."""
    start = 8 + int.from_bytes(contents[:8], "little")
    drawn = random.Random(seed)
    header = drawn.sample(range(start), min(count, start))
    return header, drawn.sample(range(start, len(contents)), min(count, len(contents) - start))
