"""A worked example: an input, the weights, and what a text says of the matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.extras import needs_extra
from clearhead.explain._claims import Claim
from clearhead.explain._grids import Grid
from clearhead.explain._matrices import MATRICES, Where
from clearhead.explain.steps import Trace
from clearhead.explain.tracing import Given, trace
from clearhead.nn import MultiHeadAttention
from clearhead.nn.parameters import assign_parameters
from clearhead.ops.masks import Mask


@dataclass(frozen=True, eq=False)
class Example:
    """One calculation, without biases and in float64, and the claims about it."""

    title: str
    tokens: tuple[str, ...]
    x: Float[Tensor, "tokens d_model"]
    heads: int
    split: str
    mask: Mask | None
    weights: Mapping[str, Tensor]  # query, key, value: [heads, input, dim]; output: [heads · value_dim, output_dim]
    stated: tuple[str, ...]  # those of the weights that the file states
    given: Mapping[Where, Grid]
    claims: tuple[Claim, ...]
    source: str  # the file

    def added_mask(self) -> Float[Tensor, "tokens tokens"]:
        """M: 0 where a query may look, −∞ where not."""
        size = len(self.tokens)
        zeros = torch.zeros(size, size, dtype=torch.float64)
        return zeros if self.mask is None else torch.where(self.mask.dense(size, size)[0, 0], zeros, -torch.inf)

    @property
    def drawn(self) -> tuple[str, ...]:
        """The weights that came from the seed; a projection that is given may be X·W for another W."""
        given = {name for name, _ in self.given}
        return tuple(name for name in MATRICES if name not in self.stated and name not in given)

    def layer(self) -> MultiHeadAttention:
        query, value, output = (self.weights[name] for name in ("query", "value", "output"))
        layer = MultiHeadAttention(
            self.x.shape[1],
            self.heads,
            key_dim=query.shape[2],
            value_dim=value.shape[2],
            output_dim=output.shape[1],
            split="slice" if self.split == "slice" else "project",
            bias=False,
            device="meta",
        )
        state = {f"{name}.weight": self.weights[name].transpose(1, 2).flatten(0, 1) for name in MATRICES[:3]}
        return assign_parameters(layer, state | {"output.weight": output.T}, training=False)

    @property
    def given_values(self) -> dict[Where, Tensor]:
        """What is given, as numbers; NaN where a cell is left to be computed."""
        return {where: grid.values for where, grid in self.given.items()}

    def trace(self) -> Trace:
        """Every step, with what is given in its place."""
        return self._traced(self.given_values)

    def trace_without_given(self) -> Trace:
        """Every step as its formula has it."""
        return self._traced({})

    def _traced(self, given: Given) -> Trace:
        return trace(self.layer(), self.x, mask=self.mask, tokens=self.tokens, given=given)

    def to_toml(self) -> str:
        """The file with the drawn weights written into it: the same calculation, every number of it open to editing."""
        with needs_extra("explain", "the TOML format"):
            import tomlkit

        document = tomlkit.parse(self.source)
        if self.drawn and "weights" not in document:
            document["weights"] = tomlkit.table()
        for name in self.drawn:
            document["weights"][name] = tomlkit.value(_written(self.weights[name]))  # pyright: ignore[reportIndexIssue]
        return document.as_string()


def _written(values: Tensor, indent: str = "") -> str:
    """One matrix, or one for each head, a row to a line; a single head's stands without a list around it."""
    if values.ndim == 3 and len(values) == 1:
        return _written(values[0])
    deeper = indent + "  "
    rows = (_written(entry, deeper) if entry.ndim == 2 else str(entry.tolist()) for entry in values)
    return "[\n" + "".join(f"{deeper}{row},\n" for row in rows) + f"{indent}]"
