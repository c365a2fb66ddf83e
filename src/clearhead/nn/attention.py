"""`MultiHeadAttention`: a layer of input projections, attention heads and an output projection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from clearhead._utils.checks import check_bool, check_int
from clearhead._utils.tensor_checks import check_device, check_float_dtype
from clearhead.functional import attention
from clearhead.nn._arguments import (
    check_cache,
    check_cached,
    check_inputs,
    check_positions,
    check_rope,
    check_split,
    project,
)
from clearhead.nn._pruning import drop_heads
from clearhead.nn._torch_weights import pack_torch, unpack_torch
from clearhead.nn.block_diagonal import BlockDiagonalLinear
from clearhead.nn.head import Head, check_head_indices, head_columns, join_heads, split_heads
from clearhead.nn.kv_cache import KVCache, KVCacheView
from clearhead.nn.parameters import assign_parameters
from clearhead.nn.rope import Rotary
from clearhead.ops.alibi import ALiBi
from clearhead.ops.arguments import check_dropout, check_return_weights, check_scale, check_softcap
from clearhead.ops.masks import Causal, Dense, Mask, query_positions
from clearhead.weights.matrix import AttentionWeights

QK_NORM_EPS = 1e-6
SIZE_OPTIONS = ("d_model", "heads", "kv_heads", "key_dim", "value_dim", "kv_input_dim", "output_dim")


class MultiHeadAttention(nn.Module):
    """Multi-head attention: every head projects the input and attends; W_O combines the outputs of all heads.

    Args:
        d_model: width of the input.
        heads: number of query heads.
        kv_heads: number of key and value heads, a divisor of `heads`. Query head h reads key head h // group. Default:
            `heads`.
        key_dim: width of a head's queries and keys. Default: d_model / heads.
        value_dim: width of a head's values. Default: key_dim.
        kv_input_dim: width of `memory`, from which keys and values are projected. Default: d_model.
        output_dim: width of the output. Default: d_model.
        bias: whether the four projections have a bias.
        dropout: fraction of attention weights dropped in training.
        split: "project" for the usual layer, in which every head projects the whole input. With "slice" query head h
            projects only slice h of `heads` slices of the input's columns, and key head g only slice g of `kv_heads`.
        rope: rotary positions for queries and keys: a `Rotary`, or True for `Rotary()`.
        qk_norm: normalize each head's queries and keys (RMS over key_dim, with learned gains), before `rope`.
        scale: factor of the scores. Default: 1/√key_dim.
        softcap: scores become softcap · tanh(score / softcap).
        sinks: whether each head has a learned logit that is part of the softmax's denominator and has no value.
        device: device of the parameters.
        dtype: dtype of the parameters.

    The four projections are the submodules `query`, `key`, `value` and `output`. Their weights are initialized
    Xavier-uniform (with "slice" per slice), biases and sinks with 0, gains with 1.

    Examples:
        >>> layer = MultiHeadAttention(d_model=512, heads=8)
        >>> x = torch.randn(2, 10, 512)
        >>> output, weights = layer(x, mask=Causal(), return_weights=True)
        >>> output.shape, weights.shape
        (torch.Size([2, 10, 512]), torch.Size([2, 8, 10, 10]))
    """

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
            raise ValueError(f"kv_heads is {kv_heads}; expected a divisor of the {heads} heads")
        if key_dim is None and self.d_model % self.heads:
            raise ValueError(
                f"d_model {d_model} is not divisible by {heads} heads; change one of them, or pass key_dim"
            )
        self.key_dim = self.d_model // self.heads if key_dim is None else check_int("key_dim", key_dim)
        self.value_dim = self.key_dim if value_dim is None else check_int("value_dim", value_dim)
        self.kv_input_dim = self.d_model if kv_input_dim is None else check_int("kv_input_dim", kv_input_dim)
        self.output_dim = self.d_model if output_dim is None else check_int("output_dim", output_dim)
        self.dropout = check_dropout(dropout)
        self.split = check_split(
            split, d_model=self.d_model, heads=self.heads, kv_input_dim=self.kv_input_dim, kv_heads=self.kv_heads
        )
        self.rope = check_rope(rope, self.key_dim)
        self.scale = None if scale is None else check_scale(scale, self.key_dim)
        self.softcap = check_softcap(softcap)
        bias, qk_norm, sinks = check_bool("bias", bias), check_bool("qk_norm", qk_norm), check_bool("sinks", sinks)
        factory: dict[str, Any] = {
            "device": check_device("device", device),
            "dtype": check_float_dtype("dtype", dtype),
        }

        def projection(width: int, count: int, dim: int) -> nn.Linear | BlockDiagonalLinear:
            if self.split == "slice":
                return BlockDiagonalLinear(width, count * dim, count, bias=bias, **factory)
            return nn.Linear(width, count * dim, bias=bias, **factory)

        try:
            self.query = projection(self.d_model, self.heads, self.key_dim)
            self.key = projection(self.kv_input_dim, self.kv_heads, self.key_dim)
            self.value = projection(self.kv_input_dim, self.kv_heads, self.value_dim)
            self.output = nn.Linear(self.heads * self.value_dim, self.output_dim, bias=bias, **factory)
        except (RuntimeError, TypeError) as error:  # the sizes overflow or exceed the memory
            sizes = ", ".join(f"{name} {getattr(self, name)}" for name in SIZE_OPTIONS)
            reason = str(error).partition("\n")[0]
            raise RuntimeError(f"a layer of {sizes} cannot be allocated; expected smaller sizes: {reason}") from error
        self.query_norm = nn.RMSNorm(self.key_dim, eps=QK_NORM_EPS, **factory) if qk_norm else None
        self.key_norm = nn.RMSNorm(self.key_dim, eps=QK_NORM_EPS, **factory) if qk_norm else None
        self.sinks = nn.Parameter(torch.empty(self.heads, **factory)) if sinks else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize all parameters again."""
        for projection in (self.query, self.key, self.value, self.output):
            matrices = projection.blocks if isinstance(projection, BlockDiagonalLinear) else [projection.weight]
            for matrix in matrices:
                nn.init.xavier_uniform_(matrix)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)
        for norm in (self.query_norm, self.key_norm):
            if norm is not None:
                norm.reset_parameters()
        if self.sinks is not None:
            nn.init.zeros_(self.sinks)

    def options(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        names = (*SIZE_OPTIONS, "dropout", "split", "rope", "scale", "softcap")
        switches = {
            "bias": self.output.bias is not None,
            "qk_norm": self.query_norm is not None,
            "sinks": self.sinks is not None,
        }
        return {name: getattr(self, name) for name in names} | switches

    def extra_repr(self) -> str:
        defaults = {
            "kv_heads": self.heads,
            "key_dim": self.d_model // self.heads,
            "value_dim": self.key_dim,
            "kv_input_dim": self.d_model,
            "output_dim": self.d_model,
            "bias": True,
            "dropout": 0.0,
            "split": "project",
        }
        options = {name: value for name, value in self.options().items() if value != defaults.get(name, False)}
        return ", ".join(f"{name}={value!r}" for name, value in options.items() if value is not None)

    # no overloads on return_weights: nn.Module types `layer(x)` as Any
    def forward(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        memory: Float[Tensor, "batch kv_len kv_input_dim"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
        bias: Tensor | ALiBi | None = None,
        query_start: int | Integer[Tensor, "*batch"] | None = None,
        positions: Int[Tensor, "*batch q_len"] | None = None,
        cache: KVCache | None = None,
        ablate: int | Iterable[int] | Tensor | None = None,
        return_weights: bool | Literal["keep_qk"] = False,
    ) -> Float[Tensor, "batch q_len output_dim"] | tuple[Tensor, AttentionWeights]:
        """Attend from `x` to itself, or to `memory`.

        Args:
            x: input of the queries, and of keys and values without `memory`.
            memory: input of keys and values, such as the output of an encoder.
            mask: as for `attention()`.
            bias: as for `attention()`.
            query_start: as for `attention()`. Default with a cache and without `memory`: after the cached keys.
            positions: positions of x for `rope`, `[q_len]` or `[batch, q_len]`. Default: consecutive, starting at 0 or
                after the cached tokens.
            cache: keys and values of earlier calls, which are attended to as well; those of this call are appended.
                With `memory` its keys are cached: pass memory once, and `memory[:, :0]` in later calls.
            ablate: heads whose contribution to the output is set to 0.
            return_weights: also return the attention matrix, a lazy `AttentionWeights`; "keep_qk" as in `attention()`.

        Returns:
            The output, or `(output, weights)` with `return_weights`.
        """
        has_rope = self.rope is not None
        check_inputs(x, memory, d_model=self.d_model, kv_input_dim=self.kv_input_dim, has_rope=has_rope)
        check_cache(cache, x, memory)
        check_positions(positions, x, has_rope=has_rope)
        return_weights = check_return_weights(return_weights)
        name, source = ("x", x) if memory is None else ("memory", memory)
        # the number of heads is inferred from the projected width, because tensor parallelism shards the columns
        query = split_heads(project(self.query, "x", x), self.key_dim)
        key = split_heads(project(self.key, name, source), self.key_dim)
        value = split_heads(project(self.value, name, source), self.value_dim)
        if self.query_norm is not None and self.key_norm is not None:
            # autocast does not cast the gains, so the norm runs in their dtype
            query = self.query_norm(query.to(self.query_norm.weight.dtype)).to(value.dtype)
            key = self.key_norm(key.to(self.key_norm.weight.dtype)).to(value.dtype)
        if self.rope is not None:
            if positions is None:
                n = x.shape[1]
                positions = query_positions(n, n, 0, x.device) if cache is None else cache.positions(n, x.device)
            query, key = self.rope(query, positions), self.rope(key, positions)
        view = None
        if cache is not None:
            requires_grad = torch.is_grad_enabled() and query.requires_grad
            view = cache.update(key, value, immutable=bool(return_weights) or requires_grad)
            check_cached(view, mask, bias)
            key, value = view.key, view.value
            if memory is None and query_start is None:
                query_start = view.query_start
                if x.shape[1] == 1 and view.mask is not None and isinstance(mask, Causal):
                    mask = None  # the last token attends to every valid key, so Causal() is redundant
            mask = _and_cache_mask(mask, view)
        weights = None
        attended = attention(
            query,
            key,
            value,
            mask=mask,
            bias=bias,
            scale=self.scale,
            softcap=self.softcap,
            sinks=_local(self.sinks),
            dropout=self.dropout if self.training else 0.0,
            query_start=query_start,
            return_weights=return_weights,
        )
        if isinstance(attended, tuple):
            attended, weights = attended
        if ablate is not None:
            attended = _zero_heads(attended, check_head_indices("ablate", ablate, attended.shape[1]))
        output = self.output(join_heads(attended))
        if cache is not None and view is not None:
            cache.commit(view)
        return output if weights is None else (output, weights)

    def head(self, index: int) -> Head:
        """Return the weights of one head as views: `layer.head(3).query_weight` is `[input, key_dim]`."""
        [index] = check_head_indices("index", check_int("index", index, least=0), self.heads)
        kv_index = index * self.kv_heads // self.heads
        query_rows, key_rows = head_columns(index, self.key_dim), head_columns(kv_index, self.key_dim)
        value_rows, output_columns = head_columns(kv_index, self.value_dim), head_columns(index, self.value_dim)
        columns, kv_columns = slice(0, self.d_model), slice(0, self.kv_input_dim)
        if self.split == "slice":
            columns = head_columns(index, self.d_model // self.heads)
            kv_columns = head_columns(kv_index, self.kv_input_dim // self.kv_heads)
        query_bias, key_bias, value_bias = self.query.bias, self.key.bias, self.value.bias
        return Head(
            index=index,
            columns=columns,
            kv_columns=kv_columns,
            query_weight=self.query.weight[query_rows].T,
            key_weight=self.key.weight[key_rows].T,
            value_weight=self.value.weight[value_rows].T,
            output_weight=self.output.weight[:, output_columns].T,
            query_bias=None if query_bias is None else query_bias[query_rows],
            key_bias=None if key_bias is None else key_bias[key_rows],
            value_bias=None if value_bias is None else value_bias[value_rows],
        )

    def drop_heads(self, heads: int | Iterable[int] | Tensor) -> MultiHeadAttention:
        """Return a smaller layer without these heads; its output lacks their contributions.

        If the groups of heads that share a key head become unequal, key and value heads are repeated to make them
        equal. A layer with split="slice" is converted by `to_projected`, as its slices would not cover the input.
        """
        if self.split == "slice":
            return self.to_projected().drop_heads(heads)
        dropped = check_head_indices("heads", heads, self.heads)
        with torch.enable_grad():  # otherwise slices would not inherit requires_grad
            options, parameters = drop_heads(self.options(), self._effective_parameters(), dropped)
        return assign_parameters(type(self)(**options, device="meta"), parameters, self.training)

    def to_projected(self) -> MultiHeadAttention:
        """Return an equivalent layer with split="project": slices become block-diagonal projections."""
        with torch.enable_grad():
            parameters = self._effective_parameters()
            for name in ("query", "key", "value"):
                projection = getattr(self, name)
                if isinstance(projection, BlockDiagonalLinear):
                    parameters[f"{name}.weight"] = torch.block_diag(*projection.blocks)
        options: dict[str, Any] = self.options() | {"split": "project"}
        return assign_parameters(type(self)(**options, device="meta"), parameters, self.training)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> MultiHeadAttention:
        """Return a layer with copies of a torch module's weights and the same outputs.

        The layer takes `[batch, length, d_model]`, also if the module has `batch_first=False`. In its masks True means
        that a query may attend to a key.

        Raises:
            ValueError: if the module has `add_bias_kv`, `add_zero_attn` or `kdim` ≠ `vdim`.
        """
        options, parameters = unpack_torch(module)
        return assign_parameters(cls(**options, device="meta"), parameters, module.training)

    def to_torch(self) -> nn.MultiheadAttention:
        """Return the equivalent `torch.nn.MultiheadAttention` with `batch_first=True`.

        Raises:
            ValueError: if torch has no equivalent, such as for `rope` or `sinks`.
        """
        projected = self.to_projected() if self.split == "slice" else self
        options, parameters = pack_torch(projected.options(), projected._effective_parameters())
        return assign_parameters(nn.MultiheadAttention(**options, device="meta"), parameters, self.training)

    def _effective_parameters(self) -> dict[str, Tensor]:
        """Return the learned tensors by state dict name; parametrized ones with their computed values."""
        tensors: dict[str, Tensor] = {} if self.sinks is None else {"sinks": self.sinks}
        for name in ("query", "key", "value", "output", "query_norm", "key_norm"):
            for kind in ("weight", "bias"):
                tensor = getattr(getattr(self, name), kind, None)
                if tensor is not None:
                    tensors[f"{name}.{kind}"] = tensor
        return tensors


def _local(sinks: Tensor | None) -> Tensor | None:
    """Return the sinks of this rank's heads: under tensor parallelism the local shard of a DTensor."""
    to_local = getattr(sinks, "to_local", None)
    return sinks if to_local is None else to_local()


def _zero_heads(output: Float[Tensor, "batch heads q_len dim"], indices: list[int]) -> Tensor:
    return output.index_fill(1, torch.tensor(indices, dtype=torch.long, device=output.device), 0.0)


def _and_cache_mask(mask: Mask | Tensor | None, view: KVCacheView) -> Mask | Tensor | None:
    """Return the mask of the keys that both the caller and the cache allow."""
    if mask is None or view.mask is None:
        return mask if view.mask is None else view.mask
    mask = Dense(mask) if isinstance(mask, Tensor) and mask.dtype == torch.bool else mask
    return mask & view.mask if isinstance(mask, Mask) else mask  # attention() rejects any other type
