"""Weight matrices of a worked example, stated in the file or drawn from a seed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from clearhead.explain._printed_matrix import PrintedMatrix
from clearhead.explain.steps import StepKey

WEIGHT_NAMES = ("query", "key", "value", "output")


class LayerWidths:
    """Widths of a layer, from stated and given matrices (default: those of `MultiHeadAttention`)."""

    def __init__(
        self,
        x: tuple[int, int],
        heads: int,
        split: str,
        stated: Mapping[str, Tensor],
        given: Mapping[StepKey, PrintedMatrix],
    ) -> None:
        self.x, self.heads, self.stated = x, heads, stated
        self.as_drawn: list[str] = []  # names of the weights that equal those drawn from the seed
        self.input = x[1]
        if split == "slice":
            if x[1] % heads:
                raise ValueError(
                    f'x has {x[1]} columns; expected a multiple of the {heads} heads, because split is "slice"'
                )
            self.input = x[1] // heads

        def stated_width(*names: str) -> int | None:
            for name in names:
                if name in stated:
                    return stated[name].shape[-1]
                if (name, 0) in given:
                    return given[name, 0].shape[1]
            return None

        key_dim = stated_width("query", "key")
        if key_dim is None:
            if x[1] % heads:
                raise ValueError(
                    f"x has {x[1]} columns; expected a multiple of the {heads} heads, or weights.query in the file"
                )
            key_dim = x[1] // heads
        self.key_dim = key_dim
        self.value_dim = stated_width("value") or key_dim
        self.output_dim = stated["output"].shape[-1] if "output" in stated else x[1]

    def weights(self, seed: int) -> dict[str, Tensor]:
        """Return the stated matrices, and draw the others in steps of 0.1, so that they can be printed exactly.

        W_Q and W_K range from -3.0 to 3.0, because smaller weights give nearly uniform attention on small inputs.
        W_V and W_O range from -1.0 to 1.0.
        """
        generator = torch.Generator().manual_seed(seed)
        weights = {}
        for name in WEIGHT_NAMES:
            shape = self._shape(name)
            limit = 30 if name in ("query", "key") else 10
            # draw stated matrices too, so that stating one does not change the random numbers of the others
            drawn = torch.randint(-limit, limit + 1, shape, generator=generator).double() / 10
            weights[name] = self.stated.get(name, drawn)
            if torch.equal(weights[name], drawn):
                self.as_drawn.append(name)
            if tuple(weights[name].shape) != shape:
                raise ValueError(self._mismatch(name, tuple(weights[name].shape[-2:]), shape[-2:]))
        return weights

    def _shape(self, name: str) -> tuple[int, ...]:
        if name == "output":
            return self.heads * self.value_dim, self.output_dim
        return self.heads, self.input, self.value_dim if name == "value" else self.key_dim

    def _mismatch(self, name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> str:
        rows = self.x[0]
        if name == "output":
            factor = f"the concatenated heads ({rows}, {expected[0]})"
        elif shape[0] != expected[0]:
            factor = f"{'X' if self.input == self.x[1] else 'a slice of X'} ({rows}, {self.input})"
        else:
            return f"weights.{name} is {shape}, but Q and K must have equally many columns; expected {expected}"
        return f"weights.{name} is {shape}: {factor} × {shape} cannot be multiplied; expected {expected}"
