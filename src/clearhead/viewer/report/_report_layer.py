"""Data that a report stores for a layer: max and mean heatmaps, profiles, and the top keys of each query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float16, Int
from torch import Tensor

from clearhead._utils.color_scales import visible_shades
from clearhead.analysis import HeadStatistics, measure_layer, measure_queries
from clearhead.ops.statistics import Reduce
from clearhead.recording import Stack
from clearhead.viewer._heatmap import BinSize, HeatmapWindow, pool_window
from clearhead.viewer._thumbnails import is_sampled
from clearhead.weights.indexing import evenly_spaced
from clearhead.weights.matrix import AttentionWeights
from clearhead.weights.statistics import entropy_of_rows, observe_with_entropy

MAX_TOP_KEYS = 8  # stored per query
MAX_STORED_QUERIES = 2048  # queries whose top keys and entropy are stored
MAX_BARS = 2048  # bars of received attention
MAX_SAMPLED_QUERIES = 512  # queries sampled from a long text
MAX_SAMPLED_CELLS = 2**27  # weights of a head in memory: 128 queries of 1,048,576 keys


class SamplingPlan(NamedTuple):
    """Queries, bins and bars that a report stores for every head of a stack."""

    bin_size: BinSize
    query_indices: Int[np.ndarray, " queries"]  # queries whose top keys and entropy are stored
    keys_per_bar: int
    sampled: int  # number of sampled queries, or 0 if all queries are used
    chosen: tuple[int, ...] = ()  # queries that are always stored

    @classmethod
    def from_stack(
        cls, stack: Stack, max_bins: int, max_bars: int = MAX_BARS, chosen: Sequence[int] = ()
    ) -> SamplingPlan:
        """Return the plan for a stack, with heatmaps of at most `max_bins` bins per axis.

        Args:
            stack: the stack.
            max_bins: largest number of bins per axis.
            max_bars: largest number of bars of received attention.
            chosen: queries to store besides the evenly spaced ones.
        """
        q_len, kv_len = len(stack.queries), len(stack.keys)
        sampled = min(MAX_SAMPLED_QUERIES, max(1, MAX_SAMPLED_CELLS // kv_len))
        if is_sampled(stack) and q_len > sampled:
            indices = np.union1d(_even_rows(q_len, sampled), np.array(chosen, np.int64))
            bin_size = BinSize(-(-q_len // min(max_bins, sampled)), -(-kv_len // max_bins))
            # with narrower bars, keys that only skipped queries attend to would show as 0
            return cls(bin_size, indices, -(-kv_len // min(max_bars, sampled)), sampled, tuple(chosen))
        bin_size = BinSize.from_window(_full_window(stack), max_bins)
        indices = np.union1d(_even_indices(q_len, MAX_STORED_QUERIES), np.array(chosen, np.int64))
        return cls(bin_size, indices, -(-kv_len // max_bars), 0, tuple(chosen))

    @property
    def single_cells(self) -> bool:
        """True if every bin is a single cell, so that max and mean are equal."""
        return self.bin_size == (1, 1) and not self.sampled

    def positions(self, queries: int) -> Int[np.ndarray, " positions"]:
        """Return the positions of at most `queries` of the stored queries, evenly spaced, and of the chosen ones."""
        chosen = np.searchsorted(self.query_indices, np.array(self.chosen, np.int64))
        return np.union1d(_even_indices(len(self.query_indices), queries), chosen)

    def subsampled(self, positions: Int[np.ndarray, " positions"]) -> SamplingPlan:
        """Return the plan with some of its queries."""
        return self._replace(query_indices=self.query_indices[positions])


@dataclass(frozen=True, eq=False)
class ReportLayer:
    """Stored data of all heads of a layer."""

    statistics: list[HeadStatistics]
    largest: Float[np.ndarray, "heads rows keys"]  # the largest weight in each bin
    mean: Float[np.ndarray, "heads rows keys"]
    entropy: Float16[np.ndarray, "heads queries"]
    received: Float[np.ndarray, "heads bars"]  # mean over the keys of a bar
    top_keys: Int[np.ndarray, "heads queries top"]
    top_weights: Float16[np.ndarray, "heads queries top"]

    def subsampled(self, positions: Int[np.ndarray, " positions"]) -> ReportLayer:
        """Return the layer with some of its queries."""
        arrays = {name: getattr(self, name)[:, positions] for name in ("entropy", "top_keys", "top_weights")}
        return replace(self, **arrays)

    @property
    def max_received(self) -> Float[np.ndarray, " heads"]:
        """Largest bar of each head. `pack` divides `received` by it, since float16 overflows above 65,504."""
        return self.received.max(axis=1, initial=0.0)

    def pack(self, plan: SamplingPlan, kv_len: int) -> bytes:
        """Return the arrays of all heads, concatenated.

        The order is: `top_keys` (uint16, or uint32 above 65,535 keys); `top_weights`, `entropy` and `received` as a
        share of `max_received` (float16); heatmaps. Single cells are stored in float16, larger bins as shades
        (uint8): `largest`, then `mean`.
        """
        unit = np.where(self.max_received > 0, self.max_received, 1.0)[:, None]
        top_keys = self.top_keys.astype(np.uint16 if kv_len < 2**16 else np.uint32)
        heatmaps = (
            (_as_half(self.largest),)
            if plan.single_cells
            else (visible_shades(self.largest, kv_len), visible_shades(self.mean, kv_len))
        )
        arrays = (top_keys, self.top_weights, self.entropy, (self.received / unit).astype(np.float16), *heatmaps)
        return b"".join(array.tobytes() for array in arrays)


@torch.no_grad()
def summarize_layer(name: str, stack: Stack, layer: int, plan: SamplingPlan) -> ReportLayer:
    """Return the data of one layer, computed from all queries or from those the plan samples."""
    weights = stack.layers[layer]
    if plan.sampled:
        heads = [_sample_head(name, stack, weights.part(heads=head), plan) for head in range(weights.shape[1])]
        return ReportLayer(
            [head.statistics[0] for head in heads],
            *(
                np.concatenate([getattr(head, array) for head in heads])
                for array in ("largest", "mean", "entropy", "received", "top_keys", "top_weights")
            ),
        )
    observed = observe_with_entropy(weights, received=True, top=min(MAX_TOP_KEYS, len(stack.keys)))
    rows = torch.from_numpy(plan.query_indices).to(weights.device)
    largest = pool_window(weights, _full_window(stack), plan.bin_size, "max")
    return ReportLayer(
        measure_layer(name, stack, layer),
        largest,
        largest if plan.single_cells else pool_window(weights, _full_window(stack), plan.bin_size, "mean"),
        _to_float16(observed.entropy[0][:, rows]),
        _pool_keys(observed.received[0], plan.keys_per_bar, "mean"),
        observed.top.keys[0][:, rows].cpu().numpy(),
        _to_float16(observed.top.weights[0][:, rows]),
    )


def _sample_head(name: str, stack: Stack, weights: AttentionWeights, plan: SamplingPlan) -> ReportLayer:
    """Return the data of one head from the sampled queries. Chosen queries do not count in means and statistics."""
    q_len, kv_len = len(stack.queries), len(stack.keys)
    even = _even_rows(q_len, plan.sampled)
    added = np.setdiff1d(plan.query_indices, even)
    parts = evenly_spaced(q_len, plan.sampled), [slice(query, query + 1) for query in added.tolist()]
    order = np.argsort(np.concatenate([even, added]))
    cells, more = (
        torch.cat([weights[0, 0, part] for part in slices] or [weights[0, 0, :0]]).float() for slices in parts
    )
    entropies = [entropy_of_rows(weights, slices, rows) for slices, rows in zip(parts, (cells, more), strict=True)]
    tops = [rows.topk(min(MAX_TOP_KEYS, kv_len)) for rows in (cells, more)]
    largest = np.concatenate([_pool_keys(rows, plan.bin_size.keys, "max") for rows in (cells, more)])[order]
    mean = _pool_keys(cells, plan.bin_size.keys, "mean")
    bins = np.arange(0, q_len, plan.bin_size.rows)
    # only the last bin may lack a sampled query; it then repeats the previous row
    starts, even_starts = (np.searchsorted(rows, bins).clip(max=len(rows) - 1) for rows in (plan.query_indices, even))
    counts = np.diff(np.append(even_starts, len(even))).clip(min=1)[:, None]
    received = cells.sum(dim=0, keepdim=True) * (q_len / len(even))
    return ReportLayer(
        [measure_queries(name, stack, weights, torch.from_numpy(even), cells, entropies[0])],
        np.maximum.reduceat(largest, starts, axis=0)[None],
        (np.add.reduceat(mean, even_starts, axis=0) / counts)[None],
        _to_float16(torch.cat(entropies)[None])[:, order],
        _pool_keys(received, plan.keys_per_bar, "mean"),
        torch.cat([top.indices for top in tops])[None].cpu().numpy()[:, order],
        _to_float16(torch.cat([top.values for top in tops])[None])[:, order],
    )


def _even_rows(length: int, count: int) -> Int[np.ndarray, " rows"]:
    """Return the rows of `evenly_spaced` as indices."""
    return np.concatenate([np.arange(length)[part] for part in evenly_spaced(length, count)])


def _as_half(weights: Float[np.ndarray, "heads rows keys"]) -> Float16[np.ndarray, "heads rows keys"]:
    """Round to float16. Weights that would underflow become the smallest subnormal, since 0 means masked."""
    half = weights.astype(np.float16)
    return np.where((weights > 0) & (half == 0), np.finfo(np.float16).smallest_subnormal, half).astype(np.float16)


def _full_window(stack: Stack) -> HeatmapWindow:
    return HeatmapWindow(0, len(stack.queries), 0, len(stack.keys))


def _even_indices(length: int, count: int) -> Int[np.ndarray, " indices"]:
    """Return `count` evenly spaced indices, or all indices if `length` is at most `count`."""
    return np.arange(length) if length <= count else ((np.arange(count) + 0.5) * length / count).astype(np.int64)


def _to_float16(values: Float[Tensor, "*shape"]) -> Float16[np.ndarray, "*shape"]:
    return values.to(torch.float16).cpu().numpy()


def _pool_keys(values: Float[Tensor, "rows keys"], width: int, reduce: Reduce) -> Float[np.ndarray, "rows bins"]:
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
