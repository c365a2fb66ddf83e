"""`heads`: the matrices and circuits of every head of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from clearhead._utils.checks import describe
from clearhead._utils.tensor_checks import check_float_tensor, reject_inference_tensor
from clearhead.watching._projections import Projections, find_names, projections_of
from clearhead.watching._unwrap import unwrap
from clearhead.watching.adapters import load_optional
from clearhead.watching.low_rank import LowRank
from clearhead.watching.model_adapters import Address, adapter_of

HeadKey = tuple[int, int] | tuple[str, int, int] | tuple[str, int]


@dataclass(frozen=True, eq=False)
class Head:
    """Matrices of one head, as views of the model's parameters: `q = x @ W_Q + b_Q`, and so on.

    Heads that share a key head have the same `W_K` and `W_V`. Norms before and inside the attention, rotary positions
    and the scale of the scores are not part of the matrices.

    Attributes:
        stack: stack of the head, such as "decoder"; "" if it is unknown.
        layer: index of the attention module in its stack.
        index: index of the head in its layer.
        module: name of the attention module.
        output_bias: bias of the output projection. It belongs to the layer, not to a head.
    """

    stack: str
    layer: int
    index: int
    module: str
    W_Q: Float[Tensor, "model_dim key_dim"]
    W_K: Float[Tensor, "input_dim key_dim"]
    W_V: Float[Tensor, "input_dim value_dim"]
    W_O: Float[Tensor, "value_dim output_dim"]
    b_Q: Float[Tensor, " key_dim"] | None  # noqa: N815, the names of TransformerLens
    b_K: Float[Tensor, " key_dim"] | None  # noqa: N815
    b_V: Float[Tensor, " value_dim"] | None  # noqa: N815
    output_bias: Float[Tensor, " output_dim"] | None

    @property
    def qk(self) -> LowRank:
        """QK circuit `W_Q @ W_K.T`: scores without biases are `x @ qk @ y.T`, up to the scale.

        Rotary positions are not part of it: for a model that has them, it is the circuit at distance 0.
        """
        return LowRank(self.W_Q, self.W_K.T)

    @property
    def ov(self) -> LowRank:
        """OV circuit `W_V @ W_O`: `y @ ov` is what the head writes if it attends to `y`, without biases."""
        return LowRank(self.W_V, self.W_O)

    def copying_score(
        self,
        embedding: Float[Tensor, "vocabulary input_dim"] | None = None,
        unembedding: Float[Tensor, "vocabulary output_dim"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return the sum of the eigenvalues of the OV circuit divided by the sum of their absolute values.

        With embedding and unembedding it is the score of the circuit from tokens to logits (Elhage et al. 2021).

        Args:
            embedding: `model.get_input_embeddings().weight`.
            unembedding: `model.get_output_embeddings().weight`.
        """
        if (embedding is None) != (unembedding is None):
            missing = "embedding" if embedding is None else "unembedding"
            raise ValueError(f"{missing} is None; expected both embedding and unembedding, or neither")
        if embedding is None or unembedding is None:
            return self.ov.copying_score()
        embedding = _table("embedding", embedding, self.W_V.shape[0], self.W_V)
        unembedding = _table("unembedding", unembedding, self.W_O.shape[1], self.W_O)
        if len(embedding) != len(unembedding):
            raise ValueError(
                f"embedding has {len(embedding)} rows and unembedding {len(unembedding)}; expected one per token"
            )
        return LowRank(embedding @ self.W_V, self.W_O @ unembedding.T).copying_score()

    def __repr__(self) -> str:
        return f"Head({self.layer}, {self.index} of {self.module}: {list(self.W_Q.shape)})"


def _table(name: str, table: object, width: int, weight: Tensor) -> Float[Tensor, "vocabulary width"]:
    """Return the vectors of all tokens, in the dtype and on the device of a weight."""
    expected = f"a matrix [vocabulary, {width}]"
    checked = check_float_tensor(name, table, expected)
    if checked.ndim != 2 or checked.shape[1] != width or not len(checked):
        raise ValueError(f"{name} has shape {list(checked.shape)}; expected {expected}")
    if checked.is_meta:
        raise ValueError(f"{name} is on the meta device; expected a tensor with values")
    reject_inference_tensor(name, checked)
    return checked.to(weight)


