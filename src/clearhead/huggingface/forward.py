"""The attention function that transformers calls."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from clearhead.fingerprints import used_at_once
from clearhead.functional import attention
from clearhead.huggingface.masking import LazyMask
from clearhead.masks import Causal, Dense, Mask, Window
from clearhead.weights import AttentionWeights

try:
    from transformers.utils.output_capturing import _active_collector
except ImportError:  # another version keeps it elsewhere: then weights are always made, which is right, if slower
    _active_collector = None

TAPS = "_clearhead_taps"  # the attribute of an attention module that holds what looks at it
ASKED = "_clearhead_asked"  # and whether its last call was to give weights
HARMLESS = {
    "cache_position",
    "deterministic",
    "encoder_attention_mask",
    "encoder_hidden_states",
    "layer_idx",
    "logits_to_keep",
    "num_items_in_batch",
    "past_key_values",
    "position_embeddings",
    "position_ids",
    "return_dict",
    "token_type_ids",
    "use_cache",
}


class Tap(Protocol):
    """Something that looks at an attention module while the model runs, or changes what comes out of it.

    `repeat` says how often the module has run in this pass before: layers may share one.
    """

    looks: bool  # at the weights; what does not, changes the output
    keeps: bool  # the weights, beyond its call

    def __call__(
        self, repeat: int, weights: AttentionWeights | None, output: Tensor
    ) -> Tensor:  # [batch, q_len, heads, value_dim]
        ...


@dataclass(eq=False)
class Taps:
    """What looks at one module. `runs` counts, and starts anew with each pass of the model."""

    taps: list[Tap] = field(default_factory=list)
    runs: int = 0


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
    """Output [batch, q_len, heads, value_dim] and, where someone asks for them, the weights.

    An argument that is not known here is refused by name, for it may change what attention means.
    """
    for name, given in others.items():
        if given is not None and name not in HARMLESS and not name.startswith("output_"):
            raise ValueError(
                f"{type(module).__name__} gives its attention {name}={_short(given)}, which clearhead does not know;"
                " choose another attn_implementation for this model or call"
            )
    bias = position_bias
    mask, start = _mask(module, query, key, attention_mask, is_causal, sliding_window)
    if attention_mask is not None and attention_mask.is_floating_point():
        bias = attention_mask if bias is None else bias + attention_mask
    own: Taps = getattr(module, TAPS, None) or Taps()
    again = _computes_again()
    if again:  # a checkpoint, which has to compute in the backward pass what it computed before
        asked = getattr(module, ASKED, False)
    else:
        asked = _asked_for_weights(others)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            setattr(module, ASKED, asked)
    keep = asked or any(tap.looks for tap in own.taps)
    if asked and _belongs_to_a_cache(query, key):
        key = key.clone()
    options = {"bias": bias, "scale": scaling, "softcap": softcap, "sinks": s_aux, "dropout": dropout}
    if keep:
        with nullcontext() if asked or any(tap.keeps for tap in own.taps) else used_at_once():
            output, weights = attention(query, key, value, mask=mask, query_start=start, return_weights=True, **options)
    else:
        output, weights = attention(query, key, value, mask=mask, query_start=start, **options), None
    output = output.transpose(1, 2)
    repeat = own.runs
    own.runs += not again
    for tap in own.taps:
        if not (again and tap.looks):
            output = tap(repeat, weights, output)
    return output.contiguous(), weights if asked else None


def _mask(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    attention_mask: Tensor | None,
    is_causal: bool | None,
    sliding_window: int | None,
) -> tuple[Mask | None, int | None]:
    """The mask, and where the first query stands."""
    if isinstance(attention_mask, LazyMask):
        return attention_mask.mask, attention_mask.query_start
    if attention_mask is not None and attention_mask.dtype != torch.bool and not attention_mask.is_floating_point():
        raise ValueError(
            f"attention_mask has shape {list(attention_mask.shape)} and dtype {attention_mask.dtype}; expected bool"
            " (True = may attend), or numbers to be added"
        )
    if attention_mask is not None:
        return (Dense(attention_mask) if attention_mask.dtype == torch.bool else None), None
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    q_len, kv_len = query.shape[2], key.shape[2]
    if not causal and sliding_window is not None and kv_len > sliding_window:
        raise ValueError(
            f"{type(module).__name__} gives its attention sliding_window={sliding_window} and neither a mask nor"
            " causality; which keys it means is not known"
        )
    if not causal or q_len == 1:
        return None, None
    return (Causal() if sliding_window is None else Window(sliding_window - 1)), 0


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


def _short(given: object) -> str:
    return f"<tensor {list(given.shape)}>" if isinstance(given, Tensor) else repr(given)[:40]
