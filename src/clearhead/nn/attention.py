"""`MultiHeadAttention`: projections, many heads at once, concat and W_O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Self, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead._utils.checks import check_bool
from clearhead._utils.tensor_checks import check_dense_tensor, check_float_tensor, reject_inference_tensor
from clearhead.functional import attention
from clearhead.nn import _torch_weights
from clearhead.nn._projections import Projections, filled
from clearhead.nn.head import check_head_indices, join_heads, split_heads
from clearhead.nn.kv_cache import Held, KVCache
from clearhead.ops.alibi import ALiBi
from clearhead.ops.masks import Causal, Dense, Mask
from clearhead.ops.masks import query_positions as consecutive
from clearhead.weights.matrix import AttentionWeights


class MultiHeadAttention(Projections):
    """Multi-head attention: every head projects the input, attends, and all heads' outputs are mixed by W_O.

    Args:
        d_model: width of the input, and of the output unless `output_dim` says otherwise.
        heads: number of query heads.
        kv_heads: number of key and value heads, which must divide `heads` (query head h reads key head h // group);
            as many as `heads` by default.
        key_dim, value_dim: width of a head's queries and keys, and of its values. By default key_dim is
            d_model / heads and value_dim is key_dim.
        kv_input_dim: width of what keys and values are projected from (`memory`); d_model by default.
        output_dim: width of the output; d_model by default.
        bias: whether the four projections have one.
        dropout: share of attention weights dropped in training.
        split: "project": every head projects the whole input, the usual layer. "slice": head h sees only the h-th of
            `heads` slices of the input's columns (key head g the g-th of `kv_heads` slices) with a small matrix of its
            own.
        rope: rotary positions for queries and keys: a `Rotary`, or True for `Rotary()`.
        qk_norm: normalise each head's queries and keys (RMS over key_dim, with learned gains), before `rope`.
        scale: of the scores; 1/√key_dim by default.
        softcap: scores become softcap · tanh(score / softcap).
        sinks: whether each head has a learned logit that takes part in the softmax and is then dropped.
        device, dtype: of the parameters.

    Parameters are those of four Linears, `query`, `key`, `value` and `output`. Matrices start Xavier-uniform (each
    slice's own matrix by its own width), biases and sinks at 0, gains at 1.

    >>> layer = MultiHeadAttention(d_model=512, heads=8)
    >>> x = torch.randn(2, 10, 512)
    >>> output, weights = layer(x, mask=Causal(), return_weights=True)
    >>> output.shape, weights.shape
    (torch.Size([2, 10, 512]), torch.Size([2, 8, 10, 10]))
    """

    # -- the computation -----------------------------------------------------------------------------------------

    @overload
    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = ...,
        *,
        mask: Mask | Tensor | None = ...,
        bias: Tensor | ALiBi | None = ...,
        query_start: int | Tensor | None = ...,
        positions: Tensor | None = ...,
        cache: KVCache | None = ...,
        ablate: int | Iterable[int] | None = ...,
        return_weights: Literal[False] = ...,
    ) -> Tensor: ...
    @overload
    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = ...,
        *,
        mask: Mask | Tensor | None = ...,
        bias: Tensor | ALiBi | None = ...,
        query_start: int | Tensor | None = ...,
        positions: Tensor | None = ...,
        cache: KVCache | None = ...,
        ablate: int | Iterable[int] | None = ...,
        return_weights: Literal[True],
    ) -> tuple[Tensor, AttentionWeights]: ...
    def forward(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        memory: Float[Tensor, "batch kv_len kv_input_dim"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
        bias: Tensor | ALiBi | None = None,
        query_start: int | Int[Tensor, " batch"] | None = None,
        positions: Int[Tensor, "*batch q_len"] | None = None,
        cache: KVCache | None = None,
        ablate: int | Iterable[int] | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "batch q_len output_dim"] | tuple[Tensor, AttentionWeights]:
        """Attend from `x` to itself, or to `memory`.

        Args:
            mask, bias, query_start: as for `attention()`. A cache says where the queries stand; `query_start` overrules
                it.
            positions: where the tokens of x stand for `rope`: `[q_len]` or `[batch, q_len]`; by default one after the
                other, from 0 or from what the cache has read.
            cache: keys and values of earlier calls are attended to as well, and those of this one are added. With
                `memory` it is memory's keys that are added: give memory once, and `memory[:, :0]` after that.
            ablate: heads whose contribution to the output is left out.
            return_weights: also return the attention matrix, as a lazy `AttentionWeights`.
        """
        self._check_inputs(x, memory, positions, cache)
        return_weights = check_bool("return_weights", return_weights)
        name, source = ("x", x) if memory is None else ("memory", memory)
        # the number of heads follows from the projected width, so that a layer sharded by columns works unchanged
        query = split_heads(_project(self.query, "x", x), self.key_dim)
        key = split_heads(_project(self.key, name, source), self.key_dim)
        value = split_heads(_project(self.value, name, source), self.value_dim)
        if self.query_norm is not None and self.key_norm is not None:
            # in the gains' own dtype, which autocast leaves as it is
            query = self.query_norm(query.to(self.query_norm.weight.dtype)).to(value.dtype)
            key = self.key_norm(key.to(self.key_norm.weight.dtype)).to(value.dtype)
        if self.rope is not None:
            if positions is None:
                n = x.shape[1]
                positions = consecutive(n, n, 0, x.device) if cache is None else cache.positions(n, x.device)
            query, key = self.rope(query, positions), self.rope(key, positions)
        held = None
        if cache is not None:
            learning = torch.is_grad_enabled() and query.requires_grad
            held = cache.offer(key, value, lasting=return_weights or learning)
            _check_whole(held, mask, bias)
            key, value = held.key, held.value
            if memory is None and query_start is None:
                query_start = held.query_start
                if x.shape[1] == 1 and held.mask is not None and isinstance(mask, Causal):
                    mask = None  # a single new token is the last of its text: what is causal is what is real
            mask = _with_held(mask, held)
        options: dict[str, Any] = {
            "mask": mask,
            "bias": bias,
            "scale": self.scale,
            "softcap": self.softcap,
            "sinks": _local(self.sinks),
            "dropout": self.dropout if self.training else 0.0,
            "query_start": query_start,
        }
        weights = None
        if return_weights:
            output, weights = attention(query, key, value, return_weights=True, **options)
        else:
            output = attention(query, key, value, **options)
        if ablate is not None:
            output = _without(output, check_head_indices("ablate", ablate, output.shape[1]))
        mixed = self.output(join_heads(output))
        if cache is not None and held is not None:
            cache.accept(held)
        return mixed if weights is None else (mixed, weights)

    def _check_inputs(self, x: Tensor, memory: Tensor | None, positions: Tensor | None, cache: KVCache | None) -> None:
        x = check_float_tensor("x", x, f"[batch, q_len, {self.d_model}] (d_model)")
        if x.ndim != 3 or x.shape[2] != self.d_model:
            raise ValueError(f"x {_seen(x)}; expected [batch, q_len, {self.d_model}] (d_model)")
        if memory is not None:
            memory = check_float_tensor("memory", memory, f"[batch, kv_len, {self.kv_input_dim}] (kv_input_dim)")
        if memory is None:
            if self.kv_input_dim != self.d_model:
                raise ValueError(
                    f"memory is None, but this layer's keys read kv_input_dim {self.kv_input_dim} columns and x has"
                    f" d_model {self.d_model}; give memory"
                )
        elif memory.ndim != 3 or memory.shape[2] != self.kv_input_dim:
            raise ValueError(f"memory {_seen(memory)}; expected [batch, kv_len, {self.kv_input_dim}] (kv_input_dim)")
        elif memory.shape[0] != x.shape[0]:
            raise ValueError(f"memory has batch {memory.shape[0]}, but x has {x.shape[0]}; expected the same")
        elif self.rope is not None:
            raise ValueError("memory was given to a layer with rope, whose positions are those of one text, x")
        if cache is not None:
            if not isinstance(cache, KVCache):
                raise TypeError(f"cache is a {type(cache).__name__}; expected a clearhead.KVCache")
            if cache.lengths and len(cache.lengths) != x.shape[0]:
                raise ValueError(f"cache holds {len(cache.lengths)} sequences, but x has batch {x.shape[0]}")
            if memory is not None and cache.window is not None:
                raise ValueError("memory was given with a cache that forgets all but a window of it; use a KVCache")
        if positions is not None:
            if self.rope is None:
                raise ValueError("positions was given, but only rope reads it, and this layer has none")
            expected = f"an int64 or int32 tensor ({x.shape[1]},) or {tuple(x.shape[:2])}"
            positions = check_dense_tensor("positions", positions, expected)
            whole_numbers = positions.dtype in (torch.int64, torch.int32)
            if not whole_numbers or positions.shape not in (x.shape[1:2], x.shape[:2]):
                raise ValueError(f"positions {_seen(positions)} in {positions.dtype}; expected {expected}")

    # -- from and to torch ---------------------------------------------------------------------------------------

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> Self:
        """The same layer as a torch module: equal outputs for equal weights, which are copied.

        Whatever the module's `batch_first`, this layer takes `[batch, length, d_model]`; masks are True = may attend.
        """
        options, state = _torch_weights.read(module)
        return filled(cls(**options, device="meta"), state, module.training)

    def to_torch(self) -> nn.MultiheadAttention:
        """The same layer as a `torch.nn.MultiheadAttention` with `batch_first=True`; an error if torch has no such."""
        projected = self.to_projected() if self.split == "slice" else self
        options, state = _torch_weights.written(projected)
        return filled(nn.MultiheadAttention(**options, device="meta"), state, self.training)


def _local(sinks: Tensor | None) -> Tensor | None:
    """Of a layer shared out over ranks, those of this rank's heads."""
    to_local = getattr(sinks, "to_local", None)
    return sinks if to_local is None else to_local()


def _without(output: Float[Tensor, "batch heads q_len dim"], numbers: list[int]) -> Tensor:
    return output.index_fill(1, torch.tensor(numbers, dtype=torch.long, device=output.device), 0.0)


def _with_held(mask: Mask | Tensor | None, held: Held) -> Mask | Tensor | None:
    """The keys that both the caller and the cache allow."""
    if mask is None or held.mask is None:
        return mask if held.mask is None else held.mask
    mask = Dense(mask) if isinstance(mask, Tensor) and mask.dtype == torch.bool else mask
    return mask & held.mask if isinstance(mask, Mask) else mask  # what is no mask is refused by attention()


def _check_whole(held: Held, mask: object, bias: object) -> None:
    """Refuse what a cache that has forgotten the start of the text would get wrong."""
    if held.whole:
        return
    forgotten = "the cache has forgotten the start of the text"
    if isinstance(mask, Tensor) or (isinstance(mask, Mask) and not mask.relative):
        raise ValueError(f"mask counts keys from the start, and {forgotten}; use Causal and Window, or a KVCache")
    if isinstance(bias, Tensor) and bias.ndim and bias.shape[-1] > 1:
        raise ValueError(f"bias counts keys from the start, and {forgotten}; use ALiBi, or a KVCache")


def _seen(x: Tensor) -> str:
    return f"has shape {tuple(x.shape)}"


def _project(projection: nn.Module, name: str, x: Tensor) -> Tensor:
    """Project an input, and name it where its dtype or device is not the layer's.

    Asked only after a failure: under autocast, quantization and offloading the two may differ.
    """
    try:
        return projection(x)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        reject_inference_tensor(name, x)
        weight = getattr(projection, "weight", None)
        if isinstance(weight, Tensor) and weight.device != x.device:
            raise ValueError(
                f"{name} is on {x.device}, but the layer's parameters are on {weight.device}; expected the same device"
            ) from error
        if isinstance(weight, Tensor) and weight.dtype != x.dtype:
            raise TypeError(
                f"{name} has dtype {x.dtype}, but the layer's parameters have {weight.dtype}; expected the same:"
                f" {name}.to({weight.dtype}) or layer.to({x.dtype})"
            ) from error
        raise