class Heads(Mapping[HeadKey, Head]):
    """Heads of a model: a mapping from (layer, head) to `Head`, in module order.

    If a model has several stacks, keys are (stack, layer, head). `heads["model.layers.3.self_attn", 5]` is a head by
    the name of its module.
    """

    def __init__(self, model: nn.Module, addresses: Mapping[str, Address]) -> None:
        self._model, self._addresses = model, addresses
        self._names = {address: name for name, address in addresses.items()}

    @property
    def stacks(self) -> list[str]:
        """Names of the stacks."""
        return list(dict.fromkeys(stack for stack, _ in self._names))

    def layers(self, stack: str | None = None) -> list[Projections]:
        """Return the projections of all layers of a stack (default: the only one)."""
        return [projections_of(self._model, name) for name in self.modules(stack)]

    def modules(self, stack: str | None = None) -> list[str]:
        """Return the names of the attention modules of a stack (default: the only one)."""
        chosen = self.stacks[0] if stack is None and len(self.stacks) == 1 else stack
        if not isinstance(chosen, str) or chosen not in self.stacks:
            raise ValueError(f"stack is {describe(stack)}; expected one of {', '.join(map(repr, self.stacks))}")
        return [name for (other, _), name in self._names.items() if other == chosen]

    def all_modules(self) -> list[str]:
        """Return the names of the attention modules of all stacks."""
        return list(self._addresses)

    def __getitem__(self, key: HeadKey) -> Head:
        name, index = self._find(key)
        projections = projections_of(self._model, name)
        if not 0 <= index < projections.heads:
            raise KeyError(f"{describe(key)} is not a head; {name} has heads 0 to {projections.heads - 1}")
        stack, layer = self._addresses.get(name, ("", 0))
        shared = index // projections.group
        return Head(
            stack=stack,
            layer=layer,
            index=index,
            module=name,
            W_Q=projections.query.weight(index),
            W_K=projections.key.weight(shared),
            W_V=projections.value.weight(shared),
            W_O=projections.output_weight(index),
            b_Q=projections.query.bias(index),
            b_K=projections.key.bias(shared),
            b_V=projections.value.bias(shared),
            output_bias=projections.output.bias,
        )

    def __iter__(self) -> Iterator[HeadKey]:
        several = len(self.stacks) > 1
        for name, (stack, layer) in self._addresses.items():
            for index in range(projections_of(self._model, name).heads):
                yield (stack, layer, index) if several else (layer, index)

    def __len__(self) -> int:
        return sum(projections_of(self._model, name).heads for name in self._addresses)

    def _find(self, key: Any) -> tuple[str, int]:
        """Return the name of a module and the index of a head."""
        match key:
            case (int(layer), int(index)) if len(self.stacks) == 1:
                address = (self.stacks[0], layer)
            case (str(stack), int(layer), int(index)):
                address = (stack, layer)
            case (str(name), int(index)) if name in self._addresses or _has_projections(self._model, name):
                return name, index
            case _:
                raise KeyError(f"{describe(key)} is not a head; {self._expected()}")
        if address not in self._names:
            raise KeyError(f"{describe(key)} is not a head; {self._expected()}")
        return self._names[address], index

    def _expected(self) -> str:
        counts = {stack: sum(stack == other for other, _ in self._names) for stack in self.stacks}
        if len(counts) == 1:
            return f"expected (layer, head) with layers 0 to {len(self._names) - 1}, or (module name, head)"
        ranges = ", ".join(f"{stack!r} with layers 0 to {count - 1}" for stack, count in counts.items())
        return f"expected (stack, layer, head), with {ranges}, or (module name, head)"

    def __repr__(self) -> str:
        return f"Heads({type(self._model).__name__}: {len(self._addresses)} layers)"


def _has_projections(model: nn.Module, name: str) -> bool:
    return name in dict(model.named_modules()) and find_names(model, name) is not None


def heads(model: Any) -> Heads:
    """Return the matrices of every head of a model, as views of its parameters.

        head = heads(model)[18, 6]                # layer 18, head 6
        head.W_Q, head.W_K, head.W_V              # [model_dim, head_dim]
        head.W_O                                  # [head_dim, model_dim]
        head.ov.eigenvalues()                     # of W_V @ W_O, without the matrix

    The projections are found by the names and shapes of linear layers, separate or fused, also of
    `nn.MultiheadAttention`. Grouped heads are resolved: query head h has the matrices of key head h // group. Layers
    are the attention modules of a transformers model, as for `watch`, or those of another model in module order.

    Args:
        model: a torch module, or a wrapper or pipeline that contains one.

    Raises:
        ValueError: if there is no attention module with known projections. For a module with other projections, such
            as those of multi-head latent attention, its heads raise the error.
    """
    load_optional()
    root = unwrap(model)
    adapter = adapter_of(root)
    addresses = {} if adapter is None else adapter.addresses()
    if not addresses:
        names = [name for name, _ in root.named_modules() if find_names(root, name) is not None]
        addresses = {name: ("", layer) for layer, name in enumerate(names)}
    if not addresses:
        raise ValueError(
            f"{type(root).__name__} has no attention module with known projections; expected one with linear layers"
            " such as q_proj, k_proj, v_proj and o_proj, or a fused qkv and proj"
        )
    return Heads(root, addresses)
