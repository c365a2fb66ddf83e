"""Gradients of functions of the weights, in O(n) memory.

A function of the weights is computed without recording operations. Its backward pass expresses the gradient of every
weight by O(n) numbers, a `CellGradient`, from which a backend computes the gradients of queries, keys and options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ops import dispatch
from clearhead.ops.call import PARTS, AttentionCall
from clearhead.ops.gradients import CellGradient, Gradients

Lse = Float[Tensor, "batch heads q_len"]
Tensors = Sequence[Tensor]
Grads = Sequence[Tensor | None]


class Function(Protocol):
    """A differentiable function of the weights and of further tensors."""

    def compute(self, call: AttentionCall, lse: Lse, inputs: Tensors) -> tuple[Tensor, ...]:
        """Return the results."""
        ...

    def cell_gradient(
        self, call: AttentionCall, lse: Lse, inputs: Tensors, results: Tensors, grads: Grads
    ) -> tuple[CellGradient, Grads]:
        """Return the gradient of the weights, and of the further tensors, from those of the results.

        The gradient of a result that no loss depends on is None.
        """
        ...


def apply(function: Function, call: AttentionCall, lse: Lse, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Return the results of a function of the weights; differentiable in the call's tensors and the inputs."""
    call = call.without_dropout()
    needed = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    if not needed and not call.scores_require_grad():
        with torch.no_grad():
            return function.compute(call, lse, inputs)
    return _apply(function, lse, len(inputs), *inputs, *replace(call, value=None).parts().values())


class _WeightsFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function: Function, lse: Lse, count: int, *arguments):
        inputs, parts = arguments[:count], arguments[count:]
        results = function.compute(call_of(parts), lse, inputs)
        ctx.function, ctx.count = function, count
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(result for result in results if not result.is_floating_point()))
        tensors, ctx.scalars = split_tensors(arguments)
        ctx.save_for_backward(lse, *tensors, *results)
        return results

    @staticmethod
    def backward(ctx, *grads):  # pyright: ignore[reportIncompatibleMethodOverride]
        saved = ctx.saved_tensors  # read once: under checkpointing, a second access raises
        if not torch.is_grad_enabled():
            return _WeightsFunction.gradients(ctx, saved, grads)
        with torch.no_grad():
            gradients = _WeightsFunction.gradients(ctx, saved, grads)
        return refusing_second_derivative(gradients, (*saved, *grads))

    @staticmethod
    def gradients(ctx, saved: Sequence[Tensor | None], grads: Grads) -> tuple[Tensor | None, ...]:
        if all(grad is None for grad in grads):
            return (None,) * len(ctx.needs_input_grad)
        lse, *saved = saved
        assert lse is not None
        split = len(ctx.scalars)
        arguments = join_tensors(saved[:split], ctx.scalars)
        inputs, call = arguments[: ctx.count], call_of(arguments[ctx.count :])
        needed = ctx.needs_input_grad[3:]
        gradient, input_grads = ctx.function.cell_gradient(call, lse, inputs, saved[split:], grads)  # pyright: ignore
        needs = dict(zip(PARTS, needed[ctx.count :], strict=True))
        part_grads: dict[str, Tensor | None] = {}
        if any(needs.values()):
            part_grads = score_gradients(call, lse, gradient, needs["tensor_bias"])._asdict()
        return (
            None,
            None,
            None,
            *(grad if need else None for grad, need in zip(input_grads, needed, strict=False)),
            *(part_grads[name] if need else None for name, need in needs.items()),
        )


class _OnceDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gradient: Tensor, *anchors: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx, *grads):
        raise RuntimeError(
            "the second derivative of a function of the weights is not supported; compute the matrix with torch to"
            " differentiate it twice"
        )


def refusing_second_derivative(gradients: Grads, inputs: Grads) -> tuple[Tensor | None, ...]:
    """Return gradients that raise if they are differentiated with respect to the inputs of a backward pass.

    With create_graph=True a second derivative may follow. It is not implemented, and must not silently be 0.
    """
    anchors = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
    return tuple(None if gradient is None else _apply_once(gradient, *anchors) for gradient in gradients)


_apply: Any = torch.compiler.disable(_WeightsFunction.apply)
_apply_once: Any = _OnceDifferentiable.apply


def score_gradients(call: AttentionCall, lse: Lse, gradient: CellGradient, need_bias: bool) -> Gradients:
    """Return the gradients of queries, keys and options; `gradient.right` may have a head for each query head."""
    right, kv_heads = gradient.right, call.key.shape[1]
    if right is None or right.shape[1] == kv_heads:
        return dispatch.score_gradients(call, lse, gradient, need_bias)
    gradients = dispatch.score_gradients(call.ungrouped(), lse, gradient, need_bias)
    return gradients._replace(key=gradients.key.unflatten(1, (kv_heads, -1)).sum(dim=2))


def split_tensors(arguments: Sequence[object]) -> tuple[list[Tensor | None], list[object]]:
    """Return the tensors, which autograd saves, and the other arguments, each with None in place of the others."""
    tensors = [argument if isinstance(argument, Tensor) else None for argument in arguments]
    return tensors, [None if isinstance(argument, Tensor) else argument for argument in arguments]


def join_tensors(tensors: Grads, scalars: Sequence[object]) -> list[Any]:
    """Return the arguments that `split_tensors` split."""
    return [scalar if tensor is None else tensor for tensor, scalar in zip(tensors, scalars, strict=True)]


def call_of(parts: Sequence[object]) -> AttentionCall:
    """Build a call from the values of its parts, in the order of `PARTS`."""
    named = dict(zip(PARTS, parts, strict=True))
    masked = named["ranges"] is not None or named["dense"] is not None
    return AttentionCall.from_parts(named, "precomputed mask" if masked else None)
