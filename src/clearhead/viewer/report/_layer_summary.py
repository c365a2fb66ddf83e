"""What a report keeps of a layer: each head's map by max and mean, its profiles, and where each query looks most."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float16, Int, UInt8
from torch import Tensor

from clearhead._utils.color_scales import log_shades
from clearhead.analysis.statistics import HeadStatistics, measure_layer, measure_queries
from clearhead.recording.recording import Stack
from clearhead.viewer._heatmap import BinSize, Window, binned
from clearhead.viewer._thumbnails import is_sampled
from clearhead.weights.indexing import evenly_spaced
from clearhead.weights.matrix import AttentionWeights

TOP = 8  # keys that are kept of a query
SAMPLED = 512  # queries that stand for all of a long text, at most
CELLS = 2**27  # weights of a head that are looked at together, at most: with 1,048,576 keys 128 queries
KEPT = 2048  # queries whose largest weights and entropy are kept, at most; likewise bars of what keys receive


class Outline(NamedTuple):
    """What is kept of every head of a stack."""

    bins: BinSize
    places: Int[np.ndarray, " queries"]  # whose largest weights and entropy are kept
    bar: int  # keys that share a bar of what is received
    sampled: int  # how many queries, each of them exact, everything is from; 0 where it is from all

    @property
    def cells(self) -> bool:
        """Whether every bin is a single cell, so that max and mean are the same."""
        return self.bins == (1, 1) and not self.sampled

    def thinned(self, queries: int) -> Outline:
        """The same with the data of fewer queries."""
        return self._replace(places=self.places[_even(len(self.places), queries)])


@dataclass(frozen=True, eq=False)
class Digest:
    """All heads of a layer."""

    statistics: list[HeadStatistics]
    largest: Float[np.ndarray, "heads rows keys"]  # the largest weight in each bin
    mean: Float[np.ndarray, "heads rows keys"]
    entropy: Float16[np.ndarray, "heads queries"]
    received: Float[np.ndarray, "heads bars"]  # mean of the keys of a bar
    top_keys: Int[np.ndarray, "heads queries top"]
    top_weights: Float16[np.ndarray, "heads queries top"]

    def thinned(self, queries: int) -> Digest:
        """The same with the data of fewer queries, as `Outline.thinned` chooses them."""
        kept = _even(self.entropy.shape[1], queries)
        own = {name: getattr(self, name)[:, kept] for name in ("entropy", "top_keys", "top_weights")}
        return replace(self, **own)

    @property
    def most(self) -> Float[np.ndarray, " heads"]:
        """What the bar that receives most receives: the unit of `packed`, since a float16 ends at 65,504."""
        return self.received.max(axis=1, initial=0.0)

    def packed(self, outline: Outline, keys: int) -> bytes:
        """Its arrays one after the other, each with all heads.

        top_keys (uint16, or uint32 above 65,535 keys), top_weights, entropy, received as shares of `most` (float16),
        then maps: single cells in float16, else largest, then mean, as shades.
        """
        unit = np.where(self.most > 0, self.most, 1.0)[:, None]
        numbers = self.top_keys.astype(np.uint16 if keys < 2**16 else np.uint32)
        maps = (_cells(self.largest),) if outline.cells else (_shades(self.largest, keys), _shades(self.mean, keys))
        parts = (numbers, self.top_weights, self.entropy, (self.received / unit).astype(np.float16), *maps)
        return b"".join(part.tobytes() for part in parts)


def outline(stack: Stack, side: int, bars: int = KEPT) -> Outline:
    """What to keep of a stack, in maps of at most `side` bins each way and so many bars of what keys receive."""
    queries, keys = len(stack.queries), len(stack.keys)
    most = min(SAMPLED, max(1, CELLS // keys))
    if is_sampled(stack) and queries > most:
        places = np.concatenate([np.arange(queries)[part] for part in evenly_spaced(queries, most)])
        bins = BinSize(-(-queries // min(side, most)), -(-keys // side))
        # keys between those that sampled queries look at would seem to receive nothing
        return Outline(bins, places, -(-keys // min(bars, most)), most)
    return Outline(BinSize.over(_all(stack), side), _even(queries, KEPT), -(-keys // bars), 0)


@torch.no_grad()
def digest(name: str, stack: Stack, layer: int, kept: Outline) -> Digest:
    """Of one layer, with maps and statistics of all its queries, or of those that stand for them."""
    weights = stack.layers[layer]
    if kept.sampled:
        heads = [_sampled(name, stack, weights.part(heads=head), kept) for head in range(weights.shape[1])]
        return Digest(
            [own.statistics[0] for own in heads],
            *(
                np.concatenate([getattr(own, part) for own in heads])
                for part in ("largest", "mean", "entropy", "received", "top_keys", "top_weights")
            ),
        )
    seen = weights.observe(entropy=True, received=True, top=min(TOP, len(stack.keys)))
    assert seen.entropy is not None
    assert seen.received is not None
    assert seen.top is not None
    rows = torch.from_numpy(kept.places).to(weights.device)
    largest = binned(weights, _all(stack), kept.bins, "max")
    statistics = measure_layer(name, stack, layer)
    return Digest(
        statistics,
        largest,
        largest if kept.cells else binned(weights, _all(stack), kept.bins, "mean"),
        _half(seen.entropy[0][:, rows]),
        _bars(seen.received[0], kept.bar),
        seen.top.keys[0][:, rows].cpu().numpy(),
        _half(seen.top.weights[0][:, rows]),
    )


def _sampled(name: str, stack: Stack, own: AttentionWeights, kept: Outline) -> Digest:
    """One head from the queries that are kept."""
    rows = torch.from_numpy(kept.places)
    queries, keys = len(stack.queries), len(stack.keys)
    cells = torch.cat([own[0, 0, part] for part in evenly_spaced(queries, len(rows))]).float()
    top = cells.topk(min(TOP, keys))
    across = {reduce: _pooled_keys(cells, kept.bins.keys, reduce) for reduce in ("max", "mean")}
    # every bin has queries of its own but for the last, which may be short of one and then takes its neighbour's
    starts = np.searchsorted(kept.places, np.arange(0, queries, kept.bins.rows)).clip(max=len(rows) - 1)
    counts = np.diff(np.append(starts, len(rows))).clip(min=1)[:, None]
    received = cells.sum(dim=0, keepdim=True) * (queries / len(rows))
    entropy = torch.special.entr(cells).sum(dim=-1)
    return Digest(
        [measure_queries(name, stack, own, rows, cells, entropy)],
        np.maximum.reduceat(across["max"], starts, axis=0)[None],
        (np.add.reduceat(across["mean"], starts, axis=0) / counts)[None],
        _half(entropy[None]),
        _bars(received, kept.bar),
        top.indices[None].cpu().numpy(),
        _half(top.values[None]),
    )


def _cells(weights: Float[np.ndarray, "heads rows keys"]) -> Float16[np.ndarray, "heads rows keys"]:
    """A weight that is too small for a float16 becomes the smallest one, for 0 is where a mask hides a key."""
    half = weights.astype(np.float16)
    return np.where((weights > 0) & (half == 0), np.finfo(np.float16).smallest_subnormal, half).astype(np.float16)


def _shades(weights: Float[np.ndarray, "heads rows keys"], keys: int) -> UInt8[np.ndarray, "heads rows keys"]:
    """From 1 to 255 on a logarithmic scale; 0 for a weight of 0, as where a mask hides a key."""
    return np.where(weights > 0, np.maximum(log_shades(weights, keys), 1), 0).astype(np.uint8)


def _all(stack: Stack) -> Window:
    return Window(0, len(stack.queries), 0, len(stack.keys))


def _even(length: int, count: int) -> Int[np.ndarray, " kept"]:
    """`count` places, spread evenly; all of them where there are no more."""
    return np.arange(length) if length <= count else ((np.arange(count) + 0.5) * length / count).astype(np.int64)


def _half(values: Float[Tensor, "*shape"]) -> Float16[np.ndarray, "*shape"]:
    return values.to(torch.float16).cpu().numpy()


def _bars(received: Float[Tensor, "heads keys"], width: int) -> Float[np.ndarray, "heads bars"]:
    return _pooled_keys(received, width, "mean")


def _pooled_keys(values: Float[Tensor, "rows keys"], width: int, reduce: str) -> Float[np.ndarray, "rows bins"]:
    """Bins of `width` columns; the last may have fewer."""
    keys = values.shape[1]
    bins = -(-keys // width)
    short = bins * width - keys
    whole = (torch.nn.functional.pad(values, (0, short)) if short else values).unflatten(1, (bins, width))
    if reduce == "max":
        return whole.amax(dim=-1).cpu().numpy()  # weights are 0 or more
    counts = torch.full((bins,), width, dtype=values.dtype, device=values.device)
    counts[-1] = keys - (bins - 1) * width
    return (whole.sum(dim=-1) / counts).cpu().numpy()
