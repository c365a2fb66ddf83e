"""Composition of heads: how strongly a later head reads what an earlier head writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.checks import check_choice, describe
from clearhead.watching._projections import HeadColumns, Projections
from clearhead.watching.head_matrices import Head, Heads, heads
from clearhead.watching.low_rank import LowRank

Input = Literal["Q", "K", "V"]
Factors = tuple[Float[Tensor, "heads rows rank"], Float[Tensor, "heads columns rank"]]
MAX_PRODUCTS = 2**24  # numbers that exist at once


def composition(earlier: Head, later: Head, through: Input) -> Float[Tensor, ""]:
    """Return the composition score of two heads: ‖OV of the earlier @ M‖ / (‖OV of the earlier‖ ‖M‖).

    M is the QK circuit of the later head for "Q", its transpose for "K", and its OV circuit for "V". Norms are
    Frobenius norms. The definition is that of Elhage et al. (2021) and TransformerLens. The weights are those of the
    model: the gains of norms are not folded into them.

    Args:
        earlier: head of an earlier layer.
        later: head of a later layer.
        through: which input of the later head: "Q", "K" or "V".
    """
    for name, head in (("earlier", earlier), ("later", later)):
        if not isinstance(head, Head):
            raise TypeError(f"{name} is {describe(head)}; expected a head, such as heads(model)[3, 5]")
    check_choice("through", through, ("Q", "K", "V"))
    if earlier.stack == later.stack and earlier.layer >= later.layer:
        raise ValueError(f"earlier is in layer {earlier.layer}; expected a layer before that of later, {later.layer}")
    writes = earlier.ov
    reads = later.ov if through == "V" else later.qk if through == "Q" else later.qk.T
    _check_widths(writes.shape[1], reads.shape[0])
    product = writes @ reads
    assert isinstance(product, LowRank)
    return product.norm() / (writes.norm() * reads.norm())


@torch.no_grad()
def composition_scores(
    model: Any, through: Input, *, stack: str | None = None
) -> Float[Tensor, "layers heads layers heads"]:
    """Return the composition scores of all pairs of heads: `[earlier layer, head, later layer, head]`.

    Pairs whose second layer is not after the first are 0, as in TransformerLens. The memory is that of the model's
    query projections in float32, and about 64 MiB. No gradients are recorded.

    Args:
        model: a model, or `heads(model)`.
        through: which input of the later head: "Q", "K" or "V".
        stack: which stack, if there are several.

    Raises:
        ValueError: if the layers have different numbers of heads.
    """
    check_choice("through", through, ("Q", "K", "V"))
    layers = (model if isinstance(model, Heads) else heads(model)).layers(stack)
    counts = {layer.heads for layer in layers}
    if len(counts) > 1:
        raise ValueError(
            f"the layers have {', '.join(map(str, sorted(counts)))} heads; expected the same number in all"
        )
    _check_widths(*{layer.output.weight.shape[1] for layer in layers}, *{_reader(layer, through) for layer in layers})
    [count] = counts
    scores = layers[0].output.weight.new_zeros((len(layers), count, len(layers), count), dtype=torch.float32)
    if len(layers) == 1:
        return scores
    # [layers, heads, rank, model_dim]: ‖A @ reads.mT‖ = ‖A @ M‖
    reads = torch.stack(
        [_normalized(_triangles(second) @ first.mT) for first, second in _circuits(layers[1:], through)]
    )
    step = max(1, MAX_PRODUCTS // (reads[0, ..., 0].numel() * layers[0].heads * layers[0].value.width))
    for index, (value, output) in enumerate(_circuits(layers[:-1], "V")):
        writes = _normalized(_triangles(value) @ output.mT).flatten(0, 1)  # ‖writes @ M‖ = ‖OV @ M‖
        for start in range(index, len(reads), step):
            part = reads[start : start + step]
            products = (writes @ part.flatten(0, 2).T).square_()
            squares = products.unflatten(1, (len(part), count, -1)).sum(3).unflatten(0, (count, -1)).sum(1)
            scores[index, :, start + 1 : start + 1 + len(part)] = squares.sqrt()
    return scores


def _circuits(layers: list[Projections], through: str) -> Iterator[Factors]:
    """Yield factors of the circuits of all heads of each layer: each circuit is `first @ second.mT`."""
    for layer in layers:
        if through == "V":
            outputs = torch.stack([layer.output_weight(head).T for head in range(layer.heads)])
            yield _stacked(layer.value, layer.group), outputs.float()
        else:
            query, key = _stacked(layer.query, 1), _stacked(layer.key, layer.group)
            yield (query, key) if through == "Q" else (key, query)


def _stacked(columns: HeadColumns, group: int) -> Float[Tensor, "heads input_dim width"]:
    weights = torch.stack([columns.weight(head) for head in range(len(columns.starts))]).float()
    return weights.repeat_interleave(group, 0)


def _triangles(matrices: Float[Tensor, "heads rows rank"]) -> Float[Tensor, "heads smaller rank"]:
    """Return the triangular matrices of QR decompositions, which have the same Gram matrices."""
    return torch.linalg.qr(matrices, mode="r").R


def _normalized(matrices: Float[Tensor, "heads rank model_dim"]) -> Float[Tensor, "heads rank model_dim"]:
    return matrices / matrices.flatten(1).norm(dim=1)[:, None, None]


def _reader(layer: Projections, through: str) -> int:
    columns = {"Q": layer.query, "K": layer.key, "V": layer.value}[through]
    return columns.linear.weight.shape[0]


def _check_widths(*widths: int) -> None:
    if len(set(widths)) > 1:
        shown = " and ".join(map(str, sorted(set(widths))))
        raise ValueError(f"the heads write and read vectors of {shown} numbers; expected the same width")
