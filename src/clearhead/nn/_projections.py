"""The parameters of multi-head attention, and what can be done with them without running them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self, TypeVar

import torch
from torch import Tensor, nn

from clearhead._utils.checks import check_bool, check_choice, check_int, describe
from clearhead._utils.tensor_checks import check_device, check_float_dtype
from clearhead.nn.block_diagonal import SlicedLinear
from clearhead.nn.head import Head, check_head_indices, head_columns, heads_columns
from clearhead.nn.rope import Rotary
from clearhead.ops.arguments import check_dropout, check_scale, check_softcap
from clearhead.ops.call import kv_heads_of

NORM_EPS = 1e-6
SIZES = ("d_model", "heads", "kv_heads", "key_dim", "value_dim", "kv_input_dim", "output_dim")


class Projections(nn.Module):
    """Four Linears, `query`, `key`, `value` and `output`, with what else is learned; see `MultiHeadAttention`."""

    def __init__(
        self,
        d_model: int = 512,
        heads: int = 8,
        *,
        kv_heads: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        kv_input_dim: int | None = None,
        output_dim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        split: Literal["project", "slice"] = "project",
        rope: Rotary | bool | None = None,
        qk_norm: bool = False,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.heads = check_int("d_model", d_model), check_int("heads", heads)
        self.kv_heads = self.heads if kv_heads is None else check_int("kv_heads", kv_heads)
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads is {kv_heads}, which does not divide the {heads} heads into equal groups")
        if key_dim is None and self.d_model % self.heads:
            raise ValueError(
                f"d_model {d_model} is not divisible by {heads} heads; change one of them, or give key_dim"
            )
        self.key_dim = self.d_model // self.heads if key_dim is None else check_int("key_dim", key_dim)
        self.value_dim = self.key_dim if value_dim is None else check_int("value_dim", value_dim)
        self.kv_input_dim = self.d_model if kv_input_dim is None else check_int("kv_input_dim", kv_input_dim)
        self.output_dim = self.d_model if output_dim is None else check_int("output_dim", output_dim)
        self.dropout = check_dropout(dropout)
        self.split = _checked_split(split, self)
        self.rope = _checked_rope(rope, self.key_dim)
        self.scale = None if scale is None else check_scale(scale, self.key_dim)
        self.softcap = check_softcap(softcap)
        bias, qk_norm, sinks = check_bool("bias", bias), check_bool("qk_norm", qk_norm), check_bool("sinks", sinks)
        at: dict[str, Any] = {"device": check_device("device", device), "dtype": check_float_dtype("dtype", dtype)}

        def projection(width: int, count: int, dim: int) -> nn.Linear | SlicedLinear:
            if self.split == "slice":
                return SlicedLinear(width, count * dim, count, bias=bias, **at)
            return nn.Linear(width, count * dim, bias=bias, **at)

        try:
            self.query = projection(self.d_model, self.heads, self.key_dim)
            self.key = projection(self.kv_input_dim, self.kv_heads, self.key_dim)
            self.value = projection(self.kv_input_dim, self.kv_heads, self.value_dim)
            self.output = nn.Linear(self.heads * self.value_dim, self.output_dim, bias=bias, **at)
        except (RuntimeError, TypeError) as error:  # sizes that overflow, or are more than there is memory for
            sizes = ", ".join(f"{name} {getattr(self, name)}" for name in SIZES)
            reason = str(error).partition("\n")[0]
            raise RuntimeError(f"a layer of {sizes} cannot be allocated; expected smaller sizes: {reason}") from error
        self.query_norm = nn.RMSNorm(self.key_dim, eps=NORM_EPS, **at) if qk_norm else None
        self.key_norm = nn.RMSNorm(self.key_dim, eps=NORM_EPS, **at) if qk_norm else None
        self.sinks = nn.Parameter(torch.empty(self.heads, **at)) if sinks else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for projection in (self.query, self.key, self.value, self.output):
            matrices = projection.blocks if isinstance(projection, SlicedLinear) else [projection.weight]
            for matrix in matrices:
                nn.init.xavier_uniform_(matrix)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)
        for norm in (self.query_norm, self.key_norm):
            if norm is not None:
                norm.reset_parameters()
        if self.sinks is not None:
            nn.init.zeros_(self.sinks)

    def extra_repr(self) -> str:
        usual = {
            "kv_heads": self.heads,
            "key_dim": self.d_model // self.heads,
            "value_dim": self.key_dim,
            "kv_input_dim": self.d_model,
            "output_dim": self.d_model,
            "bias": True,
            "dropout": 0.0,
            "split": "project",
        }
        options = {name: value for name, value in self.options().items() if value != usual.get(name, False)}
        return ", ".join(f"{name}={value!r}" for name, value in options.items() if value is not None)

    # -- heads one by one ----------------------------------------------------------------------------------------

    def head(self, number: int) -> Head:
        """The weights of one head, as views: `layer.head(3).query_weight` is `[input, key_dim]`, used as `x @ W`."""
        [number] = check_head_indices("number", check_int("number", number, least=0), self.heads)
        key_number = number * self.kv_heads // self.heads
        own, shared = head_columns(number, self.key_dim), head_columns(key_number, self.key_dim)
        value, joined = head_columns(key_number, self.value_dim), head_columns(number, self.value_dim)
        columns, kv_columns = slice(0, self.d_model), slice(0, self.kv_input_dim)
        if self.split == "slice":
            columns = head_columns(number, self.d_model // self.heads)
            kv_columns = head_columns(key_number, self.kv_input_dim // self.kv_heads)
        query_bias, key_bias, value_bias = self.query.bias, self.key.bias, self.value.bias
        return Head(
            number=number,
            columns=columns,
            kv_columns=kv_columns,
            query_weight=self.query.weight[own].T,
            key_weight=self.key.weight[shared].T,
            value_weight=self.value.weight[value].T,
            output_weight=self.output.weight[:, joined].T,
            query_bias=None if query_bias is None else query_bias[own],
            key_bias=None if key_bias is None else key_bias[shared],
            value_bias=None if value_bias is None else value_bias[value],
        )

    def drop_heads(self, heads: int | Iterable[int]) -> Self:
        """A smaller layer without these heads: the output is that of this layer less their contributions.

        Where groups of heads that share a key head become unequal, key and value heads are repeated until they are
        equal again. A layer with split="slice" becomes a projected one, because its slices would no longer cover the
        input.
        """
        if self.split == "slice":
            return self.to_projected().drop_heads(heads)
        dropped = check_head_indices("heads", heads, self.heads)
        kept = [number for number in range(self.heads) if number not in dropped]
        if not kept:
            raise ValueError(f"heads names all {self.heads} of them; at least one must stay")
        read = kv_heads_of(kept, self.heads // self.kv_heads)
        with torch.enable_grad():  # so that each part knows whether it is to be trained
            state = self.tensors()
            for name, numbers, dim in (
                ("query", kept, self.key_dim),
                ("key", read, self.key_dim),
                ("value", read, self.value_dim),
            ):
                rows = heads_columns(numbers, dim)
                state.update({full: t[rows] for full, t in state.items() if full.startswith(f"{name}.")})
            state["output.weight"] = self.output.weight[:, heads_columns(kept, self.value_dim)]
            if self.sinks is not None:
                state["sinks"] = self.sinks[kept]
        return self._like(state, heads=len(kept), kv_heads=len(read))

    # -- other forms of the same layer ---------------------------------------------------------------------------

    def to_projected(self) -> Self:
        """The usual layer with the same outputs: slices become block-diagonal projections of the whole input."""
        with torch.enable_grad():
            state = self.tensors()
            for name in ("query", "key", "value"):
                projection = getattr(self, name)
                if isinstance(projection, SlicedLinear):
                    state[f"{name}.weight"] = torch.block_diag(*projection.blocks)
        return self._like(state, split="project")

    def _like(self, state: Mapping[str, Tensor], **changes: Any) -> Self:
        """A layer with other options and these parameters."""
        options: dict[str, Any] = self.options() | changes
        return filled(type(self)(**options, device="meta"), state, self.training)

    def tensors(self) -> dict[str, Tensor]:
        """What is learned, by its name in the state dict, as the projections use it (parametrized or not)."""
        found: dict[str, Tensor] = {} if self.sinks is None else {"sinks": self.sinks}
        for name in ("query", "key", "value", "output", "query_norm", "key_norm"):
            for kind in ("weight", "bias"):
                tensor = getattr(getattr(self, name), kind, None)
                if tensor is not None:
                    found[f"{name}.{kind}"] = tensor
        return found

    def options(self) -> dict[str, Any]:
        """The constructor's arguments."""
        names = (*SIZES, "dropout", "split", "rope", "scale", "softcap")
        switches = {
            "bias": self.output.bias is not None,
            "qk_norm": self.query_norm is not None,
            "sinks": self.sinks is not None,
        }
        return {name: getattr(self, name) for name in names} | switches


Module = TypeVar("Module", bound=nn.Module)


def filled(module: Module, state: Mapping[str, Tensor], training: bool) -> Module:
    """A module made on the meta device, with copies of these parameters; those that required a gradient do again."""
    module.load_state_dict({name: tensor.detach().clone() for name, tensor in state.items()}, assign=True)
    for name, tensor in state.items():
        module.get_parameter(name).requires_grad_(tensor.requires_grad)
    return module.train(training)


def _checked_split(split: object, layer: Projections) -> str:
    split = check_choice("split", split, ("project", "slice"))
    if split == "slice":
        for name, width, what, count in (
            ("d_model", layer.d_model, "heads", layer.heads),
            ("kv_input_dim", layer.kv_input_dim, "kv_heads", layer.kv_heads),
        ):
            if width % count:
                raise ValueError(f"{name} {width} is not divisible by {what} {count}, as split='slice' needs")
    return split


def _checked_rope(rope: object, key_dim: int) -> Rotary | None:
    if rope is None or rope is False:
        return None
    rope = Rotary() if rope is True else rope
    if not isinstance(rope, Rotary):
        raise TypeError(f"rope is {describe(rope)}; expected a Rotary, True for Rotary(), or None")
    rope.turned(key_dim)
    return rope
