"""Thumbnail heatmaps and statistics of all heads of a layer. Long texts use sampled queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import adaptive_max_pool1d, adaptive_max_pool2d

from clearhead.analysis import HeadStatistics, measure_layer, measure_queries
from clearhead.recording import Stack
from clearhead.weights.indexing import evenly_spaced
from clearhead.weights.matrix import AttentionWeights
from clearhead.weights.statistics import entropy_of_rows

MAX_THUMBNAIL_BINS = 128  # bins per axis
MAX_EXACT_TOKENS = 4096  # longer texts are sampled
SAMPLED_QUERIES = 128
MAX_DENSE_CELLS = 2**23  # weights in memory at a time
ROWS_PER_STRIP = 128  # queries of a matrix that are computed at a time, which fit into the cache of a CPU
END_QUERIES = 8  # queries at either end of a long text that are drawn besides the sample


@dataclass(frozen=True, eq=False)
class Thumbnail:
    """Largest weight in each bin, and the head's statistics on this text."""

    values: Float[np.ndarray, "rows keys"]
    statistics: HeadStatistics
    sampled: bool  # computed from evenly spaced queries; each row is exact


def is_sampled(stack: Stack) -> bool:
    """Return whether the stack's text is so long that only some of its queries are used."""
    return max(len(stack.queries), len(stack.keys)) > MAX_EXACT_TOKENS


@torch.no_grad()
def layer_thumbnails(name: str, stack: Stack, layer: int) -> list[Thumbnail]:
    """Return the thumbnail of each head of a layer."""
    weights = stack.layers[layer]
    if not is_sampled(stack):
        thumbnails: list[Thumbnail] = []
        for part, cells in _dense_parts(weights):
            statistics = measure_layer(name, Stack((part,), stack.queries, stack.keys), 0, cells)
            thumbnails += [Thumbnail(*head, False) for head in zip(_pooled(cells), statistics, strict=True)]
        return thumbnails
    parts = evenly_spaced(weights.shape[2], SAMPLED_QUERIES)
    rows = torch.cat([torch.arange(weights.shape[2])[part] for part in parts])
    thumbnails = []
    for head in range(weights.shape[1]):
        head_weights = weights.part(heads=head)
        cells = _sampled_rows(head_weights, parts)
        entropy = entropy_of_rows(head_weights, parts, cells)
        statistics = measure_queries(name, stack, head_weights, rows, cells, entropy)
        thumbnails.append(Thumbnail(_pooled_sample(head_weights, cells), statistics, True))
    return thumbnails


@torch.no_grad()
def redraw_thumbnails(thumbnails: list[Thumbnail], stack: Stack, weights: AttentionWeights) -> list[Thumbnail]:
    """Return the thumbnails of a layer with the values of another matrix, such as one with hidden keys.

    Statistics stay the same.
    """
    if not is_sampled(stack):
        values = [head for _, cells in _dense_parts(weights) for head in _pooled(cells)]
        return [replace(thumbnail, values=values[head]) for head, thumbnail in enumerate(thumbnails)]
    parts = evenly_spaced(weights.shape[2], SAMPLED_QUERIES)
    heads = (weights.part(heads=head) for head in range(weights.shape[1]))
    return [
        replace(thumbnail, values=_pooled_sample(head_weights, _sampled_rows(head_weights, parts)))
        for thumbnail, head_weights in zip(thumbnails, heads, strict=True)
    ]


def _dense_parts(
    weights: AttentionWeights,
) -> Iterator[tuple[AttentionWeights, Float[Tensor, "heads q_len kv_len"]]]:
    """Yield some heads at a time with their weights in memory, which takes fewer passes than a lazy matrix."""
    _, heads, q_len, kv_len = weights.shape
    step = max(1, MAX_DENSE_CELLS // (q_len * kv_len))
    for start in range(0, heads, step):
        part = weights if step >= heads else weights.part(heads=slice(start, start + step))
        yield part, _dense(part)


def _dense(weights: AttentionWeights) -> Float[Tensor, "heads q_len kv_len"]:
    """Return all weights, computed without the keys after the last visible one, which are half of a causal matrix."""
    lowered = weights.lowered_mask
    if lowered.ranges is None or lowered.dense is not None or weights.device.type != "cpu":
        return weights.dense()[0].float()
    last = lowered.ranges[:, 1, 0].amax(dim=0)  # [q_len], the end of each query's keys
    cells = torch.zeros(weights.shape[1:])
    for start in range(0, weights.shape[2], ROWS_PER_STRIP):
        rows = slice(start, start + ROWS_PER_STRIP)
        end = int(last[rows].max())
        if end:
            cells[:, rows, :end] = weights[0, :, rows, :end]
    return cells


def _pooled(cells: Float[Tensor, "heads q_len kv_len"]) -> Float[np.ndarray, "heads rows keys"]:
    """Return the largest weight in each bin, from all queries."""
    rows, columns = (min(MAX_THUMBNAIL_BINS, length) for length in cells.shape[1:])
    return adaptive_max_pool2d(cells, (rows, columns)).cpu().numpy()


def _sampled_rows(weights: AttentionWeights, parts: Sequence[slice]) -> Float[Tensor, "rows kv_len"]:
    return torch.cat([weights[0, 0, part] for part in parts])


def _pooled_sample(weights: AttentionWeights, cells: Float[Tensor, "rows kv_len"]) -> Float[np.ndarray, "rows keys"]:
    """Return the largest weight in each bin, from sampled rows and from the rows at either end of the text.

    The last queries are often the question that a text ends with, and a sample leaves them out.
    """
    _, _, q_len, kv_len = weights.shape
    columns = min(MAX_THUMBNAIL_BINS, kv_len)
    pooled = _pooled_keys(cells, columns)
    if q_len > len(cells):
        for end in (slice(0, END_QUERIES), slice(q_len - END_QUERIES, q_len)):
            bins = np.arange(q_len)[end] * len(cells) // q_len
            np.maximum.at(pooled, bins, _pooled_keys(weights[0, 0, end], columns))
    return pooled


def _pooled_keys(cells: Float[Tensor, "rows kv_len"], columns: int) -> Float[np.ndarray, "rows keys"]:
    return adaptive_max_pool1d(cells, columns).float().cpu().numpy()
