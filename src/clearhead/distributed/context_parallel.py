"""Attention over a text whose tokens are sharded over ranks (context parallel)."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from clearhead._utils.checks import check_bool
from clearhead.distributed._arguments import (
    check_bias,
    check_key_value,
    check_layout,
    check_mask,
    check_shard,
    check_sinks,
)
from clearhead.distributed._collectives import copy_to_ranks
from clearhead.distributed.context_parallel_weights import ContextParallelWeights
from clearhead.distributed.layout import ZigzagLayout
from clearhead.functional import attention
from clearhead.ops.alibi import ALiBi
from clearhead.ops.masks import Mask, PrecomputedMask, query_positions


@overload
def context_parallel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: ZigzagLayout,
    *,
    mask: Mask | Tensor | None = ...,
    bias: Tensor | ALiBi | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    sinks: Tensor | None = ...,
    group: ProcessGroup | None = ...,
    return_weights: Literal[False] = ...,
    backend: str = ...,
) -> Tensor: ...
@overload
def context_parallel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: ZigzagLayout,
    *,
    mask: Mask | Tensor | None = ...,
    bias: Tensor | ALiBi | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    sinks: Tensor | None = ...,
    group: ProcessGroup | None = ...,
    return_weights: Literal[True],
    backend: str = ...,
) -> tuple[Tensor, ContextParallelWeights]: ...
def context_parallel_attention(
    query: Float[Tensor, "batch heads shard_len key_dim"],
    key: Float[Tensor, "batch kv_heads shard_len key_dim"],
    value: Float[Tensor, "batch kv_heads shard_len value_dim"],
    layout: ZigzagLayout,
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | ALiBi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    group: ProcessGroup | None = None,
    return_weights: bool = False,
    backend: str = "auto",
) -> Float[Tensor, "batch heads shard_len value_dim"] | tuple[Tensor, ContextParallelWeights]:
    """Compute self-attention of a text whose tokens are sharded over ranks.

    Keys and values are gathered from all ranks, which sends O(n · d) numbers. Queries, outputs and weights stay on
    their ranks. Outputs and gradients equal those of `attention()` in one process. Dropout is not supported.

    Args:
        query: this rank's queries, from `layout.shard`.
        key: this rank's keys.
        value: this rank's values.
        layout: distribution of the tokens over the ranks.
        mask: mask of the whole text, equal on all ranks.
        bias: bias of the whole text, equal on all ranks.
        scale: as for `attention()`.
        softcap: as for `attention()`.
        sinks: one logit per head, equal on all ranks.
        group: process group. Default: all ranks.
        return_weights: also return the matrix. Each rank computes the statistics of its rows.
        backend: as for `attention()`.

    Returns:
        This rank's rows of the output, or `(output, weights)` with `return_weights`.
    """
    rank = check_layout(layout, group)
    check_shard("query", query, layout, rank)
    check_key_value(key, value, layout, rank)
    return_weights = check_bool("return_weights", return_weights)
    batch, heads = query.shape[:2]
    shape = (batch, heads, layout.length, layout.length)
    check_bias(bias, shape)
    check_sinks(sinks, heads, query.device)
    mask = None if mask is None else check_mask(mask, shape)
    gathered = _GatherTokens.apply(torch.cat([key, value], dim=-1), layout, rank, group)
    assert isinstance(gathered, Tensor)
    keys, values = gathered.split([key.shape[-1], value.shape[-1]], dim=-1)
    bias, sinks = _copy_bias_to_ranks(bias, group), _copy_learned_to_ranks(sinks, group)
    outputs, parts, offset = [], [], 0
    for chunk in layout.chunks(rank):
        length = chunk.stop - chunk.start
        output, weights = attention(
            query.narrow(2, offset, length),
            keys,
            values,
            mask=_mask_rows(mask, chunk, layout.length),
            bias=_bias_rows(bias, chunk),
            scale=scale,
            softcap=softcap,
            sinks=sinks,
            query_start=chunk.start,
            return_weights=True,
            backend=backend,
        )
        offset += length
        outputs.append(output)
        parts.append((chunk, weights))
    output = torch.cat(outputs, dim=2)
    return (output, ContextParallelWeights(layout, parts, group)) if return_weights else output


class _GatherTokens(torch.autograd.Function):
    """All-gather of tokens in the order of the text; the backward pass is a reduce-scatter of their gradients."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, layout: ZigzagLayout, rank: int, group: ProcessGroup | None) -> Tensor:
        ctx.layout, ctx.rank, ctx.group = layout, rank, group
        padded = _pad_shard(shard, layout)
        received = [torch.empty_like(padded) for _ in range(layout.ranks)]
        distributed.all_gather(received, padded, group=group)
        return layout.unshard(received, dim=2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        layout, [gradient] = ctx.layout, gradients
        padded = [_pad_shard(layout.shard(gradient, rank), layout) for rank in range(layout.ranks)]
        summed = torch.empty_like(padded[0])
        distributed.reduce_scatter(summed, padded, group=ctx.group)
        return summed[:, :, : layout.count(ctx.rank)], None, None, None


def _pad_shard(shard: Tensor, layout: ZigzagLayout) -> Tensor:
    """Pad a shard with zeros to the length of the longest shard, because collectives require equal shapes."""
    longest = max(layout.count(rank) for rank in range(layout.ranks))
    return torch.nn.functional.pad(shard, (0, 0, 0, longest - shard.shape[2])).contiguous()


def _mask_rows(mask: Mask | None, chunk: slice, length: int) -> Mask | None:
    if mask is None or not mask.tensors:
        return mask  # query_start determines the rows
    positions = query_positions(length, length, 0, mask.device)
    return PrecomputedMask(mask.lower(positions, length).slice_queries(chunk), repr(mask))


def _bias_rows(bias: Tensor | ALiBi | None, chunk: slice) -> Tensor | ALiBi | None:
    return bias[..., chunk, :] if isinstance(bias, Tensor) and bias.ndim > 1 and bias.shape[-2] > 1 else bias


def _copy_bias_to_ranks(bias: Tensor | ALiBi | None, group: ProcessGroup | None) -> Tensor | ALiBi | None:
    if isinstance(bias, ALiBi):
        return ALiBi(copy_to_ranks(bias.slopes, group)) if bias.slopes.requires_grad else bias
    return _copy_learned_to_ranks(bias, group)


def _copy_learned_to_ranks(tensor: Tensor | None, group: ProcessGroup | None) -> Tensor | None:
    return copy_to_ranks(tensor, group) if isinstance(tensor, Tensor) and tensor.requires_grad else tensor
