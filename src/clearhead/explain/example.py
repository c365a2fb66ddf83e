"""A worked example: an input, the weights, and the claims of a text about the matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.extras import needs_extra
from clearhead.explain._claims import Claim
from clearhead.explain._input_steps import InputParts
from clearhead.explain._layer_weights import WEIGHT_NAMES, unnested
from clearhead.explain._printed_matrix import PrintedMatrix
from clearhead.explain._toml_text import toml_value
from clearhead.explain.steps import StepKey, Trace, key_head
from clearhead.explain.tracing import GivenMatrices, trace_parts
from clearhead.nn import MultiHeadAttention, Rotary
from clearhead.nn.parameters import assign_parameters
from clearhead.ops.masks import Mask


@dataclass(frozen=True, eq=False)
class Example:
    """One attention calculation in float64, and the claims of a text about it."""

    title: str
    tokens: tuple[str, ...]
    x: Float[Tensor, "tokens d_model"]  # input of the layer, with positions if they are added
    heads: int
    split: str
    mask: Mask | None
    weights: Mapping[str, Tensor]  # shapes as in LayerWidths.weights
    stated: tuple[str, ...]  # names of the weights that the file states
    given: Mapping[StepKey, PrintedMatrix]
    claims: tuple[Claim, ...]
    source: str  # text of the TOML file
    scale: float | None = None  # factor of the scores, 1 without scaling; None divides by √d_k
    stated_d_k: int | None = None  # d_k, if the text shows fewer columns of Q and K
    memory: Float[Tensor, "memory_tokens kv_input_dim"] | None = None  # input of keys and values, if it is not x
    memory_tokens: tuple[str, ...] = ()
    biases: Mapping[str, Tensor] = field(default_factory=dict)  # stated ones; output: [1, dim], others: [heads, dim]
    rope: Rotary | None = None
    input_parts: InputParts | None = None  # embedding and positions that x is made of
    seed: int = 0  # of the weights that the file does not state
    as_drawn: tuple[str, ...] = ()  # names of the weights that equal those drawn from the seed, stated or not
    name: str = ""  # of a built-in example, or the path of its file

    @property
    def kv_heads(self) -> int:
        """Number of heads of K and V, each shared by heads / kv_heads query heads."""
        return self.weights["key"].shape[0]

    def key_head(self, head: int) -> int:
        """Return the key head that a query head uses, both counted from 0."""
        return key_head(head, self.heads, self.kv_heads)

    @property
    def d_k(self) -> int:
        """Width whose root divides the scores: the stated one, or the number of columns of Q."""
        return self.weights["query"].shape[2] if self.stated_d_k is None else self.stated_d_k

    @property
    def parts(self) -> InputParts:
        """Matrices that x is made of: x alone without embedding and positions."""
        return InputParts(self.x) if self.input_parts is None else self.input_parts

    def bias(self, name: str) -> Float[Tensor, "heads dim"]:
        """Return b_Q, b_K, b_V or b_O, which is 0 if the file states none."""
        shape = self.weights[name].shape
        zeros = torch.zeros(1 if name == "output" else shape[0], shape[-1], dtype=torch.float64)
        return self.biases.get(name, zeros)

    def additive_mask(self) -> Float[Tensor, "tokens memory_tokens"]:
        """Return M: 0 where a query may attend, −∞ where not."""
        size = len(self.x), len(self.x if self.memory is None else self.memory)
        zeros = torch.zeros(size, dtype=torch.float64)
        return zeros if self.mask is None else torch.where(self.mask.dense(*size)[0, 0], zeros, -torch.inf)

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
            kv_heads=self.kv_heads,
            kv_input_dim=None if self.memory is None else self.memory.shape[1],
            key_dim=query.shape[2],
            value_dim=value.shape[2],
            output_dim=output.shape[1],
            split="slice" if self.split == "slice" else "project",
            scale=self.stated_d_k**-0.5 if self.stated_d_k is not None else self.scale,
            rope=self.rope,
            bias=bool(self.biases),
            device="meta",
        )
        for name in WEIGHT_NAMES if self.biases else ():
            if name not in self.biases:
                getattr(layer, name).bias = None
        state = {f"{name}.weight": self.weights[name].transpose(1, 2).flatten(0, 1) for name in WEIGHT_NAMES[:3]}
        state |= {f"{name}.bias": bias.flatten() for name, bias in self.biases.items()}
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
        memory_tokens = None if self.memory is None else self.memory_tokens
        return trace_parts(
            self.layer(), self.parts, self.memory, self.mask, self.tokens, memory_tokens, given, self.stated_d_k
        )

    def to_toml(self) -> str:
        """Return the TOML file with the drawn weights added, so that every number can be edited."""
        with needs_extra("explain", "the TOML format"):
            import tomlkit

        document = tomlkit.parse(self.source)
        if self.drawn and "weights" not in document:
            document["weights"] = tomlkit.table()
        for name in self.drawn:
            matrices = unnested(self.weights[name]).tolist()
            document["weights"][name] = tomlkit.value(toml_value(matrices))  # pyright: ignore[reportIndexIssue]
        return document.as_string()
