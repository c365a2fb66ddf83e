"""Static heatmaps for notebooks: HTML with inline PNGs and no script, because most front ends remove scripts."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from clearhead._utils.color_scales import log_shades
from clearhead._utils.extras import missing_packages
from clearhead.weights.indexing import evenly_spaced
from clearhead.weights.statistics import entropy_of_rows

MAX_BINS = 96  # per axis of a heatmap
MAX_HEADS = 16  # heads, or layers
MAX_EXACT_CELLS = 2**26  # of all heatmaps together; larger matrices are sampled at SAMPLED_QUERIES queries
SAMPLED_QUERIES = 64
HEATMAP_PIXELS = 96
TABLE_CELL_PIXELS = 14  # one head in a table of means


class LazyMatrix(Protocol):
    """Interface of `AttentionWeights` that is used here."""

    @property
    def shape(self) -> torch.Size: ...
    def __getitem__(self, index: object) -> Tensor: ...
    def part(self, *, batch: Any = ..., heads: Any = ...) -> LazyMatrix: ...
    def pool(self, rows: int, cols: int, *, reduce: Any = ...) -> Tensor: ...
    def entropy(self) -> Tensor: ...
    @property
    def unscaled(self) -> LazyMatrix: ...


@torch.no_grad()
def weights_html(weights: LazyMatrix) -> str | None:
    """Render a thumbnail of each head of the first sequence with its mean entropy; None without the extra `view`."""
    if missing_packages("view"):
        return None
    batch, heads, q_len, kv_len = weights.shape
    label = html.escape(repr(weights))
    if 0 in weights.shape:
        return f"<p>{label}</p>"
    count = min(MAX_HEADS, heads)
    sampled = count * q_len * kv_len > MAX_EXACT_CELLS
    rows = min(SAMPLED_QUERIES, max(1, MAX_EXACT_CELLS // kv_len))
    figures = []
    for head in range(count):
        head_weights = weights.part(batch=0, heads=head)
        if sampled:
            parts = evenly_spaced(q_len, rows)
            cells = torch.cat([head_weights[0, 0, part] for part in parts]).float()  # [rows, kv_len]
            size = (min(MAX_BINS, len(cells)), min(MAX_BINS, kv_len))
            pooled = torch.nn.functional.adaptive_max_pool2d(cells[None], size)[0]
            entropy = entropy_of_rows(head_weights, parts, cells)  # pyright: ignore[reportArgumentType]
        else:
            pooled = head_weights.pool(min(MAX_BINS, q_len), min(MAX_BINS, kv_len), reduce="max")[0, 0].float()
            entropy = head_weights.unscaled.entropy()
        shades = log_shades(pooled.cpu().numpy(), kv_len)
        figures.append(_map(shades, f"head {head} · {float(entropy.mean()):.2f} nats"))
    notes = [
        f"the first {count} of {heads} heads" if count < heads else "",
        f"the first of {batch} sequences" if batch > 1 else "",
        f"from {min(rows, q_len)} evenly spaced queries, each of them exact" if sampled else "",
    ]
    note = "; ".join(filter(None, notes))
    return f"<p>{label}{f'<br>{note}' if note else ''}</p>{_row(figures)}"


def means_html(
    label: str,
    means: Mapping[str, Mapping[str, Mapping[str, list[float]]]],
    heads: Mapping[str, Sequence[int] | None],
) -> str:
    """Render means as one table of shades per statistic, layers × heads.

    Args:
        label: text above the tables.
        means: values of the heads, keyed by stack, layer and statistic.
        heads: indices of the heads of each stack; None for all heads.
    """
    parts = [f"<p>{html.escape(label)}<br>means over queries: layers down, heads across</p>"]
    for stack, layers in means.items():
        names = dict.fromkeys(name for statistics in layers.values() for name in statistics)
        rows = {
            name: {layer: statistics[name] for layer, statistics in layers.items() if name in statistics}
            for name in names
        }
        parts.append(_row(_shades(values, heads[stack], f"{stack} {name}") for name, values in rows.items()))
    return "".join(parts)


def heatmaps_html(
    maps: Mapping[tuple[str, int], Float[np.ndarray, "heads rows keys"]],
    heads: Mapping[tuple[str, int], Sequence[int] | None],
) -> str:
    """Render heatmaps, with shades relative to the largest weight of each head.

    Args:
        maps: maps of the heads, keyed by stack and layer.
        heads: indices of these heads; None for all heads.
    """
    parts = []
    for (stack, layer), maps_of_heads in list(maps.items())[:MAX_HEADS]:
        indices = heads[stack, layer] or range(len(maps_of_heads))
        largest = maps_of_heads.max(axis=(1, 2), keepdims=True, initial=0.0)
        shades = log_shades(maps_of_heads / np.where(largest > 0, largest, 1.0), maps_of_heads.shape[2])[:MAX_HEADS]
        labeled = zip(indices, shades, strict=False)  # shades are those of the first heads
        parts.append(_row(_map(head_shades, f"{stack} {layer}.{head}") for head, head_shades in labeled))
    return "".join(parts)


def _shades(rows: dict[str, list[float]], heads: Sequence[int] | None, title: str) -> str:
    """Render a table of shades, layers × heads, from the smallest value to the largest, with the numbers folded."""
    across = max(map(len, rows.values()))
    values = np.array([[*row, *[np.nan] * (across - len(row))] for row in rows.values()])
    known = values[~np.isnan(values)]  # a mean over no queries is nan
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    shares = (np.nan_to_num(values, nan=low) - low) / ((high - low) or 1.0)
    label = f"{title} by layer and head"
    picture = _image(
        (255 * shares).round().astype(np.uint8), across * TABLE_CELL_PIXELS, len(rows) * TABLE_CELL_PIXELS, label
    )
    head = "".join(f"<th>{index}</th>" for index in heads or range(across))
    body = "".join(
        f"<tr><th>{layer}</th>{''.join(f'<td>{value:.3f}</td>' for value in row)}</tr>" for layer, row in rows.items()
    )
    table = f"<details><summary>in numbers</summary><table><tr><th></th>{head}</tr>{body}</table></details>"
    return _figure(picture, f"{title}: {f'{low:.3g} to {high:.3g}' if known.size else 'no queries'}", table)


def _map(shades: UInt8[np.ndarray, "rows keys"], caption: str) -> str:
    return _figure(
        _image(shades, HEATMAP_PIXELS, HEATMAP_PIXELS, f"attention map, {caption}: queries down, keys across"), caption
    )


def _figure(picture: str, caption: str, more: str = "") -> str:
    style = "display: inline-block; vertical-align: top; margin: 4px 12px 4px 0; font-size: 0.85em"
    return f'<figure style="{style}">{picture}<figcaption>{html.escape(caption)}</figcaption>{more}</figure>'


def _row(figures: Iterable[str]) -> str:
    return f"<div>{''.join(figures)}</div>"


def _image(shades: UInt8[np.ndarray, "rows keys"], width: int, height: int, label: str) -> str:
    from bokeh.palettes import Viridis256
    from PIL import Image

    picture = Image.fromarray(shades).convert("P")  # shades are indices into the palette
    picture.putpalette(b"".join(bytes.fromhex(color[1:]) for color in Viridis256))
    buffer = io.BytesIO()
    picture.save(buffer, "png", optimize=True)
    data = base64.b64encode(buffer.getvalue()).decode()
    size = f'width="{width}" height="{height}" style="image-rendering: pixelated; display: block"'
    return f'<img src="data:image/png;base64,{data}" {size} alt="{html.escape(label)}">'
