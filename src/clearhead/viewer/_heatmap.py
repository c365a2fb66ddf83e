"""Heatmaps of windows of one head's matrix, in bins of whole cells, computed one band of rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from clearhead.ops.statistics import Reduce
from clearhead.weights.matrix import AttentionWeights
from clearhead.weights.statistics import observe_with_entropy

MAX_PAGE_BINS = 512  # bins per axis of a heatmap sent to a page
MAX_OVERVIEW_BINS = 2048  # bins per axis of a heatmap of a whole matrix
MAX_EXACT_CELLS = {"cpu": 8192**2, "cuda": 65_536**2}  # largest window computed on request
BAND_CELLS = {"cpu": 2**22, "cuda": 2**36}  # cells per step: 20 ms on a CPU, enough to fill a GPU


class HeatmapWindow(NamedTuple):
    """Window of a matrix: queries `[row, row_end)` and keys `[key, key_end)`."""

    row: int
    row_end: int
    key: int
    key_end: int

    @property
    def cells(self) -> int:
        return (self.row_end - self.row) * (self.key_end - self.key)


class BinSize(NamedTuple):
    """Number of queries and keys in each bin. The last bin of an axis may have fewer."""

    rows: int
    keys: int

    @classmethod
    def from_window(cls, window: HeatmapWindow, max_bins: int) -> BinSize:
        """Return the smallest bin size that covers the window with at most `max_bins` bins per axis."""
        return cls(-(-(window.row_end - window.row) // max_bins), -(-(window.key_end - window.key) // max_bins))


@dataclass(frozen=True, eq=False)
class Heatmap:
    """Largest or mean weight in each bin of a window. `scores` is set if every bin is a single cell."""

    window: HeatmapWindow
    bin_size: BinSize
    values: Float[np.ndarray, "rows keys"]
    scores: Float[np.ndarray, "rows keys"] | None = None

    def downsampled(self, reduce: Reduce, max_bins: int) -> Heatmap:
        """Return the heatmap with at most `max_bins` bins per axis."""
        ratio = BinSize(*(-(-count // max_bins) for count in self.values.shape))
        if ratio == (1, 1):
            return self
        starts = [np.arange(0, count, step) for count, step in zip(self.values.shape, ratio, strict=True)]
        bin_size = BinSize(self.bin_size.rows * ratio.rows, self.bin_size.keys * ratio.keys)
        if reduce == "max":
            values = np.maximum.reduceat(np.maximum.reduceat(self.values, starts[0], axis=0), starts[1], axis=1)
            return Heatmap(self.window, bin_size, values)
        counts = np.outer(*(np.diff(edges) for edges in _bin_edges(self.window, self.bin_size)))
        summed, cells = (
            np.add.reduceat(np.add.reduceat(part, starts[0], axis=0), starts[1], axis=1)
            for part in (self.values * counts, counts)
        )
        return Heatmap(self.window, bin_size, (summed / cells).astype(self.values.dtype))

    def crop(self, window: HeatmapWindow) -> Heatmap:
        """Return the bins that overlap a window."""
        edges = _bin_edges(self.window, self.bin_size)
        first = [int(np.searchsorted(e, start, "right")) - 1 for e, start in zip(edges, window[::2], strict=True)]
        last = [int(np.searchsorted(e, end, "left")) for e, end in zip(edges, window[1::2], strict=True)]
        covered = (edges[0][first[0]], edges[0][last[0]], edges[1][first[1]], edges[1][last[1]])
        part = (slice(first[0], last[0]), slice(first[1], last[1]))
        scores = None if self.scores is None else self.scores[part]
        return Heatmap(HeatmapWindow(*map(int, covered)), self.bin_size, self.values[part], scores)


class ProgressiveHeatmap:
    """Heatmaps of a window of one head's matrix, filled from the top: each `advance()` computes more rows.

    Bin edges are multiples of the bin size, counted from cell 0, so panning does not change the bins. The window is
    extended to whole bins.
    """

    def __init__(
        self, weights: AttentionWeights, window: HeatmapWindow, max_bins: int, reductions: Sequence[Reduce]
    ) -> None:
        _, _, q_len, kv_len = weights.shape
        self.bin_size = size = BinSize.from_window(window, max_bins)
        self.window = HeatmapWindow(
            window.row // size.rows * size.rows,
            min(q_len, -(-window.row_end // size.rows) * size.rows),
            window.key // size.keys * size.keys,
            min(kv_len, -(-window.key_end // size.keys) * size.keys),
        )
        self.rows_done = self.window.row
        self._weights = weights
        down, across = (len(edges) - 1 for edges in _bin_edges(self.window, size))
        self._values: dict[Reduce, np.ndarray] = {reduce: np.zeros((down, across), np.float32) for reduce in reductions}
        self._scores = np.zeros((down, across), np.float32) if size == (1, 1) else None

    @property
    def finished(self) -> bool:
        return self.rows_done >= self.window.row_end

    @property
    def bytes(self) -> int:
        return sum(values.nbytes for values in self._values.values())

    def advance(self) -> None:
        """Compute one more band of rows."""
        row, _, key, key_end = self.window
        bins = max(1, band_cells(self._weights) // max(1, (key_end - key) * self.bin_size.rows))
        end = min(self.window.row_end, self.rows_done + bins * self.bin_size.rows)
        band = HeatmapWindow(self.rows_done, end, key, key_end)
        start = (self.rows_done - row) // self.bin_size.rows
        for reduce, values in self._values.items():
            pooled = pool_window(self._weights, band, self.bin_size, reduce)[0]
            values[start : start + len(pooled)] = pooled
        if self._scores is not None:
            scores = self._weights.unscaled.scores[0, 0, band.row : band.row_end, key:key_end].float().cpu().numpy()
            self._scores[start : start + len(scores)] = scores
        self.rows_done = end

    def heatmap(self, reduce: Reduce) -> Heatmap:
        """Return the heatmap computed so far. Missing bins are 0."""
        return Heatmap(self.window, self.bin_size, self._values[reduce], self._scores)


class HeadOverview:
    """Overview of one head's whole matrix: mean and max heatmaps, entropy, and received attention.

    The heatmaps have at most 2,048 × 2,048 bins and are those of `shown`, a matrix with hidden keys or scaled columns.
    Entropy and received attention are those of `weights`.
    """

    def __init__(self, weights: AttentionWeights, shown: AttentionWeights | None = None) -> None:
        _, _, q_len, kv_len = weights.shape
        window = HeatmapWindow(0, q_len, 0, kv_len)
        self.heatmaps = ProgressiveHeatmap(
            weights if shown is None else shown, window, MAX_OVERVIEW_BINS, ("mean", "max")
        )
        self.entropy = np.zeros(q_len, np.float32)
        self.received = np.zeros(kv_len, np.float64)
        self._weights, self._rows_observed = weights, 0

    @property
    def progress(self) -> float:
        return (self.heatmaps.rows_done + self._rows_observed) / (2 * self.heatmaps.window.row_end)

    @property
    def finished(self) -> bool:
        return self._rows_observed >= self.heatmaps.window.row_end

    @property
    def bytes(self) -> int:
        return self.heatmaps.bytes + self.entropy.nbytes + self.received.nbytes

    def advance(self) -> None:
        """Compute one more band of rows of the heatmaps or of the statistics."""
        rows = slice(self._rows_observed, self.heatmaps.rows_done)
        if rows.start == rows.stop:
            self.heatmaps.advance()
            return
        statistics = observe_with_entropy(self._weights.part(queries=rows), received=True)
        self.entropy[rows] = statistics.entropy[0, 0].float().cpu().numpy()
        self.received += statistics.received[0, 0].double().cpu().numpy()
        self._rows_observed = rows.stop


def is_exact(weights: AttentionWeights, window: HeatmapWindow) -> bool:
    """Return whether a window is small enough to be computed on request."""
    return window.cells <= MAX_EXACT_CELLS.get(weights.device.type, MAX_EXACT_CELLS["cpu"])


def band_cells(weights: AttentionWeights) -> int:
    """Return the number of cells to compute per step on the weights' device."""
    return BAND_CELLS.get(weights.device.type, BAND_CELLS["cpu"])


