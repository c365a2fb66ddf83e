"""Attention over a text whose tokens live on different ranks (context parallel)."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from clearhead._utils.checks import check_bool
from clearhead._utils.tensor_checks import check_dense_tensor, check_float_tensor, check_query_start
from clearhead.distributed._collectives import copied, gathered, summed
from clearhead.distributed.context_parallel_weights import SequenceWeights
from clearhead.distributed.layout import Layout
from clearhead.functional import attention
from clearhead.ops.alibi import ALiBi
from clearhead.ops.masks import Dense, LoweredMask, Mask, PrecomputedMask, query_positions


@overload
def sequence_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
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
def sequence_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    *,
    mask: Mask | Tensor | None = ...,
    bias: Tensor | ALiBi | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    sinks: Tensor | None = ...,
    group: ProcessGroup | None = ...,
    return_weights: Literal[True],
    backend: str = ...,
) -> tuple[Tensor, SequenceWeights]: ...
def sequence_attention(
    query: Float[Tensor, "batch heads own key_dim"],
    key: Float[Tensor, "batch kv_heads own key_dim"],
    value: Float[Tensor, "batch kv_heads own value_dim"],
    layout: Layout,
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | ALiBi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    group: ProcessGroup | None = None,
    return_weights: bool = False,
    backend: str = "auto",
) -> Float[Tensor, "batch heads own value_dim"] | tuple[Tensor, SequenceWeights]:
    """`attention()` of a text to itself, with each rank's tokens as `layout.shard` gives them.

    Keys and values are gathered from all ranks, O(n · d) numbers; queries and what follows from them stay where they
    are. Outputs and gradients are those of one process.

    Args:
        mask, bias, sinks: of the whole text, the same on every rank. Key ranges cost O(n) as ever.
        group: the ranks; all of them by default.
        return_weights: also return the matrix, whose statistics are computed where its rows are.
    """
    rank = _own_rank(layout, group)
    _check_own("query", query, layout, rank)
    _check_keys(key, value, layout, rank)
    return_weights = check_bool("return_weights", return_weights)
    whole = (*query.shape[:2], layout.length, layout.length)
    _check_spread("bias", bias, whole)
    _check_sinks(sinks, query.shape[1], query.device)
    both = _AllTokens.apply(torch.cat([key, value], dim=-1), layout, rank, group)
    assert isinstance(both, Tensor)
    keys, values = both.split([key.shape[-1], value.shape[-1]], dim=-1)
    rows = _Rows(layout, mask, _shared(bias, group), query.shape)
    options: dict[str, Any] = {"scale": scale, "softcap": softcap, "sinks": _shared(sinks, group), "backend": backend}
    outputs, parts, done = [], [], 0
    for piece in layout.pieces(rank):
        own = query.narrow(2, done, piece.stop - piece.start)
        done += piece.stop - piece.start
        output, weights = attention(own, keys, values, return_weights=True, **rows.options(piece), **options)
        outputs.append(output)
        parts.append((piece, weights))
    output = torch.cat(outputs, dim=2)
    return (output, SequenceWeights(layout, parts, group)) if return_weights else output


@torch.no_grad()
def attend_to_shards(
    query: Float[Tensor, "batch heads q_len key_dim"],
    key: Float[Tensor, "batch kv_heads own key_dim"],
    value: Float[Tensor, "batch kv_heads own value_dim"],
    layout: Layout,
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | ALiBi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    query_start: int | None = None,
    group: ProcessGroup | None = None,
    backend: str = "auto",
) -> tuple[Float[Tensor, "batch heads q_len value_dim"], Float[Tensor, "batch heads q_len"]]:
    """`attention()` of a few queries, which every rank has, to keys that stay on theirs: as when decoding a long text.

    Each rank attends to its own keys, and outputs are merged by their log-sum-exp: O(q_len · d) numbers are exchanged,
    however long the text. Without gradients. Returns the output, and the log-sum-exp over all keys.

    Args:
        layout: of the keys and values, which are as `layout.shard` gives them.
        query_start: as for `attention()`; by default the last query meets the last key.
    """
    rank = _own_rank(layout, group)
    query = check_float_tensor("query", query, "[batch, heads, q_len, width]")
    if query.ndim != 4:
        raise ValueError(f"query is {_seen(query)}; expected [batch, heads, q_len, width]")
    _check_keys(key, value, layout, rank)
    batch, heads, q_len, _ = query.shape
    _check_spread("bias", bias, (batch, heads, q_len, layout.length))
    _check_sinks(sinks, heads, query.device)
    start = layout.length - q_len if query_start is None else check_query_start(query_start)
    if isinstance(start, Tensor) and (start.is_meta or start.shape not in ((), (batch,))):
        raise ValueError(f"query_start is {_seen(start)} on {start.device}; expected an int, or a tensor ({batch},)")
    start = start.expand(batch) if isinstance(start, Tensor) else start
    lowered = None
    if mask is not None:
        mask = _as_mask(mask)
        _check_fit(mask, (batch, heads, q_len, layout.length))
        lowered = mask.lower(query_positions(q_len, layout.length, start, query.device), layout.length)
    precise = torch.promote_types(query.dtype, torch.float32)
    output = query.new_zeros(*query.shape[:3], value.shape[-1], dtype=precise)
    lse = query.new_full(query.shape[:3], -torch.inf, dtype=precise)
    done = 0
    for piece in layout.pieces(rank):
        count = piece.stop - piece.start
        own_keys, own_values = key.narrow(2, done, count), value.narrow(2, done, count)
        done += count
        own, weights = attention(
            query,
            own_keys,
            own_values,
            mask=None if lowered is None else PrecomputedMask(_columns(lowered, piece), repr(mask)),
            bias=bias[..., piece] if isinstance(bias, Tensor) and bias.ndim and bias.shape[-1] > 1 else bias,
            scale=scale,
            softcap=softcap,
            query_start=start - piece.start,  # distances stay what they are
            return_weights=True,
            backend=backend,
        )
        output, lse = _merged(torch.stack([output, own.to(precise)]), torch.stack([lse, weights.lse]))
    if sinks is not None and rank == 0:  # in the softmax once, and with no value
        sink = sinks.to(precise)[None, :, None].expand_as(lse)
        output, lse = _merged(torch.stack([output, torch.zeros_like(output)]), torch.stack([lse, sink]))
    every = torch.stack(gathered(lse, group))
    whole = torch.logsumexp(every, dim=0)
    share = torch.where(lse > -torch.inf, torch.exp(_finite(lse) - _finite(whole)), 0.0)
    return summed(output * share[..., None], group).to(query.dtype), whole


class _AllTokens(torch.autograd.Function):
    """Every rank's tokens in the order of the text; backward, every rank gets its own tokens' gradients, summed."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, layout: Layout, rank: int, group: ProcessGroup | None) -> Tensor:
        ctx.layout, ctx.rank, ctx.group = layout, rank, group
        room = max(layout.count(other) for other in range(layout.ranks))
        received = [own.new_empty(*own.shape[:2], room, own.shape[3]) for _ in range(layout.ranks)]
        distributed.all_gather(received, _filled(own, room), group=group)
        return layout.joined(received, dim=2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        layout, [whole] = ctx.layout, gradients
        room = max(layout.count(other) for other in range(layout.ranks))
        sent = [_filled(layout.shard(whole, other), room) for other in range(layout.ranks)]
        own = torch.empty_like(sent[0])
        distributed.reduce_scatter(own, sent, group=ctx.group)
        return own[:, :, : layout.count(ctx.rank)], None, None, None


def _filled(own: Tensor, room: int) -> Tensor:
    """With zeros up to a length that all ranks share."""
    return torch.nn.functional.pad(own, (0, 0, 0, room - own.shape[2])).contiguous()


class _Rows:
    """What some queries of the whole text need of its mask and bias."""

    def __init__(
        self, layout: Layout, mask: Mask | Tensor | None, bias: Tensor | ALiBi | None, query: torch.Size
    ) -> None:
        self.length = layout.length
        self.mask = None if mask is None else _as_mask(mask)
        self.bias = bias
        if self.mask is not None:
            _check_fit(self.mask, (query[0], query[1], self.length, self.length))

    def options(self, piece: slice) -> dict[str, Any]:
        mask, bias = self.mask, self.bias
        if mask is not None and mask.tensors:  # a dense part has rows of its own
            where = query_positions(self.length, self.length, 0, mask.device)
            mask = PrecomputedMask(mask.lower(where, self.length).slice_queries(piece), repr(mask))
        if isinstance(bias, Tensor) and bias.ndim > 1 and bias.shape[-2] > 1:
            bias = bias[..., piece, :]
        return {"mask": mask, "bias": bias, "query_start": piece.start}


def _shared(given: Any, group: ProcessGroup | None) -> Any:
    """What every rank has alike and uses for its own rows."""
    if isinstance(given, ALiBi):
        return ALiBi(copied(given.slopes, group)) if given.slopes.requires_grad else given
    return copied(given, group) if isinstance(given, Tensor) and given.requires_grad else given


def _as_mask(mask: Mask | Tensor) -> Mask:
    if not isinstance(mask, Tensor):
        return mask
    mask = check_dense_tensor("mask", mask, "a mask such as Causal(), or a bool tensor")
    if mask.dtype != torch.bool or mask.ndim > 4:
        raise TypeError(f"mask is {_seen(mask)} in {mask.dtype}; expected torch.bool of at most 4 axes")
    return Dense(mask)


def _check_fit(mask: Mask, shape: tuple[int, int, int, int]) -> None:
    if not isinstance(mask, Mask):
        raise TypeError(f"mask is a {type(mask).__name__}; expected a mask such as Causal(), or a bool tensor")
    why = mask.shape_error(*shape)
    if why is not None:
        raise ValueError(f"mask: {why}")


def _own_rank(layout: Layout, group: ProcessGroup | None) -> int:
    if not isinstance(layout, Layout):
        raise TypeError(f"layout is {layout!r}; expected a Layout, such as Layout(length, ranks)")
    return layout.own_rank(group)


def _seen(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)}"


