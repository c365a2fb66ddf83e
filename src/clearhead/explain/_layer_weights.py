"""Weight matrices of a worked example, stated in the file or drawn from a seed."""

from __future__ import annotations

import math
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
        *,
        kv_heads: int | None = None,
        memory: tuple[int, int] | None = None,
    ) -> None:
        self.x, self.heads, self.split, self.stated = x, heads, split, stated
        self.as_drawn: list[str] = []  # names of the weights that equal those drawn from the seed
        self.kv_heads = heads if kv_heads is None else kv_heads
        self.key_name, self.key_source = ("X", x) if memory is None else ("Z", memory)
        self.input, self.kv_input = x[1], self.key_source[1]
        if split == "slice":
            self.input = _slice_width("x", self.input, heads, "heads")
            name = "x" if memory is None else "memory"
            self.kv_input = _slice_width(name, self.kv_input, self.kv_heads, "key heads")

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

        W_Q is `[heads, input, dim]`, W_K and W_V are `[kv_heads, input, dim]`, and W_O is
        `[heads · value_dim, output_dim]`.

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
        if name == "query":
            return self.heads, self.input, self.key_dim
        return self.kv_heads, self.kv_input, self.value_dim if name == "value" else self.key_dim

    def check_biases(self, biases: Mapping[str, Tensor]) -> None:
        """Raise unless each bias has a number for each column of its matrix."""
        for name, bias in biases.items():
            expected = self._shape(name)[-1]
            if bias.shape[-1] != expected:
                columns = f"weights.{name} has {expected} columns"
                raise ValueError(f"biases.{name} has {bias.shape[-1]} numbers; expected {expected}, because {columns}")

    def cell_count(self) -> int:
        """Return the number of cells in all matrices of the calculation, with those of the weights."""
        (rows, width), (keys, key_width) = self.x, self.key_source
        weights = sum(math.prod(self._shape(name)) for name in WEIGHT_NAMES)
        projected = rows * self.heads * self.key_dim + keys * self.kv_heads * (self.key_dim + self.value_dim)
        attended = self.heads * (4 * rows * keys + 2 * rows * self.value_dim)
        return rows * width + keys * key_width + weights + projected + attended + rows * self.output_dim

    def _mismatch(self, name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> str:
        if name == "output":
            factor = f"the concatenated heads ({self.x[0]}, {expected[0]})"
        elif shape[0] != expected[0]:
            symbol, (rows, width) = ("X", self.x) if name == "query" else (self.key_name, self.key_source)
            factor = f"{symbol if expected[0] == width else f'a slice of {symbol}'} ({rows}, {expected[0]})"
        else:
            return f"weights.{name} is {shape}, but Q and K must have equally many columns; expected {expected}"
        return f"weights.{name} is {shape}: {factor} × {shape} cannot be multiplied; expected {expected}"


def unnested(weights: Tensor) -> Tensor:
    """Return the weights as an example file states them: the matrix of a single head is not nested in a list."""
    return weights[0] if weights.ndim == 3 and len(weights) == 1 else weights


def _slice_width(name: str, width: int, count: int, heads: str) -> int:
    if width % count:
        raise ValueError(
            f'{name} has {width} columns; expected a multiple of the {count} {heads}, because split is "slice"'
        )
    return width // count
