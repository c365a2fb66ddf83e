"""Tracing of a layer: `trace()` returns its calculation step by step, with every intermediate matrix."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.checks import describe
from clearhead._utils.tensor_checks import check_dense_tensor
from clearhead._utils.text import count_noun
from clearhead.explain._input_steps import InputParts, input_steps
from clearhead.explain._layer_options import LayerOptions
from clearhead.explain._layer_steps import HeadTracer, output_steps
from clearhead.explain.steps import Step, StepKey, Trace
from clearhead.nn import MultiHeadAttention
from clearhead.ops.masks import Dense, Mask

GivenMatrices = Mapping[StepKey, Tensor]


def trace(
    layer: MultiHeadAttention,
    x: Float[Tensor, "... q_len d_model"],
    memory: Float[Tensor, "... kv_len kv_input_dim"] | None = None,
    *,
    mask: Mask | Tensor | None = None,
    tokens: Sequence[str] | None = None,
    memory_tokens: Sequence[str] | None = None,
    given: GivenMatrices | None = None,
) -> Trace:
    """Run a layer on one text, and return every step of every head.

    Args:
        layer: the layer to trace.
        x: one text, `[length, width]` or `[1, length, width]`.
        memory: the text of keys and values, in the same layout (default: `x`).
        mask: the same as for the layer.
        tokens: labels of the rows of `x` (default: numbers).
        memory_tokens: labels of the rows of `memory` (default: numbers).
        given: matrices to use in place of computed ones, such as `{("key", 0): sample}`. A key is a step and a head,
            counted from 0 (for key and value, the key head), or None for a step of all heads. A NaN keeps the computed
            number.

    Returns:
        The steps in order. Without `given`, the last one equals the layer's output up to rounding. Dropout is not
        applied.

    Examples:
        >>> steps = trace(MultiHeadAttention(4, 2, split="slice"), torch.randn(8, 4))
        >>> steps.step("scaled", head=0).shapes
        '(8, 2) × (2, 8) / √2 = (8, 8)'
    """
    if not isinstance(layer, MultiHeadAttention):
        raise TypeError(f"layer is {describe(layer)}; expected a MultiHeadAttention")
    parts = InputParts(_check_input("x", x, layer.d_model))
    return trace_parts(layer, parts, memory, mask, tokens, memory_tokens, given)


def trace_parts(
    layer: MultiHeadAttention,
    parts: InputParts,
    memory: Float[Tensor, "... kv_len kv_input_dim"] | None,
    mask: Mask | Tensor | None,
    tokens: Sequence[str] | None,
    memory_tokens: Sequence[str] | None,
    given: GivenMatrices | None,
    d_k: int | None = None,
) -> Trace:
    """Trace a layer whose input is made of several parts. `d_k` is the width that the layer's scale is stated for."""
    x = parts.x
    memory = None if memory is None else _check_input("memory", memory, layer.kv_input_dim)
    source = x if memory is None else memory
    names = _row_names("tokens", tokens, x.shape[0])
    if memory is None and memory_tokens is not None:
        raise ValueError("memory_tokens is given without memory; expected memory, the text of keys and values")
    memory_names = names if memory is None else _row_names("memory_tokens", memory_tokens, source.shape[0])
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"given is {describe(given)}; expected a dict of tensors by (step, head)")
    given = {} if given is None else dict(given)
    with torch.no_grad():
        layer(x[None], None if memory is None else memory[None], mask=mask)  # validates the arguments
        allowed = _allowed_keys(mask, x.shape[0], source.shape[0])
        steps, outputs = list(input_steps(parts, memory, given)), []
        query_input = next(step for step in steps if step.name == "input")
        key_input = steps[-1]
        shared: dict[StepKey, Step] = {}
        for head in range(layer.heads):
            tracer = HeadTracer(layer, head, query_input, key_input, given, d_k)
            steps += tracer.steps(None if allowed is None else allowed[min(head, allowed.shape[0] - 1)], shared)
            outputs.append(steps[-1])
        steps += output_steps(layer, outputs, given)
    if given:
        raise ValueError(f"given has {next(iter(given))!r}, but this calculation has no such step and head")
    group = layer.heads // layer.kv_heads
    return Trace(
        tuple(steps),
        names,
        memory_names,
        layer.heads,
        group=group,
        vocabulary=parts.vocabulary,
        options=LayerOptions.of(layer),
    )


def _check_input(name: str, tensor: Tensor, width: int) -> Float[Tensor, "length width"]:
    check_dense_tensor(name, tensor, f"a tensor [length, {width}]")
    if tensor.ndim == 3 and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.ndim != 2 or tensor.shape[1] != width:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected one text, [length, {width}]")
    return tensor.detach()


def _row_names(argument: str, tokens: Sequence[str] | None, length: int) -> tuple[str, ...]:
    if tokens is None:
        return tuple(f"token {position}" for position in range(1, length + 1))
    if not isinstance(tokens, Collection) or isinstance(tokens, Tensor):
        raise TypeError(f"{argument} is {describe(tokens)}; expected a list of labels")
    if len(tokens) != length:
        raise ValueError(f"{argument} has {count_noun(len(tokens), 'label')}; expected {length}, one per row")
    return tuple(str(token) for token in tokens)


def _allowed_keys(mask: Mask | Tensor | None, q_len: int, kv_len: int) -> Tensor | None:
    """Return the keys that each query may attend to, as booleans `[heads or 1, q_len, kv_len]`."""
    if mask is None:
        return None
    mask = Dense(mask) if isinstance(mask, Tensor) else mask
    return mask.dense(q_len, kv_len)[0].expand(-1, q_len, kv_len)
