"""Small maps of all heads of a layer, with what each head does in numbers; of long texts from some rows only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from clearhead.analysis.statistics import HeadStatistics, measure_layer, measure_queries
from clearhead.recording.recording import Stack
from clearhead.weights.indexing import evenly_spaced

SIDE = 128  # bins each way, at most
EXACT = 4096  # tokens; of longer texts ROWS queries stand for all
ROWS = 128


@dataclass(frozen=True, eq=False)
class Thumbnail:
    """The largest weight in each bin, and the head's numbers on this text."""

    values: Float[np.ndarray, "rows keys"]
    statistics: HeadStatistics
    sampled: bool  # from evenly spaced queries, each of them exact


def is_sampled(stack: Stack) -> bool:
    return max(len(stack.queries), len(stack.keys)) > EXACT


@torch.no_grad()
def thumbnails(name: str, stack: Stack, layer: int) -> list[Thumbnail]:
    """One for each head of a layer."""
    weights = stack.layers[layer]
    _, heads, q_len, kv_len = weights.shape
    if is_sampled(stack):
        parts = evenly_spaced(q_len, ROWS)
        rows = torch.cat([torch.arange(q_len)[part] for part in parts])
        found = []
        for head in range(heads):
            own = weights.part(heads=head)
            cells = torch.cat([own[0, 0, part] for part in parts])  # [rows, kv_len]
            pooled = torch.nn.functional.adaptive_max_pool1d(cells, min(SIDE, kv_len))
            statistics = measure_queries(name, stack, own, rows, cells, torch.special.entr(cells).sum(dim=-1))
            found.append(Thumbnail(pooled.cpu().numpy(), statistics, True))
        return found
    pooled = weights.pool(min(SIDE, q_len), min(SIDE, kv_len), reduce="max")[0].cpu().numpy()
    statistics = measure_layer(name, stack, layer)
    return [Thumbnail(pooled[head], statistics[head], False) for head in range(heads)]
