"""Observation of transformers' attention functions other than sdpa and clearhead, which are observed below."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from clearhead._utils.autocast import autocast
from clearhead.huggingface._observed_masks import remember_mask, split_additive
from clearhead.huggingface.modules import NAME
from clearhead.ops.arguments import build_call
from clearhead.ops.call import AttentionCall
from clearhead.ops.masks import Dense, Mask
from clearhead.watching import running
from clearhead.watching.flex import dense_mask
from clearhead.watching.observed import ObservedCall

OBSERVED_BELOW = ("sdpa", NAME)  # they call functions that `watch` observes in any model


def observed_interface(original: Any, interface: Any, implementation: Any, default: Any) -> Any:
    """Wrap `AttentionInterface.get_interface`, which returns the attention function of a model."""
    function = original(interface, implementation, default)
    if implementation in OBSERVED_BELOW:
        return function if torch.compiler.is_compiling() else functools.partial(remember_mask, function)
    if running.is_compiling(f"the attention function {implementation}"):
        return function
    return functools.partial(remember_mask, functools.partial(_observed_function, function, str(implementation)))


def _observed_function(function: Any, implementation: str, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    targets = running.observers_of_call(args[0] if args else kwargs["query"], module)
    if not targets:
        return function(module, *args, **kwargs)
    with running.suspended():
        result = function(module, *args, **kwargs)
    if implementation in ("eager", "flex_attention"):
        arguments = _signature(function).bind(module, *args, **kwargs).arguments
        running.deliver(targets, lambda: ObservedCall(_call(arguments)))
    else:
        for observer, watched in targets:
            observer.miss(watched, f"attn_implementation is {implementation!r}; expected sdpa, eager or clearhead")
    return result


def _call(arguments: dict[str, Any]) -> AttentionCall:
    """Return the attention call of the arguments of an attention function."""
    query, key, value = autocast(*(arguments[name].detach() for name in ("query", "key", "value")))
    others = arguments.get("kwargs", {})
    attention_mask, bias = arguments.get("attention_mask"), arguments.get("position_bias")
    mask: Mask | None = None
    if isinstance(attention_mask, BlockMask):
        mask = dense_mask(attention_mask, query, key)
    elif isinstance(attention_mask, Tensor):
        if attention_mask.dtype == torch.bool:
            mask = Dense(attention_mask[..., : key.shape[2]])
        else:
            visible, added = split_additive(attention_mask)
            mask = Dense(visible[..., : key.shape[2]])
            if added is not None:
                bias = added[..., : key.shape[2]] if bias is None else bias + added[..., : key.shape[2]]
    call = build_call(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        scale=arguments.get("scaling"),
        softcap=arguments.get("softcap"),
        sinks=others.get("s_aux", arguments.get("s_aux")),
    )
    return call.detached()


@functools.lru_cache(maxsize=256)
def _signature(function: Any) -> inspect.Signature:
    return inspect.signature(function)
