"""Matplotlib figures of attention over a picture or along a sound (extra `plot`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from clearhead._utils.checks import check_choice, check_float, check_int, describe
from clearhead._utils.text import TOKEN_COLUMNS
from clearhead.plot._fonts import drawable
from clearhead.plot._pyplot import load_pyplot
from clearhead.recording import Address, Frames, Patches, Recording, Stack, Tokens
from clearhead.recording.addresses import find_address
from clearhead.recording.row_labels import row_label
from clearhead.weights.matrix import AttentionWeights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEAN = "mean"


def plot_picture(
    recording: Recording,
    head: Address | str,
    query: int | str | None = None,
    ax: Axes | None = None,
    *,
    picture: int = 0,
    alpha: float = 0.7,
    cmap: str = "viridis",
) -> Axes:
    """Lay the attention of one query over the picture.

        plot_picture(recording, ("encoder", 11, 3), "cls").figure.savefig("cls.png")

    Patches are more opaque the larger their weight is, relative to the largest weight of a patch.

    Args:
        recording: recording of a model on a picture, as of `record(model, image=…)`.
        head: the head, as `("encoder", 2, 5)` or "encoder.2.5".
        query: the query: its position; its text, such as "cls" or "3,4", which is the patch in row 3 and column 4; or
            "mean", the mean over all queries. Default: the first query.
        ax: axes to draw on (default: a new figure with a color bar).
        picture: index of the picture in `recording.media.pictures`.
        alpha: opacity of the patch with the largest weight.
        cmap: name of a matplotlib colormap.

    Raises:
        ValueError: if the keys of the stack are not patches of the picture, or there is no such query.
    """
    if not 0 <= check_float("alpha", alpha) <= 1:
        raise ValueError(f"alpha is {alpha}; expected a number from 0 to 1")
    head, stack, row = _row(recording, head, query)
    check_int("picture", picture, least=0)
    regions = [region for region in stack.keys.regions if isinstance(region, Patches)]
    patches = next((region for region in regions if region.picture == picture), None)
    if patches is None:
        raise ValueError(f"the keys of {head[0]!r} are not patches of picture {picture}; expected a stack with patches")
    weights = row[patches.positions()].reshape(patches.rows, patches.columns)
    shown = recording.media.pictures[picture].pixels.numpy()
    plt = load_pyplot()
    new_figure = ax is None
    if ax is None:
        _, ax = plt.subplots(figsize=(5.0, 5.0 * shown.shape[0] / shown.shape[1] + 0.4), layout="constrained")
    assert ax is not None
    extent = (0, patches.columns, patches.rows, 0)
    ax.imshow(shown, extent=extent, aspect="auto" if not new_figure else None, interpolation="nearest")
    peak = float(weights.max()) or 1.0
    layer = ax.imshow(weights, extent=extent, cmap=cmap, vmin=0, vmax=peak, alpha=alpha * weights / peak)
    # the extent counts patches, which are as high and as wide as in the picture
    ax.set_aspect(shown.shape[0] / shown.shape[1] * patches.columns / patches.rows)
    ax.set(xticks=[], yticks=[])
    _set_title(ax, stack, head, query)
    if new_figure:
        ax.figure.colorbar(_opaque(layer, cmap), ax=ax, shrink=0.8, label="weight")
    return ax


def plot_sound(
    recording: Recording, head: Address | str, query: int | str | None = None, *, sound: int = 0, cmap: str = "viridis"
) -> Figure:
    """Draw the attention of one query along a sound: the weights of the frames above the waveform, in seconds.

    Args:
        recording: recording of a speech model, as of `record(model, audio=…)`.
        head: the head, as `("encoder", 2, 5)` or "encoder.2.5".
        query: the query: its position, its text, or "mean", the mean over all queries. Default: the first query.
        sound: index of the sound in `recording.media.sounds`.
        cmap: name of a matplotlib colormap, whose middle is the color of the weights.

    Raises:
        ValueError: if the keys of the stack are not frames of the sound, or there is no such query.
    """
    head, stack, row = _row(recording, head, query)
    check_int("sound", sound, least=0)
    regions = [region for region in stack.keys.regions if isinstance(region, Frames)]
    frames = next((region for region in regions if region.sound == sound), None)
    if frames is None:
        raise ValueError(f"the keys of {head[0]!r} are not frames of sound {sound}; expected a stack with frames")
    plt = load_pyplot()
    from matplotlib import colormaps

    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(7.0, 3.2), layout="constrained")
    times = np.arange(frames.count + 1) * frames.seconds
    above.stairs(row[frames.start : frames.start + frames.count], times, fill=True, color=colormaps[cmap](0.5))
    above.set(ylabel="weight", ylim=(0, None))
    _set_title(above, stack, head, query)
    recorded = recording.media.sounds[sound]
    low, high = recorded.envelope.numpy()
    middles = (np.arange(len(low)) + 0.5) * recorded.seconds / len(low)
    below.fill_between(middles, low, high, color="0.4", linewidth=0)
    below.set(xlabel="seconds", ylabel="sound", ylim=(-1, 1), yticks=[], xlim=(0, times[-1]))
    return figure


def head_of(recording: Recording, head: object) -> tuple[Address, Stack, AttentionWeights]:
    """Return the address of a head, its stack, and its weights, [1, 1, q_len, kv_len]."""
    if not isinstance(recording, Recording):
        raise TypeError(f"recording is {describe(recording)}; expected a Recording")
    address = find_address(recording, head)
    return address, recording[address[0]], recording.weights(address)


def _row(
    recording: Recording, head: Address | str, query: int | str | None
) -> tuple[Address, Stack, Float[np.ndarray, " keys"]]:
    """Return the address of a head, its stack, and the weights of one query or of their mean."""
    address, stack, weights = head_of(recording, head)
    if query == MEAN:
        return address, stack, (weights.received()[0, 0] / len(stack.queries)).float().cpu().numpy()
    return address, stack, weights[0, 0, _position(stack.queries, query)].float().cpu().numpy()


def _position(queries: Tokens, query: int | str | None) -> int:
    if isinstance(query, str):
        check_choice(
            "query", query, [*dict.fromkeys(queries.texts[:8]), MEAN] if query not in queries.texts else [query]
        )
        return queries.texts.index(query)
    return check_int("query", 0 if query is None else query, least=0, most=len(queries) - 1)


def _set_title(ax: Axes, stack: Stack, head: Address, query: int | str | None) -> None:
    name, layer, index = head
    shown = "mean of all queries" if query == MEAN else row_label(stack, _position(stack.queries, query), TOKEN_COLUMNS)
    (title,), families = drawable([f"{name} {layer}.{index}: {shown}"])
    ax.set_title(title, fontfamily=families)


def _opaque(layer: Any, cmap: str) -> Any:
    """Return the color scale of an image for a color bar, which would otherwise be transparent too."""
    from matplotlib.cm import ScalarMappable

    return ScalarMappable(layer.norm, cmap)
