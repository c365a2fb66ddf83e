"""Attention over tiles in plain torch, forward and backward, in O(n) memory."""

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ops._custom_op import Results
from clearhead.ops._dropout import keep_mask, row_indices
from clearhead.ops._precision import without_autocast
from clearhead.ops.call import AttentionCall
from clearhead.ops.gradients import CellGradient, Gradients
from clearhead.ops.tiled.logits import (
    MIN_EXP_ARGUMENT,
    BlockLogits,
    FoldedCall,
    ScratchMemory,
    exp_,
    fold_heads,
    slice_broadcast,
)
from clearhead.ops.tiled.schedule import QueryBlock, iterate_tiles, max_tile_cells

# With this many keys or more, log-sum-exp is so large that sums are as exact without subtracting the row maximum
MIN_KEYS_WITHOUT_ROW_MAX = 512


def _dropout_multiplier(call: AttentionCall, block: QueryBlock, keys: slice) -> Float[Tensor, "b k g rows keys"] | None:
    """Return the factor of each weight of a tile, 0 or 1 / (1 − dropout); None without dropout."""
    if call.seed is None:
        return None
    _, heads, q_len, _ = call.query.shape
    head_indices = torch.arange(heads, device=call.query.device).view(call.key.shape[1], -1)
    rows = row_indices(block.batch, head_indices[block.kv_heads, block.group], block.rows, heads, q_len)
    key_indices = torch.arange(keys.start, keys.stop, device=call.query.device)
    return keep_mask(call.seed, call.dropout, rows, key_indices).to(call.compute_dtype).div_(1 - call.dropout)


