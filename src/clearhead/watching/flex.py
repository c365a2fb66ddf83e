"""Observation of and interventions in `torch.nn.attention.flex_attention.flex_attention`."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention
from torch.nn.attention.flex_attention import BlockMask

from clearhead.ops.arguments import build_call
from clearhead.ops.call import AttentionCall
from clearhead.ops.masks import Dense
from clearhead.watching import running
from clearhead.watching.adapters import register
from clearhead.watching.editing import edit
from clearhead.watching.observed import ObservedCall
from clearhead.watching.replacement import Replacement
from clearhead.weights.cells import MAX_CELLS


def _observed_flex(
    original: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    if running.is_compiling("flex_attention"):
        return original(query, key, value, score_mod, block_mask, scale, *args, **kwargs)
    targets, interventions = running.observers_of_call(query), running.interventions_of_call(query)
    with running.suspended():
        output = original(query, key, value, score_mod, block_mask, scale, *args, **kwargs)
        if interventions:
            first = output[0] if isinstance(output, tuple) else output  # log-sum-exp may follow
            build = partial(call_of_flex, query, key, value, score_mod, block_mask, scale)
            edited = edit(interventions, first, key.shape[-2], build)
            if edited.changes_weights and isinstance(output, tuple):
                raise ValueError(
                    "flex_attention also returns log-sum-exp, which a cut does not change; expected it not to"
                )
            running.deliver(targets, edited.observed)
            return (edited.output, *output[1:]) if isinstance(output, tuple) else edited.output
    tensors = query.detach(), key.detach(), value.detach()
    running.deliver(targets, lambda: ObservedCall(call_of_flex(*tensors, score_mod, block_mask, scale)))
    return output


def call_of_flex(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Any = None, block_mask: Any = None, scale: float | None = None
) -> AttentionCall:
    """Return the attention call of the arguments of `flex_attention`.

    Mask and score modification are Python functions of single cells, so they are evaluated for the whole matrix.

    Raises:
        ValueError: if the matrix is too large for that.
    """
    mask = None if block_mask is None else dense_mask(block_mask, query, key)
    call = build_call(query, key, value, mask=mask, scale=scale)
    if score_mod is None:
        return call
    _check_size(score_mod, call.shape)
    return call.with_scores(_modified_scores(call, score_mod))


def dense_mask(block_mask: BlockMask, query: Tensor, key: Tensor) -> Dense:
    """Evaluate the mask function of a block mask for every cell."""
    (batch, heads, q_len, _), kv_len = query.shape, key.shape[2]
    _check_size(block_mask.mask_mod, (batch, heads, q_len, kv_len))
    mask_mod, device = block_mask.mask_mod, query.device.type
    return Dense(flex_attention.create_mask(mask_mod, batch, heads, q_len, kv_len, device=device))


def _check_size(function: Any, shape: tuple[int, ...]) -> None:
    if math.prod(shape) > MAX_CELLS:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise ValueError(
            f"flex_attention: {name} is not evaluated for {math.prod(shape)} cells; expected at most {MAX_CELLS}"
        )


def _modified_scores(call: AttentionCall, score_mod: Any) -> Tensor:
    """Return the scores after a score modification, −inf where masked."""
    query, key = call.query.to(call.compute_dtype), call.key.to(call.compute_dtype).repeat_interleave(call.group, dim=1)
    scores = query @ key.mT * call.scale
    modify = score_mod
    for axis in (
        (0, None, None, None, 0),
        (0, None, None, 0, None),
        (0, None, 0, None, None),
        (0, 0, None, None, None),
    ):
        modify = torch.vmap(modify, in_dims=axis)
    indices = (torch.arange(size, device=scores.device) for size in scores.shape)
    modified = modify(scores, *indices)
    return modified if call.dense is None else modified.masked_fill(~call.dense, -torch.inf)


register("flex_attention", [Replacement(flex_attention.flex_attention, _observed_flex, also_compiled=True)])
