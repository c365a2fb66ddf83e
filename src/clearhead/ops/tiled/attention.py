"""Backend `streaming`: plain torch over tiles, in O(n) memory, forward and backward, on any device.

Does everything `attention()` does. A custom op, so that it stands in a compiled graph as a single node; its
log-sum-exp is differentiable too.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ops._custom_op import Gradients, Inputs, Results, operation
from clearhead.ops._dropout import kept, row_numbers
from clearhead.ops.call import AttentionCall
from clearhead.ops.masks import query_positions
from clearhead.ops.tiled.logits import BlockScores, Scoring, Scratch, exp_, fold_heads, pick
from clearhead.ops.tiled.schedule import Block, largest_tile, walk

# From this many keys on, log-sum-exp is so large that a sum of exponentials without their maximum taken off is as exact
UNSHIFTED_FROM = 512


def unsupported_reasons(problem: AttentionCall) -> list[str]:
    return []


def attend(
    problem: AttentionCall, with_lse: bool
) -> tuple[Float[Tensor, "batch heads q_len value_dim"], Float[Tensor, "batch heads q_len"]]:
    """Output and log-sum-exp, tile by tile."""
    assert problem.value is not None
    return _forward(*Inputs.of(problem, problem.value))


def log_sum_exp(problem: AttentionCall) -> Float[Tensor, "batch heads q_len"]:
    """Log-sum-exp alone, differentiable: attention to values of width 0."""
    return _forward(*Inputs.of(problem, problem.key[..., :0]))[1]


def scoring(problem: AttentionCall) -> Scoring:
    """The problem's scores, ready to be taken in tiles."""
    return _scoring(Inputs.of(problem, problem.key[..., :0]))


def _scoring(inputs: Inputs) -> Scoring:
    dtype, kv_heads = inputs.compute_dtype, inputs.key.shape[1]
    return Scoring(
        query=fold_heads(inputs.query, kv_heads),
        key=inputs.key.to(dtype),
        scale=inputs.scale,
        positions=query_positions(inputs.query.shape[2], inputs.key.shape[2], inputs.starts, inputs.query.device),
        ranges=inputs.ranges,
        dense=None if inputs.dense is None else fold_heads(inputs.dense, kv_heads),
        bias=None if inputs.bias is None else fold_heads(inputs.bias.to(dtype), kv_heads),
        slopes=None if inputs.slopes is None else inputs.slopes.to(dtype).view(kv_heads, -1),
        softcap=inputs.softcap,
    )


def _survival(inputs: Inputs, block: Block, keys: slice) -> Float[Tensor, "b k g rows keys"] | None:
    """What dropout multiplies each weight of a tile by: 0, or 1 / (1 − dropout); None without dropout."""
    if inputs.seed is None:
        return None
    _, heads, q_len, _ = inputs.query.shape
    numbers = torch.arange(heads, device=inputs.query.device).view(inputs.key.shape[1], -1)
    rows = row_numbers(block.batch, numbers[block.kv_heads, block.group], block.rows, heads, q_len)
    places = torch.arange(keys.start, keys.stop, device=inputs.query.device)
    return kept(inputs.seed, inputs.dropout, rows, places).to(inputs.compute_dtype).div_(1 - inputs.dropout)


def _compute_forward(inputs: Inputs) -> tuple[Tensor, Tensor]:
    scores = _scoring(inputs)
    batch, kv_heads, group, q_len, _ = scores.shape
    dtype = inputs.compute_dtype
    value = inputs.value.to(dtype)
    output = inputs.query.new_empty((batch, kv_heads, group, q_len, value.shape[3]))
    lse = inputs.query.new_empty((batch, kv_heads, group, q_len), dtype=dtype)
    may_underflow = scores.underflow_bound()
    scratch = Scratch(largest_tile(scores.shape, scores.ranges, lse.device), lse)
    lowest, tiny = torch.finfo(dtype).min, torch.finfo(dtype).tiny
    for block, tiles in walk(scores.shape, scores.ranges, dtype, lse.device):
        here = BlockScores(scores, block)
        underflows = may_underflow(block)
        block_values = value[block.batch, block.kv_heads].flatten(0, 1)  # [key_heads, kv_len, value_dim]
        # running maximum, sum of exponentials and weighted sum of values; a sink is a first key without a value
        peak, total = (lse.new_zeros(here.query.shape[:2]) for _ in range(2))
        # where exponentials are safe as they are, no maximum is needed
        bounded = not underflows and inputs.sinks is None and inputs.key.shape[2] >= UNSHIFTED_FROM
        if inputs.sinks is not None:
            peak.copy_(here.flat(inputs.sinks.view(1, kv_heads, group, 1).expand(lse.shape)))
            total.fill_(1.0)
        elif not bounded:
            peak.fill_(-torch.inf)
        summed = value.new_zeros((*peak.shape, value.shape[3]))
        for tile in tiles:
            weights = here.finish_(here.products(tile, scratch.fit(*here.tile_shape(tile))), tile)
            if not bounded:
                new_peak = torch.maximum(peak, weights.amax(dim=-1))
                # a row with no key yet has max = -inf; subtracting it would give nan
                pivot = new_peak.clamp(min=lowest)
                weights.sub_(pivot[..., None])
                shrink = torch.exp(peak - pivot)
                total.mul_(shrink)
                summed.mul_(shrink[..., None])
                peak = new_peak
            exp_(weights, masked=scores.masked(tile), may_underflow=underflows)
            total.add_(weights.sum(dim=-1))
            survival = _survival(inputs, block, tile.keys)
            if survival is not None:
                weights.mul_(survival.view(weights.shape))
            summed.baddbmm_(weights, block_values[:, tile.keys])
        output[block] = here.unflat(summed.div_(total.clamp(min=tiny)[..., None]))
        lse[block] = here.unflat(peak + total.log())  # log 0 = −inf where there is no key
    return output.flatten(1, 2), lse.flatten(1, 2)