# what is wrong is said before anything is exchanged: a rank that raises alone leaves the others waiting


def _check_keys(key: Tensor, value: Tensor, layout: Layout, rank: int) -> None:
    _check_own("key", key, layout, rank)
    _check_own("value", value, layout, rank)
    if key.shape[:2] != value.shape[:2] or (key.dtype, key.device) != (value.dtype, value.device):
        raise ValueError(
            f"value is {_seen(value)} in {value.dtype} on {value.device}, but key {_seen(key)} in {key.dtype} on"
            f" {key.device}; expected the same batch, heads, dtype and device"
        )


def _check_spread(name: str, tensor: object, shape: tuple[int, ...]) -> None:
    if not isinstance(tensor, Tensor):
        return  # attention() refuses what is neither a tensor nor ALiBi
    check_float_tensor(name, tensor, "a float tensor")
    sizes = zip(tensor.shape[::-1], shape[::-1], strict=False)
    if tensor.ndim > 4 or any(size not in (1, wanted) for size, wanted in sizes):
        raise ValueError(f"{name} is {_seen(tensor)}; expected what broadcasts to {shape}, of the whole text")


def _check_sinks(sinks: Tensor | None, heads: int, device: torch.device) -> None:
    if sinks is None:
        return
    sinks = check_float_tensor("sinks", sinks, f"one for each of {heads} heads")
    if sinks.device != device:
        raise ValueError(f"sinks is on {sinks.device}, but query is on {device}; expected the same")
    if sinks.shape != (heads,):
        raise ValueError(f"sinks is {_seen(sinks)}; expected one for each of {heads} heads")


