"""Attention of transformers models as a reference for served ones: weights in float64, and by eager attention."""

from typing import Any

import torch
from torch import Tensor


class EagerReference:
    """Model of transformers in float64, as the truth, and in bfloat16, as the yardstick for errors.

    Args:
        folder: folder of the model.
        options: more arguments of `from_pretrained`.
    """

    def __init__(self, folder: str, **options: Any) -> None:
        from transformers import AutoModelForCausalLM

        self._models = [
            AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager", **options).eval()
            for dtype in (torch.float64, torch.bfloat16)
        ]

    def weights(self, ids: list[int]) -> list[Tensor]:
        """Return the weights of all layers [layers, heads, tokens, tokens], exact and in bfloat16, both as float64."""
        with torch.no_grad():
            outputs = [model(torch.tensor([ids]), output_attentions=True).attentions for model in self._models]
        return [torch.cat(layers).double() for layers in outputs]


def statistics_of(weights: Tensor, first_row: int) -> dict[str, Tensor]:
    """Return the statistics of the rows from a position on, by the plain formula."""
    rows, keys = weights.shape[-2:]
    distances = (torch.arange(first_row, first_row + rows)[:, None] - torch.arange(keys)).abs()
    return {
        "entropy": torch.special.entr(weights).sum(-1),
        "distance": (weights * distances).sum(-1),
        "sink": weights[..., 0],
        "mass": weights[..., :2].sum(-1, keepdim=True),
        "received": weights.sum(-2),
    }
