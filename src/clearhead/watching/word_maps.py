"""Heatmaps of words on a picture, from the cross-attention of a diffusion model."""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose, sqrt

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F  # noqa: N812, as in the documentation of torch

from clearhead._utils.checks import check_int, describe, list_items
from clearhead.watching.seen import Seen, Watched


def word_maps(
    seen: Seen,
    tokens: Sequence[int] | None = None,
    *,
    batch: int | None = None,
    size: tuple[int, int] | None = None,
) -> Float[Tensor, "tokens height width"]:
    """Return where each token of the text acts on the picture: cross-attention to it, as a heatmap over the picture.

    The maps of all cross-attention modules, steps and heads are enlarged to one size by bilinear interpolation, and
    averaged, as in DAAM (Tang et al., 2022). The map of a word of several tokens is the sum of their maps.

        with torch.no_grad(), clearhead.watch(pipe, where="*.attn2") as seen:
            picture = pipe("a red cat").images[0]
        maps = word_maps(seen, tokens=[2, 3], batch=1, size=(512, 512))      # batch 0 has no text

    Args:
        seen: result of `watch` on a UNet, with the weights of its cross-attention.
        tokens: positions of tokens in the text (default: all).
        batch: which picture of the batch. Required if there are several, as with guidance.
        size: height and width of the maps, in the proportions of the picture (default: the largest grid of the model,
            which is a square).

    Raises:
        ValueError: if no cross-attention was kept, modules attend to texts of different lengths, or the queries of a
            module are not a grid of these proportions.
    """
    if not isinstance(seen, Seen):
        raise TypeError(f"seen is {describe(seen)}; expected the result of watch()")
    shape = None if size is None else _checked_size(size)
    modules = [watched for watched in seen.values() if watched.calls and _is_cross(watched)]
    if not modules:
        raise ValueError(f"{seen.model}: no cross-attention was kept; expected that of a UNet with a text")
    lengths = {watched.weights.shape[3] for watched in modules}
    if len(lengths) > 1:
        raise ValueError(
            f"{seen.model} attends to texts of {' and '.join(map(str, sorted(lengths)))} tokens; expected one text:"
            " choose its modules with watch(where=…)"
        )
    positions = _positions(tokens, lengths.pop())
    aspect = 1.0 if shape is None else shape[0] / shape[1]
    shape = shape or max(_grid(watched, aspect) for watched in modules)
    total, count = None, 0
    for watched in modules:
        rows, columns = _grid(watched, aspect)
        for call in watched.calls:
            weights = call.weights
            row = _checked_batch(batch, weights.shape[0], watched)
            pixels = weights[row, :, :, positions].double().mean(dim=0)  # [pixels, tokens]
            grid = pixels.T.reshape(len(positions), 1, rows, columns)
            enlarged = F.interpolate(grid, size=shape, mode="bilinear", align_corners=False)[:, 0]
            total, count = enlarged if total is None else total + enlarged, count + 1
    assert total is not None
    return (total / count).float()


def _is_cross(watched: Watched) -> bool:
    _, _, q_len, kv_len = watched.weights.shape
    return watched.crosses or q_len != kv_len


def _checked_size(size: object) -> tuple[int, int]:
    sides = list_items("size", size)
    if len(sides) != 2:
        raise ValueError(f"size is {describe(size)}; expected (height, width)")
    height, width = (check_int("size", side, most=2**13) for side in sides)
    return height, width


def _positions(tokens: Sequence[int] | None, length: int) -> list[int]:
    if tokens is None:
        return list(range(length))
    positions = [check_int("tokens", token, least=0) for token in list_items("tokens", tokens)]
    if not positions or max(positions) >= length:
        raise ValueError(f"tokens is {describe(tokens)}; expected positions from 0 to {length - 1}")
    return positions


def _checked_batch(batch: int | None, count: int, watched: Watched) -> int:
    if batch is None and count > 1:
        raise ValueError(f"{watched.name} ran on {count} pictures; choose one with batch=, such as batch={count - 1}")
    row = check_int("batch", 0 if batch is None else batch, least=0)
    if row >= count:
        raise ValueError(
            f"batch is {row}; expected at most {count - 1}, because {watched.name} ran on {count} pictures"
        )
    return row


def _grid(watched: Watched, aspect: float) -> tuple[int, int]:
    """Return the rows and columns of the pixels that a module attends from."""
    count = watched.weights.shape[2]
    rows = round(sqrt(count * aspect))
    # a latent of 65 rows is halved to 33, so proportions are equal up to one row or column
    if rows and not count % rows and isclose(rows / (count // rows), aspect, rel_tol=2 / rows):
        return rows, count // rows
    raise ValueError(
        f"{watched.name} attends from {count} pixels, which are not a grid of these proportions; pass size=(height,"
        " width) of the picture"
    )
