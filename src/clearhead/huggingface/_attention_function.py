"""Attention function that transformers calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from clearhead._utils.autocast import autocast
from clearhead._utils.torch_internals import in_backward_pass
from clearhead.functional import attend_with_weights, attention
from clearhead.huggingface._arguments import refuse_unsupported
from clearhead.huggingface._hooks import active_hook_sets
from clearhead.huggingface._transformers_internals import collects_attentions, has_forward_hooks, makes_masks
from clearhead.huggingface.lazy_mask import LazyMask
from clearhead.ops.arguments import build_call
from clearhead.ops.masks import Causal, Dense, Mask, Window
from clearhead.weights.matrix import AttentionWeights

# Attribute of a module: whether its last call returned weights.
RETURNED_WEIGHTS = "_clearhead_returned_weights"


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, AttentionWeights | None]:
    """Return the output [batch, q_len, heads, value_dim], and the weights if requested or if the module has hooks.

    Raises:
        ValueError: for an unsupported argument that may change the result.
    """
    refuse_unsupported(module, others)
    query, key, value = autocast(query, key, value)
    bias = position_bias
    hook_sets = active_hook_sets(module)
    recomputing = _is_recomputing()
    # this pass began before the hooks were attached, so its masks are those of another implementation
    in_flight = bool(hook_sets) and not recomputing and not any(hook_set.has_started() for hook_set in hook_sets)
    if in_flight:
        hook_sets = ()
    mask, start = _mask(module, query, key, attention_mask, is_causal, sliding_window, in_flight)
    if attention_mask is not None and not isinstance(attention_mask, LazyMask) and attention_mask.is_floating_point():
        bias = attention_mask if bias is None else bias + attention_mask
    hooks = [hook_set.hooks[module] for hook_set in hook_sets]
    if recomputing:  # gradient checkpointing requires the same outputs as in the first forward pass
        return_weights = getattr(module, RETURNED_WEIGHTS, False)
    else:
        return_weights = bool(others.get("output_attentions")) or collects_attentions() or _has_hooks(module)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            setattr(module, RETURNED_WEIGHTS, return_weights)
    if return_weights and _is_cached(query, key):
        key = key.clone()
    options = {"bias": bias, "scale": scaling, "softcap": softcap, "sinks": s_aux, "dropout": dropout}
    if return_weights or hooks:
        call = build_call(query, key, value, mask=mask, query_start=start, **options)
        output, weights = attend_with_weights(call, keep_qk=any(hook.keep_qk for hook in hooks))
        for hook in () if recomputing else hooks:
            hook(weights)
    else:
        output, weights = attention(query, key, value, mask=mask, query_start=start, **options), None
    return output.transpose(1, 2).contiguous(), weights if return_weights else None


def _mask(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    attention_mask: Tensor | None,
    is_causal: bool | None,
    sliding_window: int | None,
    in_flight: bool,
) -> tuple[Mask | None, int | None]:
    """Return the mask, and the position of the first query among the keys."""
    if isinstance(attention_mask, LazyMask):
        return attention_mask.mask, attention_mask.query_start
    if attention_mask is not None and attention_mask.dtype != torch.bool and not attention_mask.is_floating_point():
        raise ValueError(
            f"attention_mask has shape {list(attention_mask.shape)} and dtype {attention_mask.dtype}; expected bool"
            " (True = may attend), or floats to add to the scores"
        )
    if attention_mask is not None:
        return (Dense(attention_mask) if attention_mask.dtype == torch.bool else None), None
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True) and (in_flight or not makes_masks(type(module)))
    q_len, kv_len = query.shape[2], key.shape[2]
    if not is_causal and sliding_window is not None and kv_len > sliding_window:
        raise ValueError(
            f"{type(module).__name__} calls attention with sliding_window={sliding_window}, but without a mask or"
            " is_causal=True, so the keys of the window are unknown"
        )
    if not is_causal or q_len == 1:
        return None, None
    return (Causal() if sliding_window is None else Window(sliding_window - 1)), 0


def _has_hooks(module: nn.Module) -> bool:
    """Return whether forward hooks may read the weights from the output of the module."""
    return not torch.compiler.is_compiling() and has_forward_hooks(module)


def _is_recomputing() -> bool:
    """Return whether gradient checkpointing is running the forward pass again, inside a backward pass."""
    return not torch.compiler.is_compiling() and in_backward_pass()


def _is_cached(query: Tensor, key: Tensor) -> bool:
    """Return whether the next call may overwrite the keys.

    This is so for static KV caches, which transformers marks for the compiler with `_dynamo_static_input_type`.
    """
    return query.shape[2] != key.shape[2] or hasattr(key, "_dynamo_static_input_type")
