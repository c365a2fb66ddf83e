"""Observation of and interventions in `torch.nn.functional.scaled_dot_product_attention`."""

from __future__ import annotations

from types import FunctionType, NoneType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend
from torch.nn.attention.bias import CausalBias

from clearhead._utils.autocast import autocast
from clearhead._utils.text import count_noun
from clearhead._utils.torch_internals import (
    PLAIN_TENSORS,
    chosen_kernel,
    cudnn_attention,
    flash_attention_cpu,
    flash_attention_cuda,
)
from clearhead.ops.arguments import build_call
from clearhead.ops.call import AttentionCall
from clearhead.ops.masks import Causal, Dense, Mask
from clearhead.watching import running
from clearhead.watching.adapters import register
from clearhead.watching.editing import EditedCall, edit
from clearhead.watching.model_adapters import stated_shape
from clearhead.watching.observed import ObservedCall
from clearhead.watching.replacement import Replacement


def _observed_attention(
    original: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    options: dict[str, Any] = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    if enable_gqa:
        options["enable_gqa"] = True
    if running.is_compiling("scaled_dot_product_attention"):
        return original(query, key, value, **options)
    if running.is_capturing():
        raise running.Captured(query, key, value, options)
    targets, interventions = running.observers_of_call(query), running.interventions_of_call(query)
    if not targets and not interventions:
        return original(query, key, value, **options)
    try:
        rows, of_rows = _by_module((interventions or targets)[0][1], query, key, options)
    except ValueError as error:
        for intervention, module in interventions:
            raise ValueError(f"{intervention.names[id(module)]}: {error}") from None
        for observer, module in targets:
            observer.miss(module, str(error))
        return original(query, key, value, **options)
    if interventions:
        with running.suspended():
            output = original(query, key, value, **options)
            edited = _edited(interventions, output, rows, key, value, of_rows)
        running.deliver(targets, edited.observed)
        return edited.output.reshape(output.shape)
    is_compiled = isinstance(original, FunctionType)  # torch's function is built in
    fused = None if is_compiled or rows is not query else _fused_with_lse(query, key, value, **options)
    if fused is None:
        with running.suspended():  # a mask that is not a plain tensor calls torch's function again
            output, lse = original(query, key, value, **options), None
    else:
        output, lse = fused
    running.deliver(targets, lambda: ObservedCall(_without_gradients(rows, key, value, of_rows), lse))
    return output


def _by_module(module: nn.Module, query: Tensor, key: Tensor, options: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """Return the query and the options of a call with the heads and queries that its module states.

    A library may pass the heads of a group as queries of their key head if there is one query: (batch, 6, 1, width)
    then arrives as (batch, 2, 3, width), with 2 key heads.

    Raises:
        ValueError: if the call has other heads or queries.
    """
    stated = stated_shape(module)
    if stated is None or query.is_nested:
        return query, options
    heads, q_len = query.shape[-3] if query.ndim > 3 else 1, query.shape[-2]
    if heads == stated.heads and stated.q_len in (None, q_len):
        return query, options
    group, mask = stated.heads // stated.kv_heads, options["attn_mask"]
    packed = query.shape[1:-1] == (stated.kv_heads, group) and key.shape[1] == stated.kv_heads
    if not packed or stated.q_len not in (None, 1) or options["is_causal"] or isinstance(mask, CausalBias):
        expected = count_noun(stated.heads, "head") + ("" if stated.q_len is None else f" of length {stated.q_len}")
        raise ValueError(
            f"query has {count_noun(heads, 'head')} of length {q_len}; expected {expected}, as in"
            f" {type(module).__name__}"
        )
    if mask is not None and mask.shape[-3:-1].numel() > 1:
        mask = mask.expand(*mask.shape[:-3], heads, q_len, -1).flatten(-3, -2).unsqueeze(-2)
    return query.flatten(1, 2).unsqueeze(2), {**options, "attn_mask": mask}


def _edited(
    interventions: list[running.EditTarget],
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options: dict[str, Any],
) -> EditedCall:
    """Apply interventions to the output of a call."""
    if query.ndim < 4:
        by_head = output.unsqueeze(-3)
    else:
        by_head = output.reshape(*output.shape[:-3], *query.shape[-3:-1], output.shape[-1])
    by_head = _four_axes(by_head, by_head.shape[:-3])
    return edit(interventions, by_head, key.shape[-2], lambda: call_of_sdpa(query, key, value, **options))


def _without_gradients(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> AttentionCall:
    """Return the attention call of the arguments of torch's function, without gradients and dropout."""
    mask = options["attn_mask"]
    if mask is not None and not isinstance(mask, CausalBias):
        mask = mask.detach()
    fixed = {**options, "dropout_p": 0.0, "attn_mask": mask}
    return call_of_sdpa(query.detach(), key.detach(), value.detach(), **fixed)


def call_of_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionCall:
    """Return the attention call of the arguments of torch's function.

    Leading axes before the last three are joined into one batch axis. A matrix without an axis of heads has one head.
    Under autocast, queries and keys are rounded as torch does.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.is_nested:
            raise TypeError(
                f"{name} is a nested tensor, which is not observed; expected a dense tensor, such as"
                f" {name}.to_padded_tensor(0.0), and a mask that hides the padding"
            )
    if isinstance(attn_mask, CausalBias):
        attn_mask = attn_mask._materialize(query.device)
    query, key, value = autocast(query, key, value)
    if query.ndim < 4:
        query, key, value = (tensor.unsqueeze(-3) for tensor in (query, key, value))
        attn_mask = attn_mask.unsqueeze(-3) if attn_mask is not None and attn_mask.ndim > 2 else attn_mask
    leading = query.shape[:-3]
    if not leading == key.shape[:-3] == value.shape[:-3]:
        leading = torch.broadcast_shapes(leading, key.shape[:-3], value.shape[:-3])
    query, key, value = (_four_axes(tensor, leading) for tensor in (query, key, value))
    mask: Mask | None = None
    bias = None
    if attn_mask is not None:
        has_leading = attn_mask.ndim > 4 or (attn_mask.ndim == 4 and len(leading) > 1)
        added = _four_axes(attn_mask, leading) if has_leading else attn_mask
        mask, bias = (Dense(added), None) if added.dtype == torch.bool else (None, added)
    if is_causal:
        mask = Causal() if mask is None else Causal() & mask
    start = 0 if is_causal else None
    return build_call(query, key, value, mask=mask, bias=bias, scale=scale, dropout=dropout_p, query_start=start)


def _four_axes(tensor: Tensor, leading: torch.Size) -> Float[Tensor, "batch heads length width"]:
    """Join the axes before the last three into one batch axis."""
    if tensor.ndim == 4 and tensor.shape[:1] == leading:
        return tensor
    return tensor.expand(*leading, *tensor.shape[-3:]).reshape(-1, *tensor.shape[-3:])


def _fused_with_lse(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor] | None:
    """Run the kernel that torch chooses if it also returns log-sum-exp; None for any other kernel.

    The kernel and its arguments are the same as in torch's function, so the output is equal bit for bit.
    """
    device = query.device.type
    if any(type(tensor) not in (*PLAIN_TENSORS, NoneType) for tensor in (query, key, value, attn_mask)):
        return None
    if query.shape[-2] == 1:  # then the scores are computed anyway, and torch's function takes half the time
        return None
    if dropout_p or query.ndim != 4 or torch.is_autocast_enabled(device) or 0 in query.shape or 0 in key.shape:
        return None
    if device == "cpu":
        # in half precision the log-sum-exp of the kernel is not exact enough for sums of weights
        if query.dtype not in (torch.float32, torch.float64):
            return None
    elif device != "cuda" or attn_mask is not None or query.shape[3] % 8:
        return None
    arguments = (query, key, value, attn_mask, dropout_p, is_causal)
    kernel = chosen_kernel(*arguments, scale=scale, enable_gqa=enable_gqa)
    if device == "cuda" and kernel == SDPBackend.CUDNN_ATTENTION.value and query.shape[1] == key.shape[1]:
        output, lse = cudnn_attention(query, key, value, None, True, 0.0, is_causal, False, scale=scale)[:2]
        return output, lse.squeeze(-1)
    if kernel != SDPBackend.FLASH_ATTENTION.value:
        return None
    if device == "cpu":
        added = attn_mask
        if added is not None and added.dtype == torch.bool:
            added = torch.zeros_like(added, dtype=query.dtype).masked_fill_(~added, -torch.inf)
        output, lse = flash_attention_cpu(query, key, value, 0.0, is_causal, attn_mask=added, scale=scale)
        if added is not None:  # the kernel returns 0 for rows without a key
            lse = torch.where((added != -torch.inf).any(dim=-1), lse, -torch.inf)
        return output, lse
    return flash_attention_cuda(query, key, value, 0.0, is_causal, False, scale=scale)[:2]


register(
    "scaled_dot_product_attention",
    [Replacement(functional.scaled_dot_product_attention, _observed_attention, also_compiled=True)],
)
