"""Observation of and interventions in `nn.MultiheadAttention` and `nn.TransformerEncoderLayer`.

Without `need_weights` and off the fast path, torch's layer calls `scaled_dot_product_attention`. Here are the other
ways: the fast paths, which are single operators for a whole layer, and the attention written out for `need_weights`.
Interventions switch the fast paths off, because the outputs of heads are not visible there.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.backends import mha
from torch.nn import functional

from clearhead._utils.torch_internals import native_encoder_layer, native_multi_head_attention
from clearhead.ops.arguments import build_call
from clearhead.ops.call import AttentionCall
from clearhead.ops.masks import Dense, Mask, Padding
from clearhead.watching import running
from clearhead.watching._sdpa import call_of_sdpa
from clearhead.watching.adapters import functions_replaced_in, register
from clearhead.watching.editing import collected_edits
from clearhead.watching.observed import ObservedCall
from clearhead.watching.replacement import Replacement

KEY_PADDING = 1  # torch's `mask_type` for a mask [batch, kv_len]
_LOCK = threading.Lock()
_users = 0  # active blocks without fast paths
_was_enabled = True  # before the first of them


def _observed_native(original: Any, query: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Wrap the fast path of nn.MultiheadAttention, which torch calls with positional arguments."""
    if running.is_compiling("nn.MultiheadAttention"):
        return original(query, *args, **kwargs)
    targets = running.observers_of_call(query)
    output = original(query, *args, **kwargs)
    if targets:
        _, _, _, heads, weight, bias, _, _, mask, _, _, mask_type = args
        _receive(targets, query, heads, weight, bias, mask, mask_type)
    return output


def _observed_encoder_layer(original: Any, source: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Wrap the fast path of nn.TransformerEncoderLayer, which torch calls with positional arguments."""
    if running.is_compiling("nn.TransformerEncoderLayer"):
        return original(source, *args, **kwargs)
    targets = running.observers_of_call(source)
    output = original(source, *args, **kwargs)
    if targets:
        _, heads, weight, bias, _, _, _, norm_first, eps, norm_weight, norm_bias, *_, mask, mask_type = args
        norm = (norm_weight, norm_bias, eps) if norm_first else None
        _receive(targets, source, heads, weight, bias, mask, mask_type, norm)
    return output


def _receive(
    targets: list[running.Target],
    source: Tensor,
    heads: int,
    weight: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    mask_type: int | None,
    norm: tuple[Tensor, Tensor, float] | None = None,
) -> None:
    source, weight, bias = source.detach(), weight.detach(), bias.detach()
    inputs = [("the input of the layer", source), ("the projection weight", weight), ("the projection bias", bias)]
    if norm is not None:
        inputs += [("the weight of the norm", norm[0]), ("the bias of the norm", norm[1])]
    if mask is not None:
        inputs += [("the mask", mask)]
    # the fast path of a layer does not call its attention module
    targets = [
        (observer, module.self_attn if isinstance(module, nn.TransformerEncoderLayer) else module)
        for observer, module in targets
    ]
    project = partial(_project, source, heads, weight, bias, mask, mask_type, norm)
    running.deliver(targets, lambda: ObservedCall(project, inputs=inputs))


def _project(
    source: Float[Tensor, "batch length model_dim"],
    heads: int,
    weight: Float[Tensor, "three_model_dim model_dim"],
    bias: Float[Tensor, " three_model_dim"],
    mask: Tensor | None,
    mask_type: int | None,
    norm: tuple[Tensor, Tensor, float] | None,
) -> AttentionCall:
    """Return the attention call of a layer on its fast path."""
    allowed: Mask | None = None
    if source.is_nested:
        lengths = torch.tensor([part.shape[0] for part in source.unbind()], device=source.device)
        source, allowed = source.to_padded_tensor(0.0), Padding(lengths)
    elif mask is not None:
        visible = mask == 0  # torch takes every other value as masked
        allowed = Dense(visible[:, None, None] if mask_type == KEY_PADDING else visible)
    if norm is not None:
        source = functional.layer_norm(source, source.shape[-1:], *norm)
    projected = functional.linear(source, weight, bias).unflatten(-1, (3, heads, -1))
    query, key, value = projected.permute(2, 0, 3, 1, 4)
    return build_call(query, key, value, mask=allowed)


def _observed_forward(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap `multi_head_attention_forward`."""
    if running.is_compiling("multi_head_attention_forward") or not _needs_weights(original, args, kwargs):
        return original(*args, **kwargs)  # then it calls scaled_dot_product_attention
    query = args[0] if args else kwargs["query"]
    if running.interventions_of_call(query):
        return _edited_forward(original, *args, **kwargs)
    targets = running.observers_of_call(query)
    output = original(*args, **kwargs)
    if targets:
        arguments = inspect.signature(original).bind(*args, **kwargs).arguments
        arguments = {name: value.detach() if isinstance(value, Tensor) else value for name, value in arguments.items()}
        inputs = [(name, value) for name, value in arguments.items() if isinstance(value, Tensor)]
        running.deliver(targets, lambda: ObservedCall(partial(_capture, original, arguments), inputs=inputs))
    return output


def _edited_forward(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the layer by `scaled_dot_product_attention`, which interventions change, and then compute its weights.

    `is_causal` is a hint that only affects calls without `need_weights`.
    """
    bound = inspect.signature(original).bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = bound.arguments
    with collected_edits() as calls:
        output, _ = original(**{**arguments, "need_weights": False, "is_causal": False})
    weights = calls[-1].observed().weights.dense().to(output.dtype)
    weights = weights.mean(dim=1) if arguments["average_attn_weights"] else weights
    return output, weights if arguments["query"].ndim == 3 else weights.squeeze(0)


@contextmanager
def without_fast_path(model: nn.Module) -> Iterator[None]:
    """Switch off the fast paths of torch's layers within a `with` block, if the model has such a layer.

    The switch is one for the process.
    """
    global _users, _was_enabled
    if not any(isinstance(module, nn.MultiheadAttention) for module in model.modules()):
        yield
        return
    with _LOCK:
        if not _users:
            _was_enabled = mha.get_fastpath_enabled()
        _users += 1
        mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        with _LOCK:
            _users -= 1
            if not _users:
                mha.set_fastpath_enabled(_was_enabled)


def _needs_weights(original: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    if "need_weights" in kwargs:
        return bool(kwargs["need_weights"])
    index = list(inspect.signature(original).parameters).index("need_weights")
    return bool(args[index]) if len(args) > index else True


def _capture(original: Any, arguments: dict[str, Any]) -> AttentionCall:
    """Return the attention call of `multi_head_attention_forward`, by running it up to its attention.

    `is_causal` is a hint that only affects calls without `need_weights`.
    """
    try:
        with functions_replaced_in(original.__globals__), running.capturing():
            original(**{**arguments, "need_weights": False, "is_causal": False, "dropout_p": 0.0})
    except running.Captured as captured:
        query, key, value, options = captured.args
        return call_of_sdpa(query, key, value, **options)
    raise AssertionError("multi_head_attention_forward did not call scaled_dot_product_attention")


register(
    "nn.MultiheadAttention",
    [
        Replacement(native_multi_head_attention, _observed_native),
        Replacement(native_encoder_layer, _observed_encoder_layer),
        Replacement(functional.multi_head_attention_forward, _observed_forward),
    ],
)
