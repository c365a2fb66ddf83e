"""Figures for papers, by matplotlib (extra `plot`): one head, all heads of a kind, an alignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from clearhead._utils.color_scales import weight_floor
from clearhead._utils.extras import needs_extra
from clearhead._utils.text import short_token
from clearhead.ops.statistics import Reduce
from clearhead.recording.recording import Recording, Stack, Tokens
from clearhead.weights.matrix import AttentionWeights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Side = Tokens | Sequence[str]
CELLS = 512  # each way, at most; larger matrices are drawn in bins
SMALL = 128  # likewise, in a grid
LABELLED = 60  # tokens on an axis, at most
LETTERS = 16  # columns of a token on an axis
NOTHING = "#e9ebf0"  # where no query may look
# which of these are there draw what matplotlib's own font cannot: Japanese, Chinese, Korean
_FONTS = ("IPAGothic", "IPAexGothic", "Noto Sans CJK JP", "Noto Sans JP", "Hiragino Sans", "Yu Gothic", "Meiryo")


def plot_head(
    weights: AttentionWeights,
    head: int,
    tokens: Side | tuple[Side, Side] | None = None,
    ax: Axes | None = None,
    *,
    reduce: Reduce = "max",
    log: bool = True,
    cmap: str = "viridis",
) -> Axes:
    """The matrix of one head, queries down and keys across.

        stack = recording["decoder"]
        plot_head(stack.layers[3], 5, stack.queries).figure.savefig("head.pdf")

    Args:
        weights: of one text, or of several, of which the first is drawn.
        tokens: along both axes, or (queries, keys); written out where there are few, else places are numbered.
        ax: where to draw; a figure of its own, with a colour bar, where none is given.
        reduce: what stands for a bin where the matrix has more than 512 rows or columns: "max" keeps thin lines.
        log: colours from a tenth of what each key would get if all were alike, up to 1; else from 0 to the largest.
    """
    _, _, q_len, kv_len = weights.shape
    own = weights.part(batch=0, heads=head)
    values = own.pool(min(CELLS, q_len), min(CELLS, kv_len), reduce=reduce)[0, 0].cpu().numpy()
    queries, keys = _sides(tokens, q_len, kv_len)
    return _draw(values, (q_len, kv_len), queries, keys, ax, log, cmap)


def plot_heads(stack: Stack, *, log: bool = True, cmap: str = "viridis") -> Figure:
    """Small maps of all heads of a kind of attention, a row a layer: `plot_heads(recording["encoder"])`."""
    plt = _pyplot()
    if not stack.layers:
        raise ValueError("stack has no layers; expected at least one")
    across = max(weights.shape[1] for weights in stack.layers)
    size = (0.9 * across + 0.6, 0.95 * len(stack.layers) + 0.4)
    figure, grid = plt.subplots(len(stack.layers), across, figsize=size, squeeze=False, layout="constrained")
    for layer, weights in enumerate(stack.layers):
        _, heads, q_len, kv_len = weights.shape
        pooled = weights.pool(min(SMALL, q_len), min(SMALL, kv_len), reduce="max")[0].cpu().numpy()
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
    """Which source token each target token follows from: cross-attention of a layer, of one head or the mean of all.

    A row stands for the token that was read last; it is what the next one follows from.
    """
    stack = recording["cross"]
    weights = stack.layers[layer]
    _, _, q_len, kv_len = weights.shape
    if head is not None:
        return plot_head(weights, head, (stack.queries, stack.keys), ax, log=log, cmap=cmap)
    pooled = weights.pool(min(CELLS, q_len), min(CELLS, kv_len))[0].mean(dim=0).cpu().numpy()
    return _draw(pooled, (q_len, kv_len), stack.queries.texts, stack.keys.texts, ax, log, cmap)


def _draw(
    values: Float[np.ndarray, "rows keys"],
    shape: tuple[int, int],
    queries: Sequence[str] | None,
    keys: Sequence[str] | None,
    ax: Axes | None,
    log: bool,
    cmap: str,
) -> Axes:
    plt = _pyplot()
    alone = ax is None
    if ax is None:
        q_len, kv_len = (min(LABELLED, length) for length in shape)
        size = (max(4.0, 0.22 * kv_len + 2), max(3.2, 0.22 * q_len + 1.5))
        _, ax = plt.subplots(figsize=size, layout="constrained")
    assert ax is not None
    image = _image(ax, values, shape, log, cmap)
    for axis, labels, length in ((ax.yaxis, queries, shape[0]), (ax.xaxis, keys, shape[1])):
        if labels is not None and length <= LABELLED:
            axis.set_ticks([place + 0.5 for place in range(length)])
            # a token that looks like a formula is a token all the same
            texts = [short_token(text, LETTERS).replace("$", r"\$") for text in labels]
            axis.set_ticklabels(texts, fontfamily=_fonts())
    if keys is not None and shape[1] <= LABELLED:
        ax.tick_params(axis="x", labelrotation=90)
    ax.tick_params(length=2)
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.set(xlabel="key", ylabel="query")
    if alone:
        ax.figure.colorbar(image, ax=ax, shrink=0.8, label="weight")
    return ax


def _image(ax: Axes, values: Float[np.ndarray, "rows keys"], shape: tuple[int, int], log: bool, cmap: str) -> Any:
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm, Normalize

    q_len, kv_len = shape
    low, most = weight_floor(kv_len), float(values.max(initial=0.0))
    norm = LogNorm(low, 1.0, clip=True) if log else Normalize(0.0, most if most > 0 else 1.0)
    seen = np.where(values > 0, values, np.nan)
    colours = colormaps[cmap].with_extremes(bad=NOTHING)
    near_square = 0.5 < q_len / kv_len < 2
    return ax.imshow(
        seen,
        norm=norm,
        cmap=colours,
        extent=(0, kv_len, q_len, 0),
        interpolation="nearest",
        aspect="equal" if near_square else "auto",
    )


def _sides(
    tokens: Side | tuple[Side, Side] | None, q_len: int, kv_len: int
) -> tuple[Sequence[str] | None, Sequence[str] | None]:
    if tokens is None:
        return None, None
    pair: Any = (tokens, tokens)
    if isinstance(tokens, tuple) and len(tokens) == 2 and not any(isinstance(side, str) for side in tokens):
        pair = tokens
    queries, keys = (side.texts if isinstance(side, Tokens) else list(side) for side in pair)
    for name, own, length in (("queries", queries, q_len), ("keys", keys, kv_len)):
        if len(own) != length:
            raise ValueError(f"tokens: {len(own)} for {length} {name}; expected one each, or (queries, keys)")
    return queries, keys


def _pyplot() -> Any:
    with needs_extra("plot", "clearhead.plot"):
        from matplotlib import pyplot
    return pyplot


def _fonts() -> list[str]:
    """matplotlib's own font, and for what it lacks those of ours that are installed."""
    from matplotlib import font_manager, rcParams

    there = {font.name for font in font_manager.fontManager.ttflist}
    return [*rcParams["font.family"], *(name for name in _FONTS if name in there)]
