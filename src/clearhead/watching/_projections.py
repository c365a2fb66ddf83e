"""Projections of an attention module, found by the names and shapes of its linear layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from clearhead._utils.torch_internals import PLAIN_TENSORS

INPUTS = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q", "k", "v"),
    ("to_q", "to_k", "to_v"),
    ("q_lin", "k_lin", "v_lin"),
    ("Wq", "Wk", "Wv"),
)
OUTPUTS = (
    "o_proj", "out_proj", "output", "dense", "o", "to_out.0", "out_lin", "Wo", "proj", "projection_layer",
    "output.dense",
)  # fmt: skip
PARENT_OUTPUT = "output.dense"  # in BERT and its relatives, a child of the parent module
# fused layer and output layer; codegen has qkv_proj with out_proj, in another layout
FUSED = (
    ("c_attn", "c_proj"),
    ("query_key_value", "dense"),
    ("qkv", "proj"),
    ("qkv", "projection"),
    ("qkv_proj", "o_proj"),
    ("Wqkv", "Wo"),
    ("Wqkv", "out_proj"),
)
INTERLEAVED = "query_key_value"  # per key head: its query heads, its key, its value; the others: all q, all k, all v
# biases outside of the linear layers (BEiT, GPT-NeoX Japanese), and differential attention, whose heads are pairs
UNSUPPORTED = ("q_bias", "dense_bias", "lambda_q1")
HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")
HEAD_WIDTHS = ("head_dim", "attention_head_size", "key_value_proj_dim")
EXPECTED = "q_proj, k_proj, v_proj and o_proj, or a fused qkv and proj"


class Linear(NamedTuple):
    """Weight and bias of a layer that computes `x @ weight + bias`."""

    weight: Float[Tensor, "input_dim output_dim"]
    bias: Float[Tensor, " output_dim"] | None


@dataclass(frozen=True, eq=False)
class HeadColumns:
    """Columns of each head in a projection."""

    linear: Linear
    starts: Sequence[int]
    width: int

    def weight(self, head: int) -> Float[Tensor, "input_dim width"]:
        """Return the weight of one head, as a view."""
        return self.linear.weight[:, self._columns(head)]

    def bias(self, head: int) -> Float[Tensor, " width"] | None:
        """Return the bias of one head, as a view."""
        return None if self.linear.bias is None else self.linear.bias[self._columns(head)]

    def _columns(self, head: int) -> slice:
        return slice(self.starts[head], self.starts[head] + self.width)


@dataclass(frozen=True, eq=False)
class Projections:
    """Projections of one attention module. Query head h reads key head h // group."""

    query: HeadColumns
    key: HeadColumns
    value: HeadColumns
    output: Linear  # its rows are the heads, one after the other

    @property
    def heads(self) -> int:
        return len(self.query.starts)

    @property
    def group(self) -> int:
        return self.heads // len(self.key.starts)

    def output_weight(self, head: int) -> Float[Tensor, "value_dim output_dim"]:
        """Return the rows of one head in the output projection, as a view."""
        width = self.value.width
        return self.output.weight[head * width : (head + 1) * width]


class Names(NamedTuple):
    """Names of the layers of an attention module: three inputs or a fused one, and the output.

    The output is a path in the model, which may be outside of the module.
    """

    inputs: tuple[str, ...]
    output: str


def find_names(model: nn.Module, name: str) -> Names | None:
    """Return the names of the projections of a module; None if it has none that are supported."""
    module = model.get_submodule(name)
    if hasattr(module, "in_proj_weight") and _is_linear(_child(module, "out_proj")):
        return Names(("in_proj_weight",), join(name, "out_proj"))  # nn.MultiheadAttention and open_clip
    for fused, output in FUSED:
        if _child(module, fused) is not None and _child(module, output) is not None:
            # another linear layer is a sign of another layout: GPT-2's cross-attention has q_attn too
            return Names((fused,), join(name, output)) if set(linear_children(module)) <= {fused, output} else None
    for inputs in INPUTS:
        if all(_child(module, child) is not None for child in inputs):
            parent, parent_name = _parent(model, name)
            inside = [join(name, output) for output in OUTPUTS if _is_linear(_child(module, output))]
            outside = [join(parent_name, PARENT_OUTPUT)] if _is_linear(_child(parent, PARENT_OUTPUT)) else []
            return Names(inputs, [*inside, *outside][0]) if inside or outside else None
    return None


def projections_of(model: nn.Module, name: str) -> Projections:
    """Return the projections of an attention module.

    Raises:
        ValueError: if they are not supported, or if their shapes contradict each other.
    """
    module, names = model.get_submodule(name), find_names(model, name)
    if names is None:
        children = ", ".join(linear_children(module)) or "none"
        raise ValueError(f"{name} ({type(module).__name__}) has the linear layers {children}; expected {EXPECTED}")
    for other in UNSUPPORTED:
        if isinstance(getattr(module, other, None), Tensor):
            raise ValueError(f"{name} ({type(module).__name__}) has a parameter {other}; expected only linear layers")
    output = _linear(model.get_submodule(names.output), names.output)
    if len(names.inputs) == 3:
        inputs = [_linear(module.get_submodule(child), join(name, child)) for child in names.inputs]
        return _separate(module, name, inputs, output)
    if names.inputs == ("in_proj_weight",):
        inputs = _torch_inputs(module)
        return _separate(module, name, inputs, output)
    [fused] = names.inputs
    # GPTBigCode without multi_query is the only one that interleaves c_attn
    interleaved = fused == INTERLEAVED or getattr(module, "multi_query", True) is False
    return _fused(module, name, _linear(module.get_submodule(fused), join(name, fused)), output, interleaved)


