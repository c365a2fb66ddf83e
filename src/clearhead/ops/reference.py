"""Backend `reference`: the dense equation, differentiable to any order. The ground truth of the tests."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.ops._dropout import keep_mask, row_indices
from clearhead.ops._precision import without_autocast
from clearhead.ops.call import AttentionCall
from clearhead.ops.masks import LoweredMask
from clearhead.ops.selection import ALL, Indices, take


def unsupported_reasons(call: AttentionCall, task: str = "output") -> list[str]:
    return ["statistics are not supported"] if task == "statistics" else []


@without_autocast
def attend(
    call: AttentionCall, with_lse: bool
) -> tuple[Float[Tensor, "batch heads q_len value_dim"], Float[Tensor, "batch heads q_len"]]:
    """Return output and log-sum-exp, computed by the equation."""
    assert call.value is not None
    logits = _with_sink(call, scores(call, call.lower()))  # the sink is dropped after the softmax
    # a row with no key has max = -inf; subtracting it would give nan
    pivot = logits.detach().amax(dim=-1, keepdim=True)
    pivot = torch.where(pivot == -torch.inf, 0.0, pivot)
    exponentials = torch.exp(logits - pivot)
    total = exponentials.sum(dim=-1, keepdim=True)
    weights = exponentials[..., :-1] / torch.where(total == 0, 1.0, total)
    if call.seed is not None:
        batch, heads, q_len, kv_len = call.shape
        rows = row_indices(slice(0, batch), torch.arange(heads, device=weights.device), slice(0, q_len), heads, q_len)
        survivors = keep_mask(call.seed, call.dropout, rows, torch.arange(kv_len, device=weights.device))
        weights = weights * survivors / (1 - call.dropout)
    value = call.value.to(weights.dtype).repeat_interleave(call.group, dim=1)
    output = (weights @ value).to(call.query.dtype)
    return output, (pivot + total.log()).squeeze(-1)


@without_autocast
def scores(
    call: AttentionCall,
    lowered: LoweredMask,
    *,
    batch: Indices = ALL,
    heads: Indices = ALL,
    rows: Indices = ALL,
    keys: Indices = ALL,
) -> Float[Tensor, "batch heads rows keys"]:
    """Return softcap(scale · Q Kᵀ) + bias of the matrix or an outer selection of it, with −inf for masked keys.

    Slices may have positive steps. Lists of indices may be in any order.
    """
    _, total_heads, _, kv_len = call.shape
    device = call.query.device
    query = take(call.query, batch, heads, rows).to(call.compute_dtype)
    key = take(call.key, batch, ALL, keys).to(call.compute_dtype)
    # fold the heads that read the same key head, so that keys are not copied; a list of heads may be in any order
    if isinstance(heads, slice) and query.shape[1] == total_heads:
        folded = query.unflatten(1, (-1, call.group)).flatten(2, 3)
        logits = (folded @ key.mT).view(*query.shape[:3], key.shape[2]) * call.scale
    else:
        key_heads = take(torch.arange(total_heads, device=device) // call.group, heads)
        logits = query @ key[:, key_heads].mT * call.scale
    if call.softcap is not None:
        logits = call.softcap * torch.tanh(logits / call.softcap)
    key_positions = take(torch.arange(kv_len, device=device), keys)
    allowed = _pick(lowered.dense, batch, heads, rows, keys)
    if lowered.ranges is not None:
        ranges = take(lowered.ranges, ALL, ALL, ALL if lowered.ranges.shape[2] == 1 else batch, rows)
        within = LoweredMask(ranges).allowed(query.shape[2], key_positions)
        allowed = within if allowed is None else within & allowed
    if call.slopes is not None:
        positions = call.positions()
        positions = take(positions, ALL if positions.shape[0] == 1 else batch, rows)
        distance = (positions[:, None, :, None] - key_positions).abs()
        logits = logits - take(call.slopes.to(logits.dtype), heads)[:, None, None] * distance
    bias = _pick(call.tensor_bias, batch, heads, rows, keys)
    if bias is not None:
        bias = bias.to(logits.dtype)
        logits = logits + bias
        # a -inf in the bias forbids its key, as the mask does; a NaN does not, so that it stays visible
        finite = bias != -torch.inf
        allowed = finite if allowed is None else finite & allowed
    return logits if allowed is None else torch.where(allowed, logits, -torch.inf)


def log_sum_exp_of_scores(
    logits: Float[Tensor, "batch heads q_len kv_len"], sinks: Float[Tensor, " heads"] | None
) -> Float[Tensor, "batch heads q_len"]:
    """Return the log-sum-exp of each row, with its sink; −inf for a row without keys."""
    lse = torch.logsumexp(logits, dim=-1)
    return lse if sinks is None else torch.logaddexp(lse, sinks.to(lse.dtype)[:, None])


@without_autocast
def log_sum_exp(
    call: AttentionCall, lowered: LoweredMask, *, batch: Indices = ALL, heads: Indices = ALL, rows: Indices = ALL
) -> Float[Tensor, "batch heads rows"]:
    """Return log-sum-exp of chosen rows."""
    logits = _with_sink(call, scores(call, lowered, batch=batch, heads=heads, rows=rows), heads)
    empty = (logits == -torch.inf).all(dim=-1, keepdim=True)  # without a finite score, the gradient would be nan
    return torch.where(empty, 0.0, logits).logsumexp(dim=-1).masked_fill(empty.squeeze(-1), -torch.inf)


@without_autocast
def diagonal_scores(call: AttentionCall, lowered: LoweredMask, offset: int) -> Float[Tensor, "batch heads q_len"]:
    """Return the score of each query and the key `offset` positions from it; −inf if it is absent or masked."""
    batch, heads, q_len, kv_len = call.shape
    key_positions = (call.positions() + offset).expand(batch, -1)  # [batch, q_len]
    allowed = (key_positions >= 0) & (key_positions < kv_len)
    key_positions = key_positions.clamp(0, max(kv_len - 1, 0))
    if lowered.ranges is not None:
        allowed = allowed & ((key_positions >= lowered.ranges[:, 0]) & (key_positions < lowered.ranges[:, 1])).any(
            dim=0
        )
    allowed = allowed[:, None]
    if kv_len == 0:
        return call.query.new_full((batch, heads, q_len), -torch.inf, dtype=call.compute_dtype)

    def along(tensor: Tensor) -> Tensor:
        """Return the diagonal of a tensor that broadcasts to [batch, heads, q_len, kv_len], without expanding it."""
        if tensor.shape[3] == 1:
            return tensor.squeeze(-1)
        tensor = tensor.expand(batch, -1, -1, -1)
        if tensor.shape[2] == 1:
            return tensor.squeeze(2).gather(-1, key_positions[:, None].expand(-1, tensor.shape[1], -1))
        return tensor.gather(-1, key_positions[:, None, :, None].expand(-1, tensor.shape[1], -1, -1)).squeeze(-1)

    query = call.query.to(call.compute_dtype).unflatten(1, (-1, call.group))
    index = key_positions[:, None, :, None].expand(-1, call.key.shape[1], -1, call.key.shape[3])
    key = call.key.gather(2, index).to(query.dtype)  # [batch, kv_heads, q_len, key_dim]
    logits = (query * key[:, :, None]).sum(dim=-1).flatten(1, 2) * call.scale
    if call.softcap is not None:
        logits = call.softcap * torch.tanh(logits / call.softcap)
    if call.slopes is not None:
        logits = logits - call.slopes.to(logits.dtype)[:, None] * abs(offset)
    if call.tensor_bias is not None:
        bias = along(call.tensor_bias).to(logits.dtype)
        logits = logits + bias
        allowed = allowed & (bias != -torch.inf)
    if lowered.dense is not None:
        allowed = allowed & along(lowered.dense)
    return torch.where(allowed, logits, -torch.inf)


@without_autocast
def scores_of_cells(call: AttentionCall, index: Int[Tensor, "4 count"]) -> Float[Tensor, " count"]:
    """Return the scores of single cells, −inf where masked."""
    batch, head, row, key = index
    lowered = call.lower()
    query_rows = call.query[batch, head, row].to(call.compute_dtype)
    key_rows = call.key[batch, head // call.group, key].to(call.compute_dtype)
    logits = (query_rows * key_rows).sum(dim=-1) * call.scale
    if call.softcap is not None:
        logits = call.softcap * torch.tanh(logits / call.softcap)
    if call.slopes is not None:
        positions = call.positions()
        positions = positions[0, row] if positions.shape[0] == 1 else positions[batch, row]
        logits = logits - call.slopes.to(logits.dtype)[head] * (positions - key).abs()
    allowed = torch.ones_like(key, dtype=torch.bool)
    if call.tensor_bias is not None:
        bias = _cells_of(call.tensor_bias, index).to(logits.dtype)
        logits = logits + bias
        allowed = allowed & (bias != -torch.inf)
    if lowered.ranges is not None:
        ranges = lowered.ranges[:, :, 0, row] if lowered.ranges.shape[2] == 1 else lowered.ranges[:, :, batch, row]
        allowed = allowed & ((key >= ranges[:, 0]) & (key < ranges[:, 1])).any(dim=0)
    if lowered.dense is not None:
        allowed = allowed & _cells_of(lowered.dense, index)
    return torch.where(allowed, logits, -torch.inf)


def _with_sink(
    call: AttentionCall, logits: Float[Tensor, "batch heads rows keys"], heads: Indices = ALL
) -> Float[Tensor, "batch heads rows keys_and_sink"]:
    """Return scores with one more column: the logit of the sink, −inf without one."""
    sinks = logits.new_full((1,), -torch.inf) if call.sinks is None else take(call.sinks.to(logits.dtype), heads)
    return torch.cat([logits, sinks[:, None, None].expand(*logits.shape[:-1], 1)], dim=-1)


def _pick(tensor: Tensor | None, *index: Indices) -> Tensor | None:
    """Return the outer selection of a tensor, except for axes of size 1, which broadcast."""
    if tensor is None:
        return None
    return take(tensor, *(ALL if size == 1 else part for size, part in zip(tensor.shape, index, strict=True)))


def _cells_of(tensor: Tensor, index: Int[Tensor, "4 count"]) -> Tensor:
    """Return single cells of a tensor whose axes of size 1 broadcast."""
    return tensor[tuple(part if size != 1 else 0 for part, size in zip(index, tensor.shape, strict=True))]
