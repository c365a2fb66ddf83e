"""Matplotlib figures for papers (extra `plot`): one head, all heads of a stack, an alignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from clearhead._utils.checks import describe
from clearhead._utils.color_scales import weight_floor
from clearhead._utils.text import short_token
from clearhead.ops.statistics import Reduce
from clearhead.plot._fonts import drawable
from clearhead.plot._pyplot import load_pyplot
from clearhead.plot.pictures import head_of
from clearhead.recording import Address, Recording, Stack, Tokens
from clearhead.recording.row_labels import LABEL_COLUMNS, axis_title, row_label
from clearhead.weights.matrix import AttentionWeights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AxisTokens = Tokens | Sequence[str]
HeadTokens = Stack | AxisTokens | tuple[AxisTokens, AxisTokens]
MAX_FIGURE_BINS = 512  # bins each way of a head; larger matrices are pooled
MAX_GRID_BINS = 128  # bins each way of a head in a grid of heads
MAX_AXIS_TOKENS = 60  # longer axes are labeled with indices
MASKED_COLOR = "#e9ebf0"  # cells with a weight of 0


def plot_head(
    weights: AttentionWeights | Recording,
    head: int | Address | str,
    tokens: HeadTokens | None = None,
    ax: Axes | None = None,
    *,
    reduce: Reduce = "max",
    log: bool = True,
    cmap: str = "viridis",
) -> Axes:
    """Draw the attention weights of one head as a heatmap: a row per query, a column per key.

        stack = recording["decoder"]
        plot_head(stack.layers[3], 5, stack).figure.savefig("head.pdf")
        plot_head(recording, ("decoder", 3, 5)).figure.savefig("head.pdf")

    Args:
        weights: attention weights of a layer; the first text of the batch is drawn. Or a recording.
        head: index of the head; for a recording the head as `("cross", 2, 5)` or "cross.2.5".
        tokens: the stack of the layer (default for a recording), whose rows are labeled with the token that they read
            and the token that they write, as in the viewer; tokens along both axes; or (queries, keys). Axes with more
            than 60 tokens show indices instead.
        ax: axes to draw on (default: a new figure with a color bar).
        reduce: pooling of matrices with more than 512 rows or columns. "max" keeps thin lines visible.
        log: logarithmic color scale from a tenth of a uniform weight to 1. If False, linear from 0 to the maximum.
        cmap: name of a matplotlib colormap.
    """
    if isinstance(weights, Recording):
        _, stack, weights = head_of(weights, head)
        head, tokens = 0, tokens or stack
    elif isinstance(head, str | tuple):
        raise TypeError(f"head is {describe(head)}; expected an index, because weights is not a recording")
    _, _, q_len, kv_len = weights.shape
    down, across = min(MAX_FIGURE_BINS, q_len), min(MAX_FIGURE_BINS, kv_len)
    values = weights.part(batch=0, heads=head).pool(down, across, reduce=reduce)[0, 0].cpu().numpy()
    return _draw(values, (q_len, kv_len), tokens, ax, log, cmap)


def plot_heads(stack: Stack, *, log: bool = True, cmap: str = "viridis") -> Figure:
    """Draw small heatmaps of all heads of a stack, such as `recording["encoder"]`: a row per layer."""
    plt = load_pyplot()
    if not stack.layers:
        raise ValueError("stack has no layers; expected at least one")
    across = max(weights.shape[1] for weights in stack.layers)
    size = (0.9 * across + 0.6, 0.95 * len(stack.layers) + 0.4)
    figure, grid = plt.subplots(len(stack.layers), across, figsize=size, squeeze=False, layout="constrained")
    for layer, weights in enumerate(stack.layers):
        _, heads, q_len, kv_len = weights.shape
        pooled = weights.pool(min(MAX_GRID_BINS, q_len), min(MAX_GRID_BINS, kv_len), reduce="max")[0].cpu().numpy()
        for head, axes in enumerate(grid[layer]):
            axes.set(xticks=[], yticks=[])
            if head >= heads:
                axes.axis("off")
                continue
            _image(axes, pooled[head], (q_len, kv_len), log, cmap)
            axes.set_title(f"{layer}.{head}", fontsize=7, pad=2)
    return figure


def plot_alignment(
    recording: Recording,
    *,
    layer: int = -1,
    head: int | None = None,
    ax: Axes | None = None,
    log: bool = False,
    cmap: str = "Blues",
) -> Axes:
    """Draw the cross-attention of a layer: a row per target token, a column per source token.

    A row is labeled with the token that the decoder reads and the token that it then writes, as in the viewer: the row
    "after → home" shows where the decoder looks when it writes "home".

    Args:
        recording: recording of an encoder–decoder model.
        layer: index of the layer.
        head: index of the head (default: the mean of all heads).
        ax: axes to draw on (default: a new figure with a color bar).
        log: logarithmic color scale, as in `plot_head`.
        cmap: name of a matplotlib colormap.
    """
    stack = recording["cross"]
    weights = stack.layers[layer]
    _, _, q_len, kv_len = weights.shape
    if head is not None:
        return plot_head(weights, head, stack, ax, log=log, cmap=cmap)
    pooled = weights.pool(min(MAX_FIGURE_BINS, q_len), min(MAX_FIGURE_BINS, kv_len))[0].mean(dim=0).cpu().numpy()
    return _draw(pooled, (q_len, kv_len), stack, ax, log, cmap)


def _draw(
    values: Float[np.ndarray, "rows keys"],
    shape: tuple[int, int],
    tokens: HeadTokens | None,
    ax: Axes | None,
    log: bool,
    cmap: str,
) -> Axes:
    plt = load_pyplot()
    rows, columns = _axis_labels(tokens, *shape)
    new_figure = ax is None
    if ax is None:
        q_len, kv_len = (min(MAX_AXIS_TOKENS, length) for length in shape)
        written = 1.0 if isinstance(tokens, Stack) and tokens.written is not None else 0.0  # inches of longer labels
        size = (max(4.0, 0.22 * kv_len + 2) + written, max(3.2, 0.22 * q_len + 1.5))
        _, ax = plt.subplots(figsize=size, layout="constrained")
    assert ax is not None
    image = _image(ax, values, shape, log, cmap)
    for axis, labels in ((ax.yaxis, rows), (ax.xaxis, columns)):
        if labels is not None:
            axis.set_ticks([index + 0.5 for index in range(len(labels))])
            texts, families = drawable(labels)
            axis.set_ticklabels(texts, fontfamily=families)
    if columns is not None:
        ax.tick_params(axis="x", labelrotation=90)
    ax.tick_params(length=2)
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.set(xlabel="keys", ylabel=axis_title(tokens) if isinstance(tokens, Stack) else "queries")
    if new_figure:
        ax.figure.colorbar(image, ax=ax, shrink=0.8, label="weight")
    return ax


def _image(ax: Axes, values: Float[np.ndarray, "rows keys"], shape: tuple[int, int], log: bool, cmap: str) -> Any:
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm, Normalize

    q_len, kv_len = shape
    low, high = weight_floor(kv_len), float(values.max(initial=0.0))
    norm = LogNorm(low, 1.0, clip=True) if log else Normalize(0.0, high if high > 0 else 1.0)
    colors = colormaps[cmap].with_extremes(bad=MASKED_COLOR)
    near_square = 0.5 < q_len / kv_len < 2
    return ax.imshow(
        np.where(values > 0, values, np.nan),
        norm=norm,
        cmap=colors,
        extent=(0, kv_len, q_len, 0),
        interpolation="nearest",
        aspect="equal" if near_square else "auto",
    )


def _axis_labels(tokens: HeadTokens | None, q_len: int, kv_len: int) -> tuple[list[str] | None, list[str] | None]:
    """Return the labels of queries and keys; None for an axis without tokens or with too many."""
    if tokens is None:
        return None, None
    pair: Any = (tokens, tokens)
    if isinstance(tokens, Stack):
        pair = (tokens.queries, tokens.keys)
    elif isinstance(tokens, tuple) and len(tokens) == 2 and not any(isinstance(side, str) for side in tokens):
        pair = tokens
    queries, keys = (side.texts if isinstance(side, Tokens) else list(side) for side in pair)
    for name, texts, length in (("queries", queries, q_len), ("keys", keys, kv_len)):
        if len(texts) != length:
            raise ValueError(
                f"tokens has {len(texts)} texts for {length} {name}; expected a stack, one text per query and key, or"
                " (queries, keys)"
            )
    rows, columns = (
        [short_token(text, LABEL_COLUMNS) for text in texts] if len(texts) <= MAX_AXIS_TOKENS else None
        for texts in (queries, keys)
    )
    if rows is not None and isinstance(tokens, Stack):
        rows = [row_label(tokens, query) for query in range(q_len)]
    return rows, columns
