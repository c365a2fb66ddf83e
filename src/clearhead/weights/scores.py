"""Scores of the lazy matrix before the softmax, computed on demand."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.weights.cells import scores_at
from clearhead.weights.gather import scores_of_cells
from clearhead.weights.indexing import Selection
from clearhead.weights.lookup import Cells, lookup

if TYPE_CHECKING:
    from clearhead.weights.matrix import AttentionWeights


class Scores:
    """Scores of an `AttentionWeights`: scaled, capped, biased, and −inf where masked. Indexed like the weights."""

    def __init__(self, weights: AttentionWeights) -> None:
        self._owner = weights

    @property
    def shape(self) -> torch.Size:
        return self._owner.shape

    @property
    def device(self) -> torch.device:
        return self._owner.device

    def __getitem__(self, index: object) -> Tensor:
        """Compute the exact scores of an index, as torch indexes a dense matrix; differentiable."""
        return lookup(self, index)

    def _block(self, selection: Selection) -> Float[Tensor, "batch heads rows keys"]:
        return scores_at(self._owner._checked(), selection)

    def _cells(self) -> Cells:
        return partial(scores_of_cells, self._owner._checked().with_lowered_mask())

    def __repr__(self) -> str:
        return f"Scores of {self._owner!r}"
