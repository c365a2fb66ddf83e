"""Attention over tiles in plain torch, forward and backward, in O(n) memory."""

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ops._custom_op import Gradients, Results
from clearhead.ops._dropout import keep_mask, row_indices
from clearhead.ops.call import AttentionCall
from clearhead.ops.tiled.logits import BlockLogits, FoldedCall, ScratchMemory, exp_, fold_heads, slice_broadcast
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
    scratch = ScratchMemory(max_tile_cells(folded.shape, folded.ranges, lse.device), lse)
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
    dtype, kv_heads = call.compute_dtype, call.key.shape[1]
    folded = FoldedCall.from_call(call)
    value = call.value.to(dtype)
    grad_output, output = (fold_heads(t.to(dtype), kv_heads) for t in (results.grad_output, results.output))
    # Σⱼ A·dA of each row; the gradient of lse enters with the opposite sign
    delta = (grad_output * output).sum(dim=-1)
    if results.grad_lse is not None:
        delta -= fold_heads(results.grad_lse.to(dtype), kv_heads)
    lse = results.lse
    log_weights = folded.minus_lse(fold_heads(lse, kv_heads))
    grad_query, grad_key, grad_value, grad_bias, grad_slopes = (
        value.new_zeros(0 if t is None else t.shape)
        for t in (folded.query, folded.key, value, folded.bias if need_bias else None, folded.slopes)
    )
    may_underflow = folded.underflow_bound()
    cells = max_tile_cells(folded.shape, folded.ranges, value.device)
    first, second = ScratchMemory(cells, value), ScratchMemory(cells, value)
    for block, tiles in iterate_tiles(folded.shape, folded.ranges, dtype, value.device):
        logits = BlockLogits(log_weights, block)
        underflows = may_underflow(block)
        block_query = logits.query[..., : folded.key.shape[3]]  # without the column that subtracts lse
        block_grad, block_delta = (logits.flatten_heads(t) for t in (grad_output, delta))
        block_grad_query = torch.zeros_like(block_query)
        for tile in tiles:
            index = (block.batch, block.kv_heads, tile.keys)
            keys, values = (t[index].flatten(0, 1) for t in (folded.key, value))
            weights = logits.products(tile, first.take(*logits.tile_shape(tile)))
            capped = None if call.softcap is None else weights / call.softcap
            exp_(logits.apply_bias_and_mask_(weights, tile), masked=folded.masked(tile), may_underflow=underflows)
            grad_scores = torch.bmm(block_grad, values.mT, out=second.take(*weights.shape))
            used, multiplier = weights, _dropout_multiplier(call, block, tile.keys)
            if multiplier is not None:
                used = weights * multiplier.view(weights.shape)
                grad_scores.mul_(multiplier.view(weights.shape))
            grad_value[index] += torch.bmm(used.mT, block_grad).view(grad_value[index].shape)
            grad_scores.sub_(block_delta[..., None]).mul_(weights)
            if grad_bias.numel():
                part = slice_broadcast(grad_bias, block, tile.keys)
                part += logits.unflatten_heads(grad_scores).sum_to_size(part.shape)
            if grad_slopes.numel():
                slope_grad = (logits.unflatten_heads(grad_scores) * logits.distance(tile.keys)).sum(dim=(0, 3, 4))
                grad_slopes[block.kv_heads, block.group] -= slope_grad
            if capped is not None:
                grad_scores.mul_(1 - capped.square_())
            block_grad_query.baddbmm_(grad_scores, keys)
            grad_key[index] += torch.bmm(grad_scores.mT, block_query).view(grad_key[index].shape)
        grad_query[block] = logits.unflatten_heads(block_grad_query)
    grad_sinks = value.new_zeros(0)
    if call.sinks is not None:
        sink_weights = torch.exp(call.sinks.to(dtype)[:, None] - lse)  # [batch, heads, q_len]
        grad_sinks = -(sink_weights * delta.flatten(1, 2)).sum(dim=(0, 2))
    return Gradients(
        grad_query.mul_(call.scale).flatten(1, 2).to(call.query.dtype),
        grad_key.to(call.key.dtype),
        grad_value.to(call.value.dtype),
        *(
            gradient if tensor is None or not gradient.numel() else gradient.view_as(tensor).to(tensor.dtype)
            for gradient, tensor in (
                (grad_bias, call.tensor_bias),
                (grad_slopes, call.slopes),
                (grad_sinks, call.sinks),
            )
        ),
    )
