"""Heatmaps that a report stores for the heads of a layer, with and without sink keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from clearhead._utils.color_scales import visible_shades
from clearhead.ops.statistics import Reduce
from clearhead.viewer._heatmap import BinSize, HeatmapWindow, pool_window
from clearhead.weights.matrix import AttentionWeights


@dataclass(frozen=True, eq=False)
class StoredMaps:
    """Largest and mean weight in each bin, for all heads of a layer.

    `hidden_largest` and `hidden_mean` are the columns of bins that contain sink keys, with the weights of these keys
    set to 0. All other columns stay the same when sinks are hidden.
    """

    largest: Float[np.ndarray, "heads rows keys"]
    mean: Float[np.ndarray, "heads rows keys"]
    hidden_largest: Float[np.ndarray, "heads rows hidden_bins"]
    hidden_mean: Float[np.ndarray, "heads rows hidden_bins"]

    @classmethod
    def concatenated(cls, heads: Sequence[StoredMaps]) -> StoredMaps:
        """Return the maps of several heads as one."""
        names = ("largest", "mean", "hidden_largest", "hidden_mean")
        return cls(*(np.concatenate([getattr(head, name) for head in heads]) for name in names))

    def shades(self, kv_len: int) -> list[UInt8[np.ndarray, "heads rows bins"]]:
        """Return the maps as shades, in the order of a packed layer."""
        maps = (self.hidden_largest, self.hidden_mean, self.largest, self.mean)
        return [visible_shades(values, kv_len) for values in maps]


def pooled_maps(weights: AttentionWeights, bin_size: BinSize, hidden: Sequence[int]) -> StoredMaps:
    """Return the maps of all heads, computed from all queries."""
    _, _, q_len, kv_len = weights.shape
    whole = HeatmapWindow(0, q_len, 0, kv_len)
    if bin_size == (1, 1):
        cells = pool_window(weights, whole, bin_size, "max")
        nothing = np.zeros_like(cells[:, :, : len(hidden)])
        return StoredMaps(cells, cells, nothing, nothing)
    visible = weights.hiding(hidden) if hidden else weights
    starts = (hidden_bins(hidden, bin_size.keys) * bin_size.keys).tolist()
    columns = [HeatmapWindow(0, q_len, start, min(kv_len, start + bin_size.keys)) for start in starts]
    largest, mean = (pool_window(weights, whole, bin_size, reduce) for reduce in ("max", "mean"))
    hidden_largest, hidden_mean = (
        np.concatenate(
            [largest[:, :, :0], *(pool_window(visible, column, bin_size, reduce) for column in columns)], axis=2
        )
        for reduce in ("max", "mean")
    )
    return StoredMaps(largest, mean, hidden_largest, hidden_mean)


def sampled_maps(
    samples: tuple[Float[Tensor, "rows kv_len"], Float[Tensor, "more kv_len"]],
    indices: tuple[Int[np.ndarray, " rows"], Int[np.ndarray, " more"]],
    q_len: int,
    bin_size: BinSize,
    hidden: Sequence[int],
) -> StoredMaps:
    """Return the maps of one head, computed from sampled queries.

    Args:
        samples: weights of evenly spaced queries, and of more queries, which do not count in means.
        indices: these queries.
        q_len: number of all queries.
        bin_size: size of the bins.
        hidden: sink keys.
    """
    order = np.argsort(np.concatenate(indices))
    rows = np.concatenate(indices)[order]
    bins = np.arange(0, q_len, bin_size.rows)
    # only the last bin may lack a sampled query; it then repeats the previous row
    starts, even_starts = (np.searchsorted(each, bins).clip(max=len(each) - 1) for each in (rows, indices[0]))
    counts = np.diff(np.append(even_starts, len(indices[0]))).clip(min=1)[:, None]

    def pooled_rows(
        largest: Float[np.ndarray, "queries bins"], mean: Float[np.ndarray, "rows bins"]
    ) -> tuple[Float[np.ndarray, "1 rows bins"], Float[np.ndarray, "1 rows bins"]]:
        return (
            np.maximum.reduceat(largest[order], starts, axis=0)[None],
            (np.add.reduceat(mean, even_starts, axis=0) / counts)[None],
        )

    largest, mean = pooled_rows(
        np.concatenate([pool_keys(cells, bin_size.keys, "max") for cells in samples]),
        pool_keys(samples[0], bin_size.keys, "mean"),
    )
    columns = [
        [_visible_column(cells, bin_index * bin_size.keys, bin_size.keys, hidden) for cells in samples]
        for bin_index in hidden_bins(hidden, bin_size.keys).tolist()
    ]
    empty = np.zeros((len(rows), 0), np.float32)
    hidden_largest, hidden_mean = pooled_rows(
        np.concatenate([empty, *(_reduced_rows(column, "max") for column in columns)], axis=1),
        np.concatenate([empty[: len(indices[0])], *(_reduced_rows(column[:1], "mean") for column in columns)], axis=1),
    )
    return StoredMaps(largest, mean, hidden_largest, hidden_mean)


def hidden_bins(hidden: Sequence[int], width: int) -> Int[np.ndarray, " hidden_bins"]:
    """Return the bins of `width` keys that contain sink keys, in ascending order."""
    return np.unique(np.array(hidden, np.int64) // width)


def pool_keys(values: Float[Tensor, "rows keys"], width: int, reduce: Reduce) -> Float[np.ndarray, "rows bins"]:
    """Pool bins of `width` columns. The last bin may have fewer."""
    kv_len = values.shape[1]
    bins = -(-kv_len // width)
    missing = bins * width - kv_len
    grouped = (torch.nn.functional.pad(values, (0, missing)) if missing else values).unflatten(1, (bins, width))
    if reduce == "max":
        return grouped.amax(dim=-1).cpu().numpy()  # padding with 0 is safe: weights are 0 or more
    counts = torch.full((bins,), width, dtype=values.dtype, device=values.device)
    counts[-1] = kv_len - (bins - 1) * width
    return (grouped.sum(dim=-1) / counts).cpu().numpy()


def _visible_column(
    cells: Float[Tensor, "rows kv_len"], start: int, width: int, hidden: Sequence[int]
) -> Float[Tensor, "rows width"]:
    """Return a copy of the columns of one bin with sink keys set to 0."""
    column = cells[:, start : start + width].clone()
    column[:, [key - start for key in hidden if start <= key < start + width]] = 0
    return column


def _reduced_rows(parts: Sequence[Float[Tensor, "rows width"]], reduce: Reduce) -> Float[np.ndarray, "rows 1"]:
    reduced = [part.amax(dim=1) if reduce == "max" else part.mean(dim=1) for part in parts]
    return torch.cat(reduced)[:, None].cpu().numpy()
