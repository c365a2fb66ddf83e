"""The attention function that transformers calls."""

from __future__ import annotations

import functools
import sys
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import masking_utils

from clearhead.functional import attention
from clearhead.huggingface._arguments import refuse_unsupported
from clearhead.huggingface._hooks import tappings_of
from clearhead.huggingface.lazy_mask import LazyMask
from clearhead.ops.masks import Causal, Dense, Mask, Window
from clearhead.weights.matrix import AttentionWeights
from clearhead.weights.mutation import used_at_once

try:
    from transformers.utils.output_capturing import _active_collector
except ImportError:  # another version keeps it elsewhere: then weights are always made, which is right, if slower
    _active_collector = None

ASKED = "_clearhead_asked"  # the attribute of a module that says whether its last call had to return weights


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
    """Return the output [batch, q_len, heads, value_dim] and, where the model is asked for them, the weights.

    An argument that may change what attention means and is not supported is refused by name.
    """
    refuse_unsupported(module, others)
    bias = position_bias
    tappings = tappings_of(module)
    again = _computes_again()
    # a thread in the middle of a pass, for which the model made masks of another implementation
    in_flight = bool(tappings) and not again and not any(tapping.has_started() for tapping in tappings)
    if in_flight:
        tappings = ()
    mask, start = _mask(module, query, key, attention_mask, is_causal, sliding_window, in_flight)
    if attention_mask is not None and not isinstance(attention_mask, LazyMask) and attention_mask.is_floating_point():
        bias = attention_mask if bias is None else bias + attention_mask
    taps = [tapping.taps[module] for tapping in tappings]
    if again:  # a checkpoint, which has to compute in the backward pass what it computed before
        asked = getattr(module, ASKED, False)
    else:
        asked = _asked_for_weights(others)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            setattr(module, ASKED, asked)
    keep = asked or any(tap.looks for tap in taps)
    if asked and _belongs_to_a_cache(query, key):
        key = key.clone()
    options = {"bias": bias, "scale": scaling, "softcap": softcap, "sinks": s_aux, "dropout": dropout}
    if keep:
        with nullcontext() if asked or any(tap.keeps for tap in taps) else used_at_once():
            output, weights = attention(query, key, value, mask=mask, query_start=start, return_weights=True, **options)
    else:
        output, weights = attention(query, key, value, mask=mask, query_start=start, **options), None
    output = output.transpose(1, 2)
    for tapping, tap in zip(tappings, taps, strict=True):
        if not (again and tap.looks):
            output = tap(None if again else tapping.count_call(module), weights, output, attention_mask)
    return output.contiguous(), weights if asked else None


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
            " (True = may attend), or numbers to be added"
        )
    if attention_mask is not None:
        return (Dense(attention_mask) if attention_mask.dtype == torch.bool else None), None
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True) and (in_flight or not _gets_masks(type(module)))
    q_len, kv_len = query.shape[2], key.shape[2]
    if not is_causal and sliding_window is not None and kv_len > sliding_window:
        raise ValueError(
            f"{type(module).__name__} gives its attention sliding_window={sliding_window} and neither a mask nor"
            " causality; which keys it means is not known"
        )
    if not is_causal or q_len == 1:
        return None, None
    return (Causal() if sliding_window is None else Window(sliding_window - 1)), 0


@functools.cache
def _gets_masks(kind: type[nn.Module]) -> bool:
    """Return whether the modelling code of a module makes its masks by transformers' mask functions.

    Ours never return None, so None then comes from the model itself and means every key, as in eager attention;
    BridgeTower has modules with `is_causal = True` that it runs in this way. Elsewhere None is sdpa's "as the module
    says".
    """
    names = vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
    return any(getattr(made, "__module__", None) == masking_utils.__name__ for made in names.values())


def _asked_for_weights(others: dict[str, Any]) -> bool:
    if others.get("output_attentions"):
        return True
    collected = None if _active_collector is None else _active_collector.get()
    # outside of what collects them: a model of the older kind, or a module called by itself
    return collected is None or any(name.endswith("attentions") for name in collected)


def _computes_again() -> bool:
    """Whether this is a checkpoint's second forward pass, inside a backward pass."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def _belongs_to_a_cache(query: Tensor, key: Tensor) -> bool:
    """Whether keys may be overwritten by the next call: those of static caches, which mark them for the compiler."""
    return query.shape[2] != key.shape[2] or hasattr(key, "_dynamo_static_input_type")
