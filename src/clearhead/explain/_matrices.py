"""The four matrices of a worked example: those that are stated, and the others drawn from a seed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from clearhead.explain._grids import Grid

MATRICES = ("query", "key", "value", "output")
Where = tuple[str, int | None]  # a step and its head, from 0


class Sizes:
    """The widths of a layer, from what is stated; what is not is as in `MultiHeadAttention`."""

    def __init__(
        self, x: tuple[int, int], heads: int, split: str, stated: Mapping[str, Tensor], given: Mapping[Where, Grid]
    ) -> None:
        self.x, self.heads, self.stated = x, heads, stated
        self.input = x[1]
        if split == "slice":
            if x[1] % heads:
                raise ValueError(f'x has {x[1]} columns, which {heads} heads cannot slice equally (split = "slice")')
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
                raise ValueError(f"x has {x[1]} columns, which {heads} heads do not divide; state weights.query")
            key_dim = x[1] // heads
        self.key_dim = key_dim
        self.value_dim = stated_width("value") or key_dim
        self.output_dim = stated["output"].shape[-1] if "output" in stated else x[1]

    def weights(self, seed: int) -> dict[str, Tensor]:
        """Those that are stated, and the others drawn in steps of 0.1, so that they can be printed exactly.

        W_Q and W_K from -3.0 to 3.0, or small inputs would attend to everything alike; W_V and W_O from -1.0 to 1.0.
        """
        generator = torch.Generator().manual_seed(seed)
        found = {}
        for name in MATRICES:
            shape = self._shape(name)
            most = 30 if name in ("query", "key") else 10
            # drawn even where it is stated, so that stating one matrix leaves the others as they were
            drawn = torch.randint(-most, most + 1, shape, generator=generator).double() / 10
            found[name] = self.stated.get(name, drawn)
            if tuple(found[name].shape) != shape:
                raise ValueError(self._mismatch(name, tuple(found[name].shape[-2:]), shape[-2:]))
        return found

    def _shape(self, name: str) -> tuple[int, ...]:
        if name == "output":
            return self.heads * self.value_dim, self.output_dim
        return self.heads, self.input, self.value_dim if name == "value" else self.key_dim

    def _mismatch(self, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> str:
        rows = self.x[0]
        if name == "output":
            what = f"the heads' outputs side by side ({rows}, {expected[0]})"
        elif found[0] != expected[0]:
            what = f"{'X' if self.input == self.x[1] else 'a slice of X'} ({rows}, {self.input})"
        else:
            return f"weights.{name} is {found}, but Q and K must have equal columns; expected {expected}"
        return f"weights.{name} is {found}: {what} × {found} cannot be multiplied; expected {expected}"
