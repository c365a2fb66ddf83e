"""Windows of one head's matrix in bins of whole cells, a band of rows at a time, so that one can be left off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from clearhead.ops.statistics import Reduce
from clearhead.weights.matrix import AttentionWeights

SCREEN = 512  # bins each way of what a page is sent, at most
OVERVIEW = 2048  # bins each way that are kept of a whole matrix, at most
EXACT = {"cpu": 8192**2, "cuda": 65_536**2}  # cells of a window that is computed when it is looked at
BAND = {"cpu": 2**22, "cuda": 2**36}  # cells computed at a time: 20 ms here; there as many as keep all of it busy


class Window(NamedTuple):
    """Queries `row` up to `row_end`, keys `key` up to `key_end`."""

    row: int
    row_end: int
    key: int
    key_end: int

    @property
    def cells(self) -> int:
        return (self.row_end - self.row) * (self.key_end - self.key)


class BinSize(NamedTuple):
    """How many queries and keys a bin holds; the last one of an axis may hold fewer."""

    rows: int
    keys: int

    @classmethod
    def over(cls, window: Window, side: int) -> BinSize:
        """The smallest bins of which at most `side` cover the window each way."""
        return cls(-(-(window.row_end - window.row) // side), -(-(window.key_end - window.key) // side))


@dataclass(frozen=True, eq=False)
class Plate:
    """A picture of a window: what stands for the weights in each bin; with single cells, their scores as well."""

    window: Window
    steps: BinSize
    values: Float[np.ndarray, "rows keys"]
    scores: Float[np.ndarray, "rows keys"] | None = None

    def coarser(self, reduce: Reduce, side: int) -> Plate:
        """The same in at most `side` bins each way."""
        ratio = BinSize(*(-(-count // side) for count in self.values.shape))
        if ratio == (1, 1):
            return self
        starts = [np.arange(0, count, every) for count, every in zip(self.values.shape, ratio, strict=True)]
        steps = BinSize(self.steps.rows * ratio.rows, self.steps.keys * ratio.keys)
        if reduce == "max":
            values = np.maximum.reduceat(np.maximum.reduceat(self.values, starts[0], axis=0), starts[1], axis=1)
            return Plate(self.window, steps, values)
        counts = np.outer(*(np.diff(edges) for edges in _edges(self.window, self.steps)))
        summed, cells = (
            np.add.reduceat(np.add.reduceat(part, starts[0], axis=0), starts[1], axis=1)
            for part in (self.values * counts, counts)
        )
        return Plate(self.window, steps, (summed / cells).astype(self.values.dtype))

    def crop(self, window: Window) -> Plate:
        """The bins that reach into a window."""
        edges = _edges(self.window, self.steps)
        first = [int(np.searchsorted(e, start, "right")) - 1 for e, start in zip(edges, window[::2], strict=True)]
        last = [int(np.searchsorted(e, end, "left")) for e, end in zip(edges, window[1::2], strict=True)]
        around = Window(edges[0][first[0]], edges[0][last[0]], edges[1][first[1]], edges[1][last[1]])
        part = (slice(first[0], last[0]), slice(first[1], last[1]))
        scores = None if self.scores is None else self.scores[part]
        return Plate(Window(*map(int, around)), self.steps, self.values[part], scores)


class Picture:
    """A window of one head's matrix, filled from the top: each `advance` computes some more rows.

    Bins lie on a fixed lattice, whole multiples of their size from cell 0, so that they stay the same while a window
    moves, and the window grows to the lattice.
    """

    def __init__(self, weights: AttentionWeights, window: Window, side: int, reductions: Sequence[Reduce]) -> None:
        _, _, q_len, kv_len = weights.shape
        self.steps = steps = BinSize.over(window, side)
        self.window = Window(
            window.row // steps.rows * steps.rows,
            min(q_len, -(-window.row_end // steps.rows) * steps.rows),
            window.key // steps.keys * steps.keys,
            min(kv_len, -(-window.key_end // steps.keys) * steps.keys),
        )
        self.rows_done = self.window.row
        self._weights = weights
        down, across = (len(edges) - 1 for edges in _edges(self.window, steps))
        self._values: dict[Reduce, np.ndarray] = {reduce: np.zeros((down, across), np.float32) for reduce in reductions}
        self._scores = np.zeros((down, across), np.float32) if steps == (1, 1) else None

    @property
    def finished(self) -> bool:
        return self.rows_done >= self.window.row_end

    def advance(self) -> None:
        """Compute one more band."""
        row, _, key, key_end = self.window
        bins = max(1, band_cells(self._weights) // max(1, (key_end - key) * self.steps.rows))
        end = min(self.window.row_end, self.rows_done + bins * self.steps.rows)
        band = Window(self.rows_done, end, key, key_end)
        start = (self.rows_done - row) // self.steps.rows
        for reduce, values in self._values.items():
            found = binned(self._weights, band, self.steps, reduce)[0]
            values[start : start + len(found)] = found
        if self._scores is not None:
            found = self._weights.scores[0, 0, band.row : band.row_end, key:key_end].float().cpu().numpy()
            self._scores[start : start + len(found)] = found
        self.rows_done = end

    @property
    def bytes(self) -> int:
        return sum(values.nbytes for values in self._values.values())

    def plate(self, reduce: Reduce) -> Plate:
        """What has been computed; 0 where nothing has."""
        return Plate(self.window, self.steps, self._values[reduce], self._scores)


class Overview:
    """All of one head: maps of at most 2,048² bins by mean and by max, each query's entropy, what each key receives.

    Where some keys are hidden the maps leave them out; entropy and what is received are those of all keys.
    """

    def __init__(self, weights: AttentionWeights, hidden: Sequence[int] = ()) -> None:
        _, _, q_len, kv_len = weights.shape
        shown = weights.hiding(list(hidden)) if hidden else weights
        self.picture = Picture(shown, Window(0, q_len, 0, kv_len), OVERVIEW, ("mean", "max"))
        self.entropy = np.zeros(q_len, np.float32)
        self.received = np.zeros(kv_len, np.float64)
        self._weights, self._rows_observed = weights, 0

    @property
    def progress(self) -> float:
        return (self.picture.rows_done + self._rows_observed) / (2 * self.picture.window.row_end)

    @property
    def finished(self) -> bool:
        return self._rows_observed >= self.picture.window.row_end

    @property
    def bytes(self) -> int:
        return self.picture.bytes + self.entropy.nbytes + self.received.nbytes

    def advance(self) -> None:
        """Compute one more band of rows, of the maps or of the profiles."""
        rows = slice(self._rows_observed, self.picture.rows_done)
        if rows.start == rows.stop:
            self.picture.advance()
            return
        seen = self._weights.part(queries=rows).observe(entropy=True, received=True)
        assert seen.entropy is not None
        assert seen.received is not None
        self.entropy[rows] = seen.entropy[0, 0].float().cpu().numpy()
        self.received += seen.received[0, 0].double().cpu().numpy()
        self._rows_observed = rows.stop


def is_exact(weights: AttentionWeights, window: Window) -> bool:
    """Whether a window is small enough to be computed when it is looked at."""
    return window.cells <= EXACT.get(weights.device.type, EXACT["cpu"])


def band_cells(weights: AttentionWeights) -> int:
    """How many cells are computed at a time."""
    return BAND.get(weights.device.type, BAND["cpu"])


def _edges(window: Window, steps: BinSize) -> tuple[np.ndarray, np.ndarray]:
    """Where bins begin, and where the last ends: of rows, and of keys."""
    row, row_end, key, key_end = window
    rows, keys = np.arange(row, row_end, steps.rows), np.arange(key, key_end, steps.keys)
    return np.append(rows, row_end), np.append(keys, key_end)


def binned(
    weights: AttentionWeights, window: Window, steps: BinSize, reduce: Reduce
) -> Float[np.ndarray, "heads rows keys"]:
    """Bins of `steps` cells. `pool` draws bins of one size where they divide the window, so the last ones are apart."""
    row, row_end, key, key_end = window
    if steps == (1, 1):  # the very numbers that indexing gives
        return weights[0, :, row:row_end, key:key_end].float().cpu().numpy()

    def spans(start: int, end: int, step: int) -> list[tuple[int, int]]:
        even = start + (end - start) // step * step
        return [span for span in ((start, even), (even, end)) if span[0] < span[1]]

    blocks = []
    for rows in spans(row, row_end, steps.rows):
        line = []
        for keys in spans(key, key_end, steps.keys):
            down, across = -(-(rows[1] - rows[0]) // steps.rows), -(-(keys[1] - keys[0]) // steps.keys)
            line.append(weights.pool(down, across, reduce=reduce, window=(rows, keys))[0].float().cpu().numpy())
        blocks.append(line)
    return np.block(blocks)
