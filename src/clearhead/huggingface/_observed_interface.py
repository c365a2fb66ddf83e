"""Observation of and interventions in transformers' attention functions.

Those of sdpa and clearhead call functions that are observed in any model.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from clearhead._utils.autocast import autocast
from clearhead.huggingface._observed_masks import remember_call, split_additive
from clearhead.huggingface.modules import NAME
from clearhead.ops.arguments import build_call
from clearhead.ops.call import AttentionCall
from clearhead.ops.masks import Dense, Mask
from clearhead.watching import running
from clearhead.watching.editing import edit
from clearhead.watching.flex import dense_mask
from clearhead.watching.observed import ObservedCall

OBSERVED_BELOW = ("sdpa", NAME)  # they call functions that `watch` observes in any model
READABLE = ("eager", "flex_attention")  # their arguments determine the weights


def observed_interface(original: Any, interface: Any, implementation: Any, default: Any) -> Any:
    """Wrap `AttentionInterface.get_interface`, which returns the attention function of a model."""
    function = original(interface, implementation, default)
    if implementation in OBSERVED_BELOW:
        return function if torch.compiler.is_compiling() else functools.partial(remember_call, function)
    if running.is_compiling(f"the attention function {implementation}"):
        return function
    return functools.partial(remember_call, functools.partial(_observed_function, function, str(implementation)))


def _observed_function(function: Any, implementation: str, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    query = args[0] if args else kwargs["query"]
    targets = running.observers_of_call(query, module)
    interventions = running.interventions_of_call(query, module)
    if not targets and not interventions:
        return function(module, *args, **kwargs)
    with running.suspended():
        result = function(module, *args, **kwargs)
    arguments = _signature(function).bind(module, *args, **kwargs).arguments
    if interventions:
        return _edited(implementation, interventions, targets, arguments, result)
    if implementation in READABLE:
        running.deliver(targets, lambda: ObservedCall(_call(arguments).detached()))
    else:
        for observer, watched in targets:
            observer.miss(watched, _unreadable(implementation))
    return result


def _edited(
    implementation: str,
    interventions: list[running.EditTarget],
    targets: list[running.Target],
    arguments: dict[str, Any],
    result: Any,
) -> Any:
    """Apply interventions to the result of an attention function: output [batch, q_len, heads, value_dim], weights."""

    def build() -> AttentionCall:
        if implementation not in READABLE:
            raise ValueError(_unreadable(implementation))
        return _call(arguments)

    output, weights = result
    with running.suspended():
        edited = edit(interventions, output.transpose(1, 2), arguments["key"].shape[2], build)
    running.deliver(targets, edited.observed)
    if weights is not None and edited.changes_weights:
        weights = edited.observed().weights.dense().to(weights.dtype)
    return edited.output.transpose(1, 2).contiguous(), weights


def _unreadable(implementation: str) -> str:
    return f"attn_implementation is {implementation!r}; expected sdpa, eager or clearhead"


def _call(arguments: dict[str, Any]) -> AttentionCall:
    """Return the attention call of the arguments of an attention function."""
    query, key, value = autocast(*(arguments[name] for name in ("query", "key", "value")))
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
    return build_call(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        scale=arguments.get("scaling"),
        softcap=arguments.get("softcap"),
        sinks=others.get("s_aux", arguments.get("s_aux")),
    )


@functools.lru_cache(maxsize=256)
def _signature(function: Any) -> inspect.Signature:
    return inspect.signature(function)