def _check_own(name: str, tensor: Tensor, layout: Layout, rank: int) -> None:
    tensor = check_float_tensor(name, tensor, "[batch, heads, own tokens, width]")
    if tensor.ndim != 4:
        raise ValueError(f"{name} is {_seen(tensor)}; expected [batch, heads, own tokens, width]")
    if tensor.shape[2] != layout.count(rank):
        raise ValueError(
            f"{name} has {tensor.shape[2]} tokens, but of {layout.length} tokens over {layout.ranks} ranks rank {rank}"
            f" holds {layout.count(rank)}; expected what layout.shard gives"
        )


def _columns(lowered: LoweredMask, piece: slice) -> LoweredMask:
    """The same for some of the keys, counted from the first of them."""
    ranges = lowered.ranges
    if ranges is not None:
        ranges = (ranges.clamp(piece.start, piece.stop) - piece.start).to(ranges.dtype)
    dense = lowered.dense
    if dense is not None and dense.shape[-1] > 1:
        dense = dense[..., piece]
    return LoweredMask(ranges, dense)


def _merged(
    outputs: Float[Tensor, "parts batch heads q_len dim"], lses: Float[Tensor, "parts batch heads q_len"]
) -> tuple[Float[Tensor, "batch heads q_len dim"], Float[Tensor, "batch heads q_len"]]:
    """Outputs over different keys as one over all of them."""
    lse = torch.logsumexp(lses, dim=0)
    shares = torch.where(lses > -torch.inf, torch.exp(_finite(lses) - _finite(lse)), 0.0)
    return (outputs * shares[..., None]).sum(dim=0), lse


def _finite(lse: Tensor) -> Tensor:
    """Rows without a key have −inf, and −inf − −inf would be nan."""
    return torch.where(lse == -torch.inf, 0.0, lse)