def backward(inputs: Inputs, results: Results, need_bias: bool) -> Gradients:
    """All gradients, tile by tile."""
    dtype, kv_heads = inputs.compute_dtype, inputs.key.shape[1]
    scores = _scoring(inputs)
    value = inputs.value.to(dtype)
    grad_output, output = (fold_heads(t.to(dtype), kv_heads) for t in (results.grad_output, results.output))
    # Σⱼ A·dA of each row; the gradient of lse enters with the opposite sign
    row_dot = (grad_output * output).sum(dim=-1) - fold_heads(results.grad_lse.to(dtype), kv_heads)
    lse = results.lse
    log_weights = scores.shifted(fold_heads(lse, kv_heads))
    grad_query, grad_key, grad_value, grad_bias, grad_slopes = (
        value.new_zeros(0 if t is None else t.shape)
        for t in (scores.query, scores.key, value, scores.bias if need_bias else None, scores.slopes)
    )
    may_underflow = scores.underflow_bound()
    cells = largest_tile(scores.shape, scores.ranges, value.device)
    first, second = Scratch(cells, value), Scratch(cells, value)
    for block, tiles in walk(scores.shape, scores.ranges, dtype, value.device):
        here = BlockScores(log_weights, block)
        underflows = may_underflow(block)
        block_query = here.query[..., : scores.key.shape[3]]  # without the column that takes lse off
        block_grad, block_dot = (here.flat(t) for t in (grad_output, row_dot))
        block_grad_query = torch.zeros_like(block_query)
        for tile in tiles:
            reach = (block.batch, block.kv_heads, tile.keys)
            keys, values = (t[reach].flatten(0, 1) for t in (scores.key, value))
            weights = here.products(tile, first.fit(*here.tile_shape(tile)))
            capped = None if inputs.softcap is None else weights / inputs.softcap
            exp_(here.finish_(weights, tile), masked=scores.masked(tile), may_underflow=underflows)
            grad_scores = torch.bmm(block_grad, values.mT, out=second.fit(*weights.shape))
            used, survival = weights, _survival(inputs, block, tile.keys)
            if survival is not None:
                used = weights * survival.view(weights.shape)
                grad_scores.mul_(survival.view(weights.shape))
            grad_value[reach] += torch.bmm(used.mT, block_grad).view(grad_value[reach].shape)
            grad_scores.sub_(block_dot[..., None]).mul_(weights)
            if grad_bias.numel():
                part = pick(grad_bias, block, tile.keys)
                part += here.unflat(grad_scores).sum_to_size(part.shape)
            if grad_slopes.numel():
                felt = (here.unflat(grad_scores) * here.distance(tile.keys)).sum(dim=(0, 3, 4))
                grad_slopes[block.kv_heads, block.group] -= felt
            if capped is not None:
                grad_scores.mul_(1 - capped.square_())
            block_grad_query.baddbmm_(grad_scores, keys)
            grad_key[reach] += torch.bmm(grad_scores.mT, block_query).view(grad_key[reach].shape)
        grad_query[block] = here.unflat(block_grad_query)
    grad_sinks = value.new_zeros(0)
    if inputs.sinks is not None:
        share = torch.exp(inputs.sinks.to(dtype)[:, None] - lse)  # what the sink takes: [batch, heads, q_len]
        grad_sinks = -(share * row_dot.flatten(1, 2)).sum(dim=(0, 2))
    return Gradients(
        grad_query.mul_(inputs.scale).flatten(1, 2).to(inputs.query.dtype),
        grad_key.to(inputs.key.dtype),
        grad_value.to(inputs.value.dtype),
        *(
            gradient if tensor is None or not gradient.numel() else gradient.view_as(tensor).to(tensor.dtype)
            for gradient, tensor in zip((grad_bias, grad_slopes, grad_sinks), inputs[6:9], strict=True)
        ),
    )


_forward = operation("streaming_forward", _compute_forward, backward)
