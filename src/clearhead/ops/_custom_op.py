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
from clearhead.ops.call import DIFFERENTIABLE, PARTS, TENSORS, AttentionCall
from clearhead.ops.gradients import Gradients

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
        results = Results(output, lse, grad_output, grad_lse)
        return tuple(backward(unflatten(*arguments), results, need_bias))

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

    forward_op.register_autograd(_differentiator(backward_op), setup_context=_save_for_backward)

    class Differentiable(torch.autograd.Function):
        # without `setup_context`: torch would inspect the signature of `forward` at every call, which takes 100 µs
        @staticmethod
        def forward(ctx, *parts):
            results = compute(*parts)
            _save_parts(ctx, parts, results)
            return results

        @staticmethod
        def backward(ctx, *grads):
            saved = ctx.saved_tensors  # read once: under checkpointing, a second access raises
            *tensors, output, lse = saved
            parts = [scalar if part is None else part for part, scalar in zip(tensors, ctx.scalars, strict=True)]
            grad_output, grad_lse = grads
            if grad_output is None:
                grad_output = torch.zeros_like(output)
            results = Results(output, lse, grad_output, grad_lse)
            if not torch.is_grad_enabled():
                return _gradients(compute_backward, results, ctx.needs_input_grad, parts)
            with torch.no_grad():
                gradients = _gradients(compute_backward, results, ctx.needs_input_grad, parts)
            # a second derivative may follow (create_graph=True); it is not implemented, and must not silently be 0
            anchors = [tensor for tensor in saved if tensor is not None and tensor.requires_grad]
            return tuple(
                None if gradient is None else _OnceDifferentiable.apply(gradient, *anchors) for gradient in gradients
            )

    class Transformable(Differentiable):  # functorch requires `setup_context`
        @staticmethod
        def forward(*parts):  # pyright: ignore[reportIncompatibleMethodOverride]
            return compute(*parts)

        setup_context = staticmethod(_save_parts)

    compute_directly = without_autocast(forward)

    def run(call: AttentionCall) -> tuple[Tensor, Tensor]:
        call = call.with_lowered_mask()
        if torch.compiler.is_compiling() or any(map(is_traced, call.tensors())):
            return forward_op(*flatten(call))
        if call.requires_grad():
            function = Transformable if in_functorch_transform() else Differentiable
            return function.apply(*call.parts().values())  # pyright: ignore[reportReturnType]
        return compute_directly(call)

    return run


def _save_parts(ctx, inputs, output):
    """Save the parts of a call, tensors and numbers in any order, and its results."""
    ctx.set_materialize_grads(False)  # writing zeros for log-sum-exp, which is rarely differentiated, takes time
    ctx.scalars = [None if isinstance(part, Tensor) else part for part in inputs]
    ctx.save_for_backward(*(part if isinstance(part, Tensor) else None for part in inputs), *output)


def _save_for_backward(ctx, inputs, output):
    tensors, ctx.numbers = inputs[: len(TENSORS)], inputs[len(TENSORS) :]  # tensors come first in `PARTS`
    ctx.save_for_backward(*tensors, *output)


def _differentiator(backward: Callable) -> Callable:
    """Return the backward function of an autograd context that `_save_for_backward` filled."""

    def differentiate(ctx, grad_output, grad_lse):
        *tensors, output, lse = ctx.saved_tensors
        results = Results(output, lse, grad_output, grad_lse)
        return _gradients(backward, results, ctx.needs_input_grad, [*tensors, *ctx.numbers])

    return differentiate


def _gradients(
    backward: Callable, results: Results, needed: Sequence[bool], parts: Sequence[Any]
) -> tuple[Tensor | None, ...]:
    """Return the gradient of every part; None for a part that needs none."""
    needs = dict(zip(PARTS, needed, strict=True))
    if 0 in results.grad_output.stride():  # `output.sum().backward()` expands a scalar, which kernels read slowly
        results = results._replace(grad_output=results.grad_output.contiguous())
    gradients = dict(zip(DIFFERENTIABLE, backward(*results, needs["tensor_bias"], *parts), strict=True))
    return tuple(gradients.get(name) if needs[name] else None for name in PARTS)