def head_counts(module: nn.Module) -> tuple[int, int] | None:
    """Return the numbers of query heads and key heads of a module; None if its projections are not supported."""
    try:
        projections = projections_of(module, "")
    except ValueError:
        return None
    if type(projections.query.linear.weight) not in PLAIN_TENSORS:  # of a shard, with the heads of all shards
        return None
    return projections.heads, projections.heads // projections.group


def linear_children(module: nn.Module) -> list[str]:
    """Return the names of the children that are linear layers."""
    return [name for name, child in module.named_children() if _is_linear(child)]


def _separate(module: nn.Module, name: str, inputs: Sequence[Linear], output: Linear) -> Projections:
    query, key, value = (linear.weight.shape[1] for linear in inputs)
    heads = _head_count(module, name, query)
    width = query // heads
    kv_heads = key // width
    if key % width or not kv_heads or heads % kv_heads or value % kv_heads:
        raise ValueError(f"{name} has {heads} heads with keys of {key} and values of {value} columns; {_SHAPES}")
    value_width = value // kv_heads
    _check_output(name, heads * value_width, output)
    q, k, v = (
        HeadColumns(linear, range(0, linear.weight.shape[1], size), size)
        for linear, size in zip(inputs, (width, width, value_width), strict=True)
    )
    return Projections(q, k, v, output)


def _fused(module: nn.Module, name: str, fused: Linear, output: Linear, interleaved: bool) -> Projections:
    total, query = fused.weight.shape[1], output.weight.shape[0]
    heads = _head_count(module, name, query)
    width = query // heads
    kv_heads = (total - query) // (2 * width)
    if total != (heads + 2 * kv_heads) * width or not kv_heads or heads % kv_heads:
        raise ValueError(f"{name} has {heads} heads of {width} in a fused projection of {total} columns; {_SHAPES}")
    group = heads // kv_heads
    order = [*range(heads)], [*range(heads, heads + kv_heads)], [*range(heads + kv_heads, heads + 2 * kv_heads)]
    if interleaved:
        order = (
            [h // group * (group + 2) + h % group for h in range(heads)],
            [g * (group + 2) + group for g in range(kv_heads)],
            [g * (group + 2) + group + 1 for g in range(kv_heads)],
        )
    q, k, v = (HeadColumns(fused, [index * width for index in part], width) for part in order)
    return Projections(q, k, v, output)


_SHAPES = "expected a number of columns that the heads share equally"


def _check_output(name: str, width: int, output: Linear) -> None:
    if output.weight.shape[0] != width:
        raise ValueError(
            f"{name} has an output projection of {output.weight.shape[0]} columns; expected {width}, those of its"
            " heads' values. Gated attention and other extensions are not supported"
        )


def _head_count(module: nn.Module, name: str, query_width: int) -> int:
    """Return the number of query heads, from the attributes of a module or its configuration."""
    width = _first_int(module, HEAD_WIDTHS)
    heads = _first_int(module, HEAD_COUNTS)
    if heads is None:
        heads = query_width // width if width else _first_int(getattr(module, "config", None), HEAD_COUNTS)
    if heads is None:
        kind = type(module).__name__
        raise ValueError(f"{name} ({kind}) has no number of heads; expected an attribute such as num_heads or head_dim")
    if query_width % heads or (width and heads * width != query_width):
        of = f" of {width} columns" if width else ""
        raise ValueError(f"{name} has {heads} heads{of}, but queries of {query_width} columns; {_SHAPES}")
    return heads


def _first_int(owner: object, names: Sequence[str]) -> int | None:
    values = (getattr(owner, name, None) for name in names)
    return next((value for value in values if type(value) is int and value > 0), None)


def _linear(layer: Any, path: str) -> Linear:
    """Return weight and bias of an nn.Linear, or of a Conv1D of transformers, whose weight is transposed."""
    kind = type(layer).__name__
    if hasattr(layer, "base_layer"):
        raise ValueError(f"{path} is a {kind}, with an adapter; expected a linear layer. Merge the adapter first")
    is_conv = hasattr(layer, "nf")
    features = (layer.nx, layer.nf) if is_conv else (layer.out_features, layer.in_features)
    weight, bias = layer.weight, getattr(layer, "bias", None)
    is_plain = isinstance(weight, Tensor) and weight.is_floating_point() and weight.dtype.itemsize > 1
    if not is_plain or weight.shape != features:
        shape = f"{weight.dtype} {list(weight.shape)}" if isinstance(weight, Tensor) else "packed"
        raise ValueError(
            f"{path} is a {kind} with weight {shape}; expected a floating-point weight of {list(features)}."
            " Quantized and block-diagonal layers are not supported"
        )
    return Linear(weight if is_conv else weight.T, bias)


def _torch_inputs(module: Any) -> list[Linear]:
    """Return the input projections of nn.MultiheadAttention."""
    weights = (
        [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
        if getattr(module, "in_proj_weight", None) is None
        else module.in_proj_weight.chunk(3)
    )
    biases = [None] * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    return [Linear(weight.T, bias) for weight, bias in zip(weights, biases, strict=True)]


def _child(module: nn.Module, path: str) -> nn.Module | None:
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


def _parent(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    parent = name.rpartition(".")[0]
    return model.get_submodule(parent), parent


def _is_linear(layer: nn.Module | None) -> bool:
    return hasattr(layer, "weight") and (hasattr(layer, "out_features") or hasattr(layer, "nf"))


def join(parent: str, child: str) -> str:
    """Return the path of a child, also of the model itself, whose name is empty."""
    return f"{parent}.{child}" if parent else child
