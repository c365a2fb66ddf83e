"""Data that a report stores for a layer: heatmaps, profiles, top keys of each query, and sizes of the values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float16, Int
from torch import Tensor

from clearhead.analysis import HeadStatistics, measure_layer, measure_queries
from clearhead.recording import Stack
from clearhead.viewer._heatmap import BinSize, HeatmapWindow
from clearhead.viewer._thumbnails import is_sampled
from clearhead.viewer.report._stored_maps import StoredMaps, hidden_bins, pool_keys, pooled_maps, sampled_maps
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
    hidden: tuple[int, ...] = ()  # sink keys

    @classmethod
    def from_stack(
        cls,
        stack: Stack,
        max_bins: int,
        max_bars: int = MAX_BARS,
        chosen: Sequence[int] = (),
        hidden: Sequence[int] = (),
    ) -> SamplingPlan:
        """Return the plan for a stack, with heatmaps of at most `max_bins` bins per axis.

        Args:
            stack: the stack.
            max_bins: largest number of bins per axis.
            max_bars: largest number of bars of received attention.
            chosen: queries to store besides the evenly spaced ones.
            hidden: sink keys, which the page can hide.
        """
        q_len, kv_len = len(stack.queries), len(stack.keys)
        sampled = min(MAX_SAMPLED_QUERIES, max(1, MAX_SAMPLED_CELLS // kv_len))
        if is_sampled(stack) and q_len > sampled:
            indices = np.union1d(_even_rows(q_len, sampled), np.array(chosen, np.int64))
            bin_size = BinSize(-(-q_len // min(max_bins, sampled)), -(-kv_len // max_bins))
            # with narrower bars, keys that only skipped queries attend to would show as 0
            width = -(-kv_len // min(max_bars, sampled))
            return cls(bin_size, indices, width, sampled, tuple(chosen), tuple(hidden))
        bin_size = BinSize.from_window(_full_window(stack), max_bins)
        indices = np.union1d(_even_indices(q_len, MAX_STORED_QUERIES), np.array(chosen, np.int64))
        return cls(bin_size, indices, -(-kv_len // max_bars), 0, tuple(chosen), tuple(hidden))

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
    maps: StoredMaps
    entropy: Float16[np.ndarray, "heads queries"]
    received: Float[np.ndarray, "heads bars"]  # mean over the keys of a bar
    hidden_received: Float[np.ndarray, "heads hidden_bars"]  # bars with sink keys, whose attention is set to 0
    top_keys: Int[np.ndarray, "heads queries top"]
    top_weights: Float16[np.ndarray, "heads queries top"]
    shares: Float[np.ndarray, "heads kv_len"] | None = None  # ‖v W_O‖ relative to the head's largest, if known
    weighted_maps: StoredMaps | None = None  # value-weighted; None if unknown, or if every bin is a single cell

    def subsampled(self, positions: Int[np.ndarray, " positions"]) -> ReportLayer:
        """Return the layer with some of its queries."""
        arrays = {name: getattr(self, name)[:, positions] for name in ("entropy", "top_keys", "top_weights")}
        return replace(self, **arrays)

    @property
    def max_received(self) -> Float[np.ndarray, " heads"]:
        """Largest bar of each head. `pack` divides `received` by it, since float16 overflows above 65,504."""
        return self.received.max(axis=1, initial=0.0)

    def pack(self, plan: SamplingPlan, kv_len: int, *, weighted: bool = False) -> bytes:
        """Return the arrays of all heads, concatenated.

        The order is: `top_keys` (uint16, or uint32 above 65,535 keys); `top_weights`, `entropy`, `received` and
        `hidden_received` as a share of `max_received`, and `shares` if `weighted` (float16); heatmaps.

        Single cells are stored in float16, larger bins as the shades of `maps` (uint8). Before these are the shades of
        `weighted_maps` if `weighted`, as differences from those of `maps` modulo 256, which compress well.
        """
        unit = np.where(self.max_received > 0, self.max_received, 1.0)[:, None]
        profiles = [self.top_weights, self.entropy, *(bars / unit for bars in (self.received, self.hidden_received))]
        if weighted and self.shares is not None:
            profiles.append(_as_half(self.shares))
        maps = [_as_half(self.maps.largest)] if plan.single_cells else self.maps.shades(kv_len)
        if weighted and self.weighted_maps is not None:
            maps = [np.subtract(*pair) for pair in zip(self.weighted_maps.shades(kv_len), maps, strict=True)] + maps
        top_keys = self.top_keys.astype(np.uint16 if kv_len < 2**16 else np.uint32)
        arrays = (top_keys, *(profile.astype(np.float16) for profile in profiles), *maps)
        return b"".join(array.tobytes() for array in arrays)


@torch.no_grad()
def summarize_layer(
    name: str,
    stack: Stack,
    layer: int,
    plan: SamplingPlan,
    shares: Float[Tensor, "heads kv_len"] | None = None,
) -> ReportLayer:
    """Return the data of one layer, computed from all queries or from those the plan samples.

    `shares` are the sizes of the values relative to the head's largest, for value-weighted maps.
    """
    weights = stack.layers[layer]
    if plan.sampled:
        per_head = [None] * weights.shape[1] if shares is None else shares.unbind()
        heads = [
            _sample_head(name, stack, weights.part(heads=head), plan, head_shares)
            for head, head_shares in enumerate(per_head)
        ]
        return _concatenated(heads)
    observed = observe_with_entropy(weights, received=True, top=min(MAX_TOP_KEYS, len(stack.keys)))
    rows = torch.from_numpy(plan.query_indices).to(weights.device)
    weighted_maps = None
    if shares is not None and not plan.single_cells:
        weighted_maps = pooled_maps(weights.scaled(keys=shares), plan.bin_size, plan.hidden)
    return ReportLayer(
        measure_layer(name, stack, layer),
        pooled_maps(weights, plan.bin_size, plan.hidden),
        _to_float16(observed.entropy[0][:, rows]),
        *_received_bars(observed.received[0], plan),
        observed.top.keys[0][:, rows].cpu().numpy(),
        _to_float16(observed.top.weights[0][:, rows]),
        None if shares is None else shares.float().cpu().numpy(),
        weighted_maps,
    )


def _concatenated(heads: Sequence[ReportLayer]) -> ReportLayer:
    """Return the data of several heads as one layer."""

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(head, name) for head in heads])

    def joined_maps(name: str) -> StoredMaps:
        return StoredMaps.concatenated([getattr(head, name) for head in heads])

    has_shares = heads[0].shares is not None
    return ReportLayer(
        [head.statistics[0] for head in heads],
        joined_maps("maps"),
        joined("entropy"),
        joined("received"),
        joined("hidden_received"),
        joined("top_keys"),
        joined("top_weights"),
        joined("shares") if has_shares else None,
        joined_maps("weighted_maps") if has_shares else None,
    )


def _received_bars(
    received: Float[Tensor, "heads kv_len"], plan: SamplingPlan
) -> tuple[Float[np.ndarray, "heads bars"], Float[np.ndarray, "heads hidden_bars"]]:
    """Return the mean received attention of each bar, and of the bars with sink keys without these keys."""
    visible = received.clone()
    visible[:, list(plan.hidden)] = 0
    bars, visible_bars = (pool_keys(values, plan.keys_per_bar, "mean") for values in (received, visible))
    return bars, visible_bars[:, hidden_bins(plan.hidden, plan.keys_per_bar)]


def _sample_head(
    name: str,
    stack: Stack,
    weights: AttentionWeights,
    plan: SamplingPlan,
    shares: Float[Tensor, " kv_len"] | None,
) -> ReportLayer:
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
    received = cells.sum(dim=0, keepdim=True) * (q_len / len(even))
    statistics = measure_queries(name, stack, weights, torch.from_numpy(even), cells, entropies[0])
    sampled = ((cells, more), (even, added), q_len, plan.bin_size, plan.hidden)
    maps, weighted_maps = sampled_maps(*sampled), None
    if shares is not None:
        for rows in (cells, more):  # in place: a second copy of 128 queries of a million keys takes 512 MiB
            rows *= shares
        weighted_maps = sampled_maps(*sampled)
    return ReportLayer(
        [statistics],
        maps,
        _to_float16(torch.cat(entropies)[None])[:, order],
        *_received_bars(received, plan),
        torch.cat([top.indices for top in tops])[None].cpu().numpy()[:, order],
        _to_float16(torch.cat([top.values for top in tops])[None])[:, order],
        None if shares is None else shares[None].float().cpu().numpy(),
        weighted_maps,
    )


def _even_rows(length: int, count: int) -> Int[np.ndarray, " rows"]:
    """Return the rows of `evenly_spaced` as indices."""
    return np.concatenate([np.arange(length)[part] for part in evenly_spaced(length, count)])


def _as_half(weights: Float[np.ndarray, "*shape"]) -> Float16[np.ndarray, "*shape"]:
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
