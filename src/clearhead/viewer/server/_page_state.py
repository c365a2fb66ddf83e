"""Bokeh model shared by a page and its session, and parsing of the page's requests."""

from __future__ import annotations

from typing import Any

import numpy as np
from bokeh.core.properties import Any as AnyValue
from bokeh.model import DataModel

from clearhead.recording import Address, Recording
from clearhead.viewer._heatmap import HeatmapWindow
from clearhead.viewer._statistics_table import head_id

Request = dict[str, Any]


class PageState(DataModel):
    """Channel between a page's script and its session. The page sets `ask`; the session sets all other properties."""

    ask: Any = AnyValue(default=None)
    model: Any = AnyValue(default=None)
    thumbnails: Any = AnyValue(default=None)
    head: Any = AnyValue(default=None)
    tokens: Any = AnyValue(default=None)
    cell: Any = AnyValue(default=None)
    top_tokens: Any = AnyValue(default=None)
    calculation: Any = AnyValue(default=None)
    words: Any = AnyValue(default=None)
    row: Any = AnyValue(default=None)
    next_tokens: Any = AnyValue(default=None)
    search: Any = AnyValue(default=None)
    links: Any = AnyValue(default=None)
    picture: Any = AnyValue(default=None)
    compare: Any = AnyValue(default=None)
    compared_cell: Any = AnyValue(default=None)
    status: Any = AnyValue(default=None)
    media: Any = AnyValue(default=None)
    grid_weights: Any = AnyValue(default=None)


def parse_address(recording: Recording, text: str) -> Address:
    """Return the head with a name such as "decoder.3.5", or the first head if the name is unknown."""
    heads = {head_id(address): address for address in recording.heads()}
    return heads.get(text, next(iter(heads.values())))


def parse_window(request: Request, shape: tuple[int, int]) -> HeatmapWindow:
    """Return the requested window, clamped to a matrix of `shape` (default: the whole matrix)."""
    edges = []
    for name, length in zip(("rows", "keys"), shape, strict=True):
        start, end = sorted(map(float, request.get(name) or (0, length)))
        first = int(np.clip(start, 0, length - 1))
        edges += [first, int(np.clip(end, first + 1, length))]
    return HeatmapWindow(*edges)


def parse_cell(query: Any, key: Any, shape: tuple[int, int]) -> tuple[int, int]:
    """Return a cell, clamped to a matrix of `shape`."""
    q_len, kv_len = shape
    return int(np.clip(int(query), 0, q_len - 1)), int(np.clip(int(key), 0, kv_len - 1))