def forward(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exp."""
    assert call.value is not None
    folded = FoldedCall.from_call(call)
    batch, kv_heads, group, q_len, _ = folded.shape
    dtype = call.compute_dtype
    value = call.value.to(dtype)
    output = call.query.new_empty((batch, kv_heads, group, q_len, value.shape[3]))
    lse = call.query.new_empty((batch, kv_heads, group, q_len), dtype=dtype)
    may_underflow = folded.underflow_bound()
    scratch = ScratchMemory(max_tile_cells(folded.shape, lse.device), lse)
    lowest, tiny = torch.finfo(dtype).min, torch.finfo(dtype).tiny
    for block, tiles in iterate_tiles(folded.shape, folded.ranges, dtype, lse.device):
        logits = BlockLogits(folded, block)
        underflows = may_underflow(block)
        block_values = value[block.batch, block.kv_heads].flatten(0, 1)  # [key_heads, kv_len, value_dim]
        # running maximum, sum of exponentials and weighted sum of values; a sink is a first key without a value
        row_max, row_sum = (lse.new_zeros(logits.query.shape[:2]) for _ in range(2))
        # if exponentials can neither overflow nor underflow, no maximum is needed
        bounded = not underflows and call.sinks is None and call.key.shape[2] >= MIN_KEYS_WITHOUT_ROW_MAX
        if call.sinks is not None:
            row_max.copy_(logits.flatten_heads(call.sinks.view(1, kv_heads, group, 1).expand(lse.shape)))
            row_sum.fill_(1.0)
        elif not bounded:
            row_max.fill_(-torch.inf)
        weighted_sum = value.new_zeros((*row_max.shape, value.shape[3]))
        for tile in tiles:
            weights = logits.apply_bias_and_mask_(logits.products(tile, scratch.take(*logits.tile_shape(tile))), tile)
            if not bounded:
                new_row_max = torch.maximum(row_max, weights.amax(dim=-1))
                # a row with no key yet has max = -inf; subtracting it would give nan
                pivot = new_row_max.clamp(min=lowest)
                weights.sub_(pivot[..., None])
                rescale = torch.exp(row_max - pivot)
                row_sum.mul_(rescale)
                weighted_sum.mul_(rescale[..., None])
                row_max = new_row_max
            exp_(weights, masked=folded.masked(tile), may_underflow=underflows)
            row_sum.add_(weights.sum(dim=-1))
            multiplier = _dropout_multiplier(call, block, tile.keys)
            if multiplier is not None:
                weights.mul_(multiplier.view(weights.shape))
            weighted_sum.baddbmm_(weights, block_values[:, tile.keys])
        output[block] = logits.unflatten_heads(weighted_sum.div_(row_sum.clamp(min=tiny)[..., None]))
        lse[block] = logits.unflatten_heads(row_max + row_sum.log())  # log 0 = −inf for a row without a key
    return output.flatten(1, 2), lse.flatten(1, 2)


def backward(call: AttentionCall, results: Results, need_bias: bool) -> Gradients:
    """Return all gradients."""
    assert call.value is not None
    dtype = call.compute_dtype
    grad_output = results.grad_output.to(dtype)
    # Σⱼ A·dA of each row; the gradient of lse enters with the opposite sign
    delta = (grad_output * results.output.to(dtype)).sum(dim=-1)
    if results.grad_lse is not None:
        delta -= results.grad_lse.to(dtype)
    gradient = CellGradient(delta, left=grad_output, right=call.value)
    return score_gradients(call, results.lse, gradient, need_bias=need_bias, need_right=True)


@without_autocast
def score_gradients(
    call: AttentionCall,
    lse: Float[Tensor, "batch heads q_len"],
    gradient: CellGradient,
    *,
    need_bias: bool,
    need_right: bool = False,
) -> Gradients:
    """Return the gradients of everything that the scores depend on, from the gradient of the weights.

    Args:
        call: the attention call.
        lse: log-sum-exp of each row's scores.
        gradient: gradient of the weights.
        need_bias: compute the gradient of a tensor bias.
        need_right: compute the gradient of `gradient.right`, returned as that of the values.
    """
    dtype, kv_heads = call.compute_dtype, call.key.shape[1]
    folded = FoldedCall.from_call(call)
    delta = fold_heads(gradient.delta, kv_heads)
    left, log_factor, distance_factor = (
        None if t is None else fold_heads(t.to(dtype), kv_heads)
        for t in (gradient.left, gradient.log, gradient.distance)
    )
    right = None if gradient.right is None else gradient.right.to(dtype)
    log_weights = folded.minus_lse(fold_heads(lse, kv_heads))
    grad_query, grad_key, grad_right, grad_bias, grad_slopes = (
        delta.new_zeros(0 if t is None else t.shape)
        for t in (
            folded.query,
            folded.key,
            right if need_right else None,
            folded.bias if need_bias else None,
            folded.slopes,
        )
    )
    is_constant = left is None and log_factor is None and distance_factor is None  # in each row, as for log-sum-exp
    may_underflow = folded.underflow_bound()
    cells = max_tile_cells(folded.shape, delta.device)
    first, second = ScratchMemory(cells, delta), ScratchMemory(cells, delta)
    for block, tiles in iterate_tiles(folded.shape, folded.ranges, dtype, delta.device):
        logits = BlockLogits(log_weights, block)
        underflows = may_underflow(block)
        block_query = logits.query[..., : folded.key.shape[3]]  # without the column that subtracts lse
        block_left, block_delta, block_log, block_distance = (
            None if t is None else logits.flatten_heads(t) for t in (left, delta, log_factor, distance_factor)
        )
        assert block_delta is not None
        block_grad_query = torch.zeros_like(block_query)
        for tile in tiles:
            index = (block.batch, block.kv_heads, tile.keys)
            weights = logits.products(tile, first.take(*logits.tile_shape(tile)))
            capped = None if call.softcap is None else weights / call.softcap
            logits.apply_bias_and_mask_(weights, tile)
            grad_scores = second.take(*weights.shape)
            if block_left is None or right is None:
                if not is_constant:
                    grad_scores.zero_()
            else:
                torch.bmm(block_left, right[index].flatten(0, 1).mT, out=grad_scores)
            if block_log is not None:  # clamped, because 0 · −inf is nan
                grad_scores.addcmul_(weights.clamp(min=MIN_EXP_ARGUMENT[dtype]), block_log[..., None])
            exp_(weights, masked=folded.masked(tile), may_underflow=underflows)
            if block_distance is not None:
                cell_distances = logits.distance(tile.keys) * logits.unflatten_heads(block_distance)[..., None]
                grad_scores.add_(cell_distances.view(grad_scores.shape))
            used, multiplier = weights, _dropout_multiplier(call, block, tile.keys)
            if multiplier is not None:
                used = weights * multiplier.view(weights.shape)
                grad_scores.mul_(multiplier.view(weights.shape))
            if grad_right.numel() and block_left is not None:
                grad_right[index] += torch.bmm(used.mT, block_left).view(grad_right[index].shape)
            if is_constant:
                torch.mul(weights, block_delta[..., None].neg(), out=grad_scores)
            else:
                grad_scores.sub_(block_delta[..., None]).mul_(weights)
            if grad_bias.numel():
                part = slice_broadcast(grad_bias, block, tile.keys)
                part += logits.unflatten_heads(grad_scores).sum_to_size(part.shape)
            if grad_slopes.numel():
                slope_grad = (logits.unflatten_heads(grad_scores) * logits.distance(tile.keys)).sum(dim=(0, 3, 4))
                grad_slopes[block.kv_heads, block.group] -= slope_grad
            if capped is not None:
                grad_scores.mul_(1 - capped.square_())
            block_grad_query.baddbmm_(grad_scores, folded.key[index].flatten(0, 1))
            grad_key[index] += torch.bmm(grad_scores.mT, block_query).view(grad_key[index].shape)
        grad_query[block] = logits.unflatten_heads(block_grad_query)
    grad_sinks = delta.new_zeros(0)
    if call.sinks is not None:
        sink_weights = torch.exp(call.sinks.to(dtype)[:, None] - lse)  # [batch, heads, q_len]
        grad_sinks = -(sink_weights * gradient.delta).sum(dim=(0, 2))
    return Gradients(
        grad_query.mul_(call.scale).flatten(1, 2).to(call.query.dtype),
        grad_key.to(call.key.dtype),
        *(
            None if tensor is None or gradient.numel() < tensor.numel() else gradient.view_as(tensor).to(tensor.dtype)
            for gradient, tensor in (
                (grad_right, gradient.right),
                (grad_bias, call.tensor_bias),
                (grad_slopes, call.slopes),
                (grad_sinks, call.sinks),
            )
        ),
    )
