"""Custom op for an attention call: one node in a compiled graph, with a gradient.

A custom op takes tensors and numbers, not objects. `AttentionCall.parts()` returns them in the order of `PARTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead._utils.torch_internals import in_functorch_transform, is_traced
from clearhead.ops._precision import without_autocast
from clearhead.ops.alibi import ALiBi
from clearhead.ops.call import DIFFERENTIABLE, PARTS, TENSORS, AttentionCall, require_grad
from clearhead.ops.gradients import Gradients
from clearhead.ops.masks import LoweredMask, Mask, PrecomputedMask

SCHEMA = ", ".join(f"{part.schema} {name}" for name, part in PARTS.items())


class Results(NamedTuple):
    """Inputs of a backward pass: the results of the forward pass, and their gradients."""

    output: Tensor
    lse: Tensor
    grad_output: Tensor
    grad_lse: Tensor | None  # None if it is 0


Forward = Callable[[AttentionCall], tuple[Tensor, Tensor]]
Backward = Callable[[AttentionCall, Results, bool], Gradients]


def flatten(call: AttentionCall) -> tuple[Any, ...]:
    """Return the parts of a call as the arguments of a custom op."""
    parts = call.parts()
    start = parts["query_start"]
    parts["query_start"] = start if isinstance(start, Tensor) else torch.tensor([start])
    return tuple(parts.values())


def unflatten(*arguments: Any) -> AttentionCall:
    """Build a call from the arguments of a custom op; the inverse of `flatten`."""
    parts = dict(zip(PARTS, arguments, strict=True))
    masked = parts["ranges"] is not None or parts["dense"] is not None
    return AttentionCall.from_parts(parts, "precomputed mask" if masked else None)


class _OnceDifferentiable(torch.autograd.Function):
    """Identity for a gradient; raises an error if the gradient is differentiated again."""

    @staticmethod
    def forward(gradient, *anchors):
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *grads):
        raise RuntimeError(
            "the second derivative of attention() is supported by one backend only; pass backend='reference'"
        )


def _one_by_one(op: Any) -> Callable[..., tuple[tuple[Tensor, ...], tuple[int, ...]]]:
    """Return the rule of `torch.vmap` for an op, which it calls once for each part. Without a rule torch 2.15 warns."""

    def call_each(info, in_dims, *arguments):
        calls = [
            [value if dim is None else value.select(dim, index) for value, dim in zip(arguments, in_dims, strict=True)]
            for index in range(info.batch_size)
        ]
        results = tuple(torch.stack(parts) for parts in zip(*(op(*call) for call in calls), strict=True))
        return results, (0,) * len(results)

    return call_each


def custom_op(name: str, forward: Forward, backward: Backward) -> Callable[[AttentionCall], tuple[Tensor, Tensor]]:
    """Return a function that computes output and log-sum-exp of a call.

    When traced, the function is the custom op `clearhead::{name}`. Otherwise it bypasses torch's dispatcher, which
    takes longer than a small call.

    Args:
        name: name of the custom op.
        forward: takes a call, returns output and log-sum-exp.
        backward: takes a call, the results, and whether the bias needs a gradient; returns all gradients.
    """

    @without_autocast
    def compute(*arguments):
        return forward(unflatten(*arguments))

    @without_autocast
    def compute_backward(output, lse, grad_output, grad_lse, need_bias, *arguments):
        gradients = backward(unflatten(*arguments), Results(output, lse, grad_output, grad_lse), need_bias)
        # outputs of a custom op are tensors and must not alias
        return tuple(lse.new_empty(0) if gradient is None else gradient for gradient in gradients)

    forward_op = torch.library.custom_op(
        f"clearhead::{name}", compute, mutates_args=(), schema=f"({SCHEMA}) -> (Tensor, Tensor)"
    )
    results = "Tensor output, Tensor lse, Tensor grad_output, Tensor? grad_lse"
    backward_op = torch.library.custom_op(
        f"clearhead::{name}_backward",
        compute_backward,
        mutates_args=(),
        schema=f"({results}, bool need_bias, {SCHEMA}) -> ({', '.join('Tensor' for _ in DIFFERENTIABLE)})",
    )

    @forward_op.register_fake
    def _(*arguments):
        call = unflatten(*arguments)
        assert call.value is not None
        shape = call.query.shape[:3]
        output = call.query.new_empty((*shape, call.value.shape[3]))
        return output, call.query.new_empty(shape, dtype=call.compute_dtype)

    @backward_op.register_fake
    def _(output, lse, grad_output, grad_lse, need_bias, *arguments):
        parts = dict(zip(PARTS, arguments, strict=True))
        tensors = [parts[name] if need_bias or name != "tensor_bias" else None for name in DIFFERENTIABLE]
        return tuple(lse.new_empty(0) if t is None else t.new_empty(t.shape) for t in tensors)

    forward_op.register_vmap(_one_by_one(forward_op))
    backward_op.register_vmap(_one_by_one(backward_op))
    forward_op.register_autograd(_differentiator(backward_op), setup_context=_save_for_backward)

    forward_directly, backward_directly = without_autocast(forward), without_autocast(backward)

    def differentiate(call, saved, grads, needed):
        """Return the gradients of the differentiable parts; None for a part that needs none."""
        output, lse = saved[-2:]
        grad_output, grad_lse = grads
        grad_output = torch.zeros_like(output) if grad_output is None else _readable(grad_output)
        results, need_bias = Results(output, lse, grad_output, grad_lse), needed[DIFFERENTIABLE.index("tensor_bias")]
        if not torch.is_grad_enabled():
            gradients = backward_directly(call, results, need_bias)
            return [gradient if need else None for gradient, need in zip(gradients, needed, strict=True)]
        with torch.no_grad():
            gradients = backward_directly(call, results, need_bias)
        # a second derivative may follow (create_graph=True); it is not implemented, and must not silently be 0
        anchors = [tensor for tensor in saved if tensor is not None and tensor.requires_grad]
        return [
            _OnceDifferentiable.apply(gradient, *anchors) if need else None
            for gradient, need in zip(gradients, needed, strict=True)
        ]

    class Differentiable(torch.autograd.Function):
        """Takes a call as one argument, and the tensors that may have a gradient, which autograd has to see."""

        # without `setup_context`: torch would inspect the signature of `forward` at every call, which takes 100 µs
        @staticmethod
        def forward(ctx, call, *tensors):
            lowered, start = call.lower(), call.query_start
            settings = (call.scale, call.softcap, call.dropout, call.seed)
            # the tensors of the call may be wrapped by functorch; those in the arguments are not
            results = forward_directly(_build_call(tensors, call.mask, start, settings))
            # writing zeros for the gradient of log-sum-exp, which is rarely differentiated, takes time
            ctx.set_materialize_grads(False)
            is_tensor = isinstance(start, Tensor)
            ctx.start, ctx.settings = None if is_tensor else start, settings
            # saved, not kept in `ctx`: autograd detects in-place changes, and hooks may move them to the CPU
            ctx.save_for_backward(*tensors, start if is_tensor else None, lowered.ranges, lowered.dense, *results)
            return results

        @staticmethod
        def backward(ctx, *grads):
            saved = ctx.saved_tensors  # read once: under checkpointing, a second access raises
            *tensors, starts, ranges, dense, _, _ = saved
            masked = ranges is not None or dense is not None
            mask = PrecomputedMask(LoweredMask(ranges, dense), "precomputed mask") if masked else None
            call = _build_call(tensors, mask, ctx.start if starts is None else starts, ctx.settings)
            return None, *differentiate(call, saved, grads, ctx.needs_input_grad[1:])

    class Transformable(torch.autograd.Function):
        """Takes the parts of a call, because functorch transforms arguments, but no tensors inside an object.

        functorch requires `setup_context`.
        """

        @staticmethod
        def forward(*parts):  # pyright: ignore[reportIncompatibleMethodOverride]
            return compute(*parts)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.set_materialize_grads(False)
            ctx.scalars = [None if isinstance(part, Tensor) else part for part in inputs]
            ctx.save_for_backward(*(part if isinstance(part, Tensor) else None for part in inputs), *output)

        @staticmethod
        def backward(ctx, *grads):
            saved = ctx.saved_tensors
            parts = [scalar if part is None else part for part, scalar in zip(saved, ctx.scalars, strict=False)]
            needs = dict(zip(PARTS, ctx.needs_input_grad, strict=True))
            needed = [needs[name] for name in DIFFERENTIABLE]
            gradients = dict(zip(DIFFERENTIABLE, differentiate(unflatten(*parts), saved, grads, needed), strict=True))
            return tuple(gradients.get(name) for name in PARTS)

    def run(call: AttentionCall) -> tuple[Tensor, Tensor]:
        call = call.with_lowered_mask()
        if torch.compiler.is_compiling() or any(map(is_traced, call.tensors())):
            return forward_op(*flatten(call))
        tensors = call.differentiable()
        if not require_grad(tensors):
            return forward_directly(call)
        if in_functorch_transform():
            return Transformable.apply(*call.parts().values())  # pyright: ignore[reportReturnType]
        return Differentiable.apply(call, *tensors)  # pyright: ignore[reportReturnType]

    return run


def _build_call(
    tensors: Sequence[Any], mask: Mask | None, start: Any, settings: tuple[float, float | None, float, Tensor | None]
) -> AttentionCall:
    """Build a call from its differentiable tensors, its mask, the start of its queries and its settings."""
    query, key, value, tensor_bias, slopes, sinks = tensors
    scale, softcap, dropout, seed = settings
    bias = tensor_bias if slopes is None else ALiBi.unchecked(slopes)
    return AttentionCall(query, key, value, mask, bias, scale, softcap, sinks, dropout, start, seed)


def _readable(gradient: Tensor) -> Tensor:
    """Copy an expanded gradient: `output.sum().backward()` expands a scalar, which kernels read slowly."""
    return gradient.contiguous() if 0 in gradient.stride() else gradient


def _save_for_backward(ctx, inputs, output):
    tensors, ctx.numbers = inputs[: len(TENSORS)], inputs[len(TENSORS) :]  # tensors come first in `PARTS`
    ctx.save_for_backward(*tensors, *output)


def _differentiator(backward: Callable) -> Callable:
    """Return the backward function of an autograd context that `_save_for_backward` filled."""

    def differentiate(ctx, grad_output, grad_lse):
        *tensors, output, lse = ctx.saved_tensors
        needs = dict(zip(PARTS, ctx.needs_input_grad, strict=True))
        results = (output, lse, _readable(grad_output), grad_lse)
        computed = backward(*results, needs["tensor_bias"], *tensors, *ctx.numbers)
        gradients = dict(zip(DIFFERENTIABLE, computed, strict=True))
        return tuple(gradients.get(name) if needs[name] else None for name in PARTS)

    return differentiate
