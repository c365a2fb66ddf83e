"""A worked example: an input, the weights, and the claims of a text about the matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.extras import needs_extra
from clearhead.explain._claims import Claim
from clearhead.explain._layer_weights import WEIGHT_NAMES
from clearhead.explain._printed_matrix import PrintedMatrix
from clearhead.explain.steps import StepKey, Trace
from clearhead.explain.tracing import GivenMatrices, trace
from clearhead.nn import MultiHeadAttention
from clearhead.nn.parameters import assign_parameters
from clearhead.ops.masks import Mask


@dataclass(frozen=True, eq=False)
class Example:
    """One attention calculation in float64 without biases, and the claims of a text about it."""

    title: str
    tokens: tuple[str, ...]
    x: Float[Tensor, "tokens d_model"]
    heads: int
    split: str
    mask: Mask | None
    weights: Mapping[str, Tensor]  # query, key, value: [heads, input, dim]; output: [heads · value_dim, output_dim]
    stated: tuple[str, ...]  # names of the weights that the file states
    given: Mapping[StepKey, PrintedMatrix]
    claims: tuple[Claim, ...]
    source: str  # text of the TOML file
    seed: int = 0  # of the weights that the file does not state
    as_drawn: tuple[str, ...] = ()  # names of the weights that equal those drawn from the seed, stated or not
    name: str = ""  # of a built-in example, or the path of its file

    def additive_mask(self) -> Float[Tensor, "tokens tokens"]:
        """Return M: 0 where a query may attend, −∞ where not."""
        size = len(self.tokens)
        zeros = torch.zeros(size, size, dtype=torch.float64)
        return zeros if self.mask is None else torch.where(self.mask.dense(size, size)[0, 0], zeros, -torch.inf)

    @property
    def drawn(self) -> tuple[str, ...]:
        """Names of the weights drawn from the seed, without those whose projection is given."""
        given = {name for name, _ in self.given}
        return tuple(name for name in WEIGHT_NAMES if name not in self.stated and name not in given)

    def layer(self) -> MultiHeadAttention:
        """Return the layer with the weights of the example."""
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
        state = {f"{name}.weight": self.weights[name].transpose(1, 2).flatten(0, 1) for name in WEIGHT_NAMES[:3]}
        return assign_parameters(layer, state | {"output.weight": output.T}, training=False)

    @property
    def given_values(self) -> dict[StepKey, Tensor]:
        """Given matrices as tensors, with NaN in blank cells."""
        return {key: matrix.values for key, matrix in self.given.items()}

    def trace(self) -> Trace:
        """Trace every step, with given matrices in place of computed ones."""
        from clearhead.explain._origins import with_origins  # imports this module

        return with_origins(self._trace(self.given_values), self)

    def trace_without_given(self) -> Trace:
        """Trace every step by its formula, without given matrices."""
        return self._trace({})

    def _trace(self, given: GivenMatrices) -> Trace:
        return trace(self.layer(), self.x, mask=self.mask, tokens=self.tokens, given=given)

    def to_toml(self) -> str:
        """Return the TOML file with the drawn weights added, so that every number can be edited."""
        with needs_extra("explain", "the TOML format"):
            import tomlkit

        document = tomlkit.parse(self.source)
        if self.drawn and "weights" not in document:
            document["weights"] = tomlkit.table()
        for name in self.drawn:
            document["weights"][name] = tomlkit.value(_toml_matrix(self.weights[name]))  # pyright: ignore[reportIndexIssue]
        return document.as_string()


def _toml_matrix(values: Tensor, indent: str = "") -> str:
    """Format one matrix, or a list of one matrix per head, with one row per line.

    The matrix of a single head is not nested in a list.
    """
    if values.ndim == 3 and len(values) == 1:
        return _toml_matrix(values[0])
    inner_indent = indent + "  "
    rows = (_toml_matrix(entry, inner_indent) if entry.ndim == 2 else str(entry.tolist()) for entry in values)
    return "[\n" + "".join(f"{inner_indent}{row},\n" for row in rows) + f"{indent}]"
