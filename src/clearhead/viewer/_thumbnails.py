"""Thumbnail heatmaps and statistics of all heads of a layer. Long texts use sampled queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from clearhead.analysis import HeadStatistics, measure_layer, measure_queries
from clearhead.recording import Stack
from clearhead.weights.indexing import evenly_spaced
from clearhead.weights.statistics import entropy_of_rows

MAX_THUMBNAIL_BINS = 128  # bins per axis
MAX_EXACT_TOKENS = 4096  # longer texts are sampled
SAMPLED_QUERIES = 128


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
    _, heads, q_len, kv_len = weights.shape
    if is_sampled(stack):
        parts = evenly_spaced(q_len, SAMPLED_QUERIES)
        rows = torch.cat([torch.arange(q_len)[part] for part in parts])
        thumbnails = []
        for head in range(heads):
            head_weights = weights.part(heads=head)
            cells = torch.cat([head_weights[0, 0, part] for part in parts])  # [rows, kv_len]
            pooled = torch.nn.functional.adaptive_max_pool1d(cells, min(MAX_THUMBNAIL_BINS, kv_len))
            entropy = entropy_of_rows(head_weights, parts, cells)
            statistics = measure_queries(name, stack, head_weights, rows, cells, entropy)
            thumbnails.append(Thumbnail(pooled.cpu().numpy(), statistics, True))
        return thumbnails
    down, across = min(MAX_THUMBNAIL_BINS, q_len), min(MAX_THUMBNAIL_BINS, kv_len)
    pooled = weights.pool(down, across, reduce="max")[0].cpu().numpy()
    statistics = measure_layer(name, stack, layer)
    return [Thumbnail(pooled[head], statistics[head], False) for head in range(heads)]
