"""Sharded-KV decoding: attention to keys and values that stay on their ranks."""

from __future__ import annotations

import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.distributed import ProcessGroup

from clearhead._utils.tensor_checks import check_float_tensor, check_query_start
from clearhead.distributed._arguments import check_bias, check_key_value, check_layout, check_mask, check_sinks
from clearhead.distributed._collectives import all_gather_tensors, all_reduce_sum
from clearhead.distributed.layout import ZigzagLayout
from clearhead.functional import attention
from clearhead.ops.alibi import ALiBi
from clearhead.ops.masks import LoweredMask, Mask, PrecomputedMask, query_positions
from clearhead.weights.cells import finite_lse


@torch.no_grad()
def sharded_kv_attention(
    query: Float[Tensor, "batch heads q_len key_dim"],
    key: Float[Tensor, "batch kv_heads shard_len key_dim"],
    value: Float[Tensor, "batch kv_heads shard_len value_dim"],
    layout: ZigzagLayout,
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | ALiBi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    query_start: int | Integer[Tensor, "*batch"] | None = None,
    group: ProcessGroup | None = None,
    backend: str = "auto",
) -> tuple[Float[Tensor, "batch heads q_len value_dim"], Float[Tensor, "batch heads q_len"]]:
    """Compute attention of a few replicated queries to sharded keys, as in decoding with a long context.

    Each rank attends to its keys, and the outputs are merged by their log-sum-exp. The communication is O(q_len · d),
    independent of the length of the text. There are no gradients.

    Args:
        query: queries, equal on all ranks.
        key: this rank's keys, from `layout.shard`.
        value: this rank's values.
        layout: distribution of keys and values over the ranks.
        mask: mask of the whole text, equal on all ranks.
        bias: bias of the whole text, equal on all ranks.
        scale: as for `attention()`.
        softcap: as for `attention()`.
        sinks: one logit per head, equal on all ranks.
        query_start: as for `attention()`. Default: the last query has the position of the last key.
        group: process group. Default: all ranks.
        backend: as for `attention()`.

    Returns:
        The output and the log-sum-exp over all keys, on every rank.
    """
    rank = check_layout(layout, group)
    query = check_float_tensor("query", query, "[batch, heads, q_len, width]")
    if query.ndim != 4:
        raise ValueError(f"query is {tuple(query.shape)}; expected [batch, heads, q_len, width]")
    check_key_value(key, value, layout, rank)
    batch, heads, q_len, _ = query.shape
    shape = (batch, heads, q_len, layout.length)
    check_bias(bias, shape)
    check_sinks(sinks, heads, query.device)
    start = layout.length - q_len if query_start is None else check_query_start(query_start)
    if isinstance(start, Tensor) and (start.is_meta or start.shape not in ((), (batch,))):
        shape_and_device = f"{tuple(start.shape)} on {start.device}"
        raise ValueError(f"query_start is {shape_and_device}; expected an int, or a tensor ({batch},)")
    start = start.expand(batch) if isinstance(start, Tensor) else start
    lowered = None
    if mask is not None:
        mask = check_mask(mask, shape)
        lowered = mask.lower(query_positions(q_len, layout.length, start, query.device), layout.length)
    dtype = torch.promote_types(query.dtype, torch.float32)
    output = query.new_zeros(*query.shape[:3], value.shape[-1], dtype=dtype)
    lse = query.new_full(query.shape[:3], -torch.inf, dtype=dtype)
    offset = 0
    for chunk in layout.chunks(rank):
        length = chunk.stop - chunk.start
        chunk_output, weights = attention(
            query,
            key.narrow(2, offset, length),
            value.narrow(2, offset, length),
            mask=None if lowered is None else PrecomputedMask(_mask_columns(lowered, chunk), repr(mask)),
            bias=_bias_columns(bias, chunk),
            scale=scale,
            softcap=softcap,
            query_start=start - chunk.start,  # relative to the chunk's first key, so distances do not change
            return_weights=True,
            backend=backend,
        )
        offset += length
        output, lse = _merge(torch.stack([output, chunk_output.to(dtype)]), torch.stack([lse, weights.lse]))
    if sinks is not None and rank == 0:  # the softmax must include a sink only once; a sink has no value
        sink = sinks.to(dtype)[None, :, None].expand_as(lse)
        output, lse = _merge(torch.stack([output, torch.zeros_like(output)]), torch.stack([lse, sink]))
    total_lse = torch.logsumexp(torch.stack(all_gather_tensors(lse, group)), dim=0)
    output = all_reduce_sum(output * _softmax_share(lse, total_lse)[..., None], group)
    return output.to(query.dtype), total_lse


def _mask_columns(lowered: LoweredMask, chunk: slice) -> LoweredMask:
    """Return a lowered mask for a chunk of the keys, with keys counted from the start of the chunk."""
    ranges = lowered.ranges
    if ranges is not None:
        ranges = (ranges.clamp(chunk.start, chunk.stop) - chunk.start).to(ranges.dtype)
    dense = lowered.dense
    if dense is not None and dense.shape[-1] > 1:
        dense = dense[..., chunk]
    return LoweredMask(ranges, dense)


def _bias_columns(bias: Tensor | ALiBi | None, chunk: slice) -> Tensor | ALiBi | None:
    return bias[..., chunk] if isinstance(bias, Tensor) and bias.ndim and bias.shape[-1] > 1 else bias


def _merge(
    outputs: Float[Tensor, "parts batch heads q_len dim"], lses: Float[Tensor, "parts batch heads q_len"]
) -> tuple[Float[Tensor, "batch heads q_len dim"], Float[Tensor, "batch heads q_len"]]:
    """Merge the outputs and log-sum-exps over disjoint sets of keys."""
    lse = torch.logsumexp(lses, dim=0)
    return (outputs * _softmax_share(lses, lse)[..., None]).sum(dim=0), lse


def _softmax_share(lse: Float[Tensor, "*parts"], total: Float[Tensor, "*total"]) -> Float[Tensor, "*parts"]:
    """Return exp(lse − total), the fraction of the softmax that falls on some of the keys; 0 in rows without a key."""
    return torch.where(lse > -torch.inf, torch.exp(finite_lse(lse) - finite_lse(total)), 0.0)
