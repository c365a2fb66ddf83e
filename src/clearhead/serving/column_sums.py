"""Column sums of decoding rows, which are distributed to the requests only when the batch changes."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.serving.requests import RequestState


class ColumnSums:
    """Sums of the weights of consecutive steps with the same requests.

    Adding each step to each request and layer would take longer than computing the weights. Most steps have the
    requests of the step before, and then one addition per layer is enough.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[RequestState, ...], dict[int, Tensor]] = {}

    @property
    def nbytes(self) -> int:
        """Memory of the sums that were not distributed."""
        return sum(weights.nbytes for sums in self._sums.values() for weights in sums.values())

    def add(
        self,
        states: tuple[RequestState, ...],
        layer: int,
        weights: Float[Tensor, "rows kv_heads group blocks block"],
    ) -> None:
        """Add the weights of one layer. The tensor is kept."""
        sums = self._sums.setdefault(states, {})
        before = sums.get(layer)
        if before is not None and before.shape == weights.shape:
            before += weights
            return
        if before is not None:
            self._distribute(states, {layer: before})
        sums[layer] = weights

    def buffer(
        self, states: tuple[RequestState, ...], layer: int, shape: tuple[int, ...]
    ) -> Float[Tensor, "rows kv_heads group blocks block"]:
        """Return the sums of one layer, to which the caller adds the weights of the next rows."""
        sums = self._sums.setdefault(states, {})
        before = sums.get(layer)
        if before is None or before.shape != shape:
            if before is not None:
                self._distribute(states, {layer: before})
            sums[layer] = before = torch.zeros(shape)
        return before

    def flush(self, keep: tuple[tuple[RequestState, ...], ...] = ()) -> None:
        """Distribute the sums to the requests, except those of some batches."""
        for states in [states for states in self._sums if states not in keep]:
            self._distribute(states, self._sums.pop(states))

    @staticmethod
    def _distribute(states: tuple[RequestState, ...], sums: dict[int, Tensor]) -> None:
        for layer, weights in sums.items():
            for index, state in enumerate(states):
                state.add_block_sums(layer, weights[index])