def pool_window(
    weights: AttentionWeights, window: HeatmapWindow, bin_size: BinSize, reduce: Reduce
) -> Float[np.ndarray, "heads rows keys"]:
    """Return the pooled weights in each bin of a window, for all heads.

    `AttentionWeights.pool` makes bins of equal size only if they divide the window. The last, smaller bins are
    therefore pooled separately.
    """
    row, row_end, key, key_end = window
    if bin_size == (1, 1):  # indexing returns the exact weights, bit for bit
        return weights[0, :, row:row_end, key:key_end].float().cpu().numpy()

    def spans(start: int, end: int, step: int) -> list[tuple[int, int]]:
        even = start + (end - start) // step * step
        return [span for span in ((start, even), (even, end)) if span[0] < span[1]]

    blocks = []
    for rows in spans(row, row_end, bin_size.rows):
        line = []
        for keys in spans(key, key_end, bin_size.keys):
            down, across = -(-(rows[1] - rows[0]) // bin_size.rows), -(-(keys[1] - keys[0]) // bin_size.keys)
            line.append(weights.pool(down, across, reduce=reduce, window=(rows, keys))[0].float().cpu().numpy())
        blocks.append(line)
    return np.block(blocks)


def _bin_edges(
    window: HeatmapWindow, bin_size: BinSize
) -> tuple[Int[np.ndarray, " row_edges"], Int[np.ndarray, " key_edges"]]:
    """Return the start of every bin and the end of the last bin, for rows and for keys."""
    row, row_end, key, key_end = window
    rows, keys = np.arange(row, row_end, bin_size.rows), np.arange(key, key_end, bin_size.keys)
    return np.append(rows, row_end), np.append(keys, key_end)
