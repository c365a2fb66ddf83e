"""An attention call as a custom op: one node in a compiled graph, with a gradient."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor  # pyright: ignore[reportMissingImports]

from clearhead.ops._precision import without_autocast
from clearhead.ops.call import PLAIN_TENSORS, AttentionCall, compute_dtype


class Inputs(NamedTuple):
    """A problem as a custom op takes it: tensors and numbers, in the order of `SCHEMA`."""

    query: Tensor
    key: Tensor
    value: Tensor
    starts: Tensor  # [batch or 1]
    ranges: Tensor | None
    dense: Tensor | None
    bias: Tensor | None
    slopes: Tensor | None
    sinks: Tensor | None
    seed: Tensor | None
    scale: float
    softcap: float | None
    dropout: float

    SCHEMA = (
        "Tensor query, Tensor key, Tensor value, Tensor starts, Tensor? ranges, Tensor? dense, Tensor? bias,"
        " Tensor? slopes, Tensor? sinks, Tensor? seed, float scale, float? softcap, float dropout"
    )

    @classmethod
    def of(cls, problem: AttentionCall, value: Tensor) -> "Inputs":
        lowered = problem.lower()
        start = problem.query_start
        return cls(
            problem.query,
            problem.key,
            value,
            start if isinstance(start, Tensor) else torch.tensor([start]),
            lowered.ranges,
            lowered.dense,
            problem.tensor_bias,
            problem.slopes,
            problem.sinks,
            problem.seed,
            problem.scale,
            problem.softcap,
            problem.dropout,
        )

    @property
    def compute_dtype(self) -> torch.dtype:
        return compute_dtype(self.query)

    @property
    def range_count(self) -> int:
        return 0 if self.ranges is None else self.ranges.shape[0]


class Gradients(NamedTuple):
    """Of size 0 where the tensor is absent or its gradient not needed."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor
    slopes: Tensor
    sinks: Tensor


class Results(NamedTuple):
    """What a backward pass starts from: the forward pass's results, and their gradients."""

    output: Tensor
    lse: Tensor
    grad_output: Tensor
    grad_lse: Tensor


Forward = Callable[[Inputs], tuple[Tensor, Tensor]]
Backward = Callable[[Inputs, Results, bool], Gradients]


class Once(torch.autograd.Function):
    """A gradient as it is, whose own gradient is refused."""

    @staticmethod
    def forward(gradient, *anchors):
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *grads):
        raise RuntimeError(
            "the gradient of a gradient of attention() is known to one backend only; give it backend='reference'"
        )


def _traced(tensor: Tensor) -> bool:
    """Whether a tensor stands for others: a fake one, one of a batch that vmap goes over, one without memory."""
    return type(tensor) not in PLAIN_TENSORS or tensor.is_meta or is_batchedtensor(tensor)


def operation(name: str, forward: Forward, backward: Backward) -> Callable[..., tuple[Tensor, Tensor]]:
    """A function of `*Inputs` that gives output and log-sum-exp: where it is traced the custom op
    `clearhead::{name}`, elsewhere without its machinery, which takes longer than a small problem does.

    Args:
        backward: called with the inputs, the results, and whether the bias needs a gradient.
    """

    @without_autocast
    def compute(*arguments):
        return forward(Inputs(*arguments))

    @without_autocast
    def compute_backward(*arguments):
        return tuple(backward(Inputs(*arguments[5:]), Results(*arguments[:4]), arguments[4]))

    forward_op = torch.library.custom_op(
        f"clearhead::{name}", compute, mutates_args=(), schema=f"({Inputs.SCHEMA}) -> (Tensor, Tensor)"
    )
    backward_op = torch.library.custom_op(
        f"clearhead::{name}_backward",
        compute_backward,
        mutates_args=(),
        schema=f"(Tensor output, Tensor lse, Tensor grad_output, Tensor grad_lse, bool need_bias, {Inputs.SCHEMA})"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    )

    @forward_op.register_fake
    def _(*arguments):
        inputs = Inputs(*arguments)
        shape = inputs.query.shape[:3]
        output = inputs.query.new_empty((*shape, inputs.value.shape[3]))
        return output, inputs.query.new_empty(shape, dtype=inputs.compute_dtype)

    @backward_op.register_fake
    def _(output, lse, grad_output, grad_lse, need_bias, *arguments):
        inputs = Inputs(*arguments)
        tensors = (*inputs[:3], inputs.bias if need_bias else None, inputs.slopes, inputs.sinks)
        return tuple(lse.new_empty(0) if t is None else t.new_empty(t.shape) for t in tensors)

    def save_for_backward(ctx, inputs, output):
        tensors, ctx.numbers = inputs[:10], inputs[10:]
        ctx.save_for_backward(*tensors, *output)

    def differentiate(ctx, grad_output, grad_lse, compute: Callable = backward_op):
        *tensors, output, lse = ctx.saved_tensors
        needed = ctx.needs_input_grad
        if 0 in grad_output.stride():  # `output.sum().backward()` expands a scalar, which kernels read slowly
            grad_output = grad_output.contiguous()
        gradients = compute(output, lse, grad_output, grad_lse, needed[6], *tensors, *ctx.numbers)
        wanted = zip(gradients, (*needed[:3], *needed[6:9]), strict=True)
        query, key, value, *options = (gradient if need else None for gradient, need in wanted)
        return query, key, value, None, None, None, *options, None, None, None, None

    forward_op.register_autograd(differentiate, setup_context=save_for_backward)

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(*arguments):
            return compute(*arguments)

        setup_context = staticmethod(save_for_backward)

        @staticmethod
        def backward(ctx, grad_output, grad_lse):  # pyright: ignore[reportIncompatibleMethodOverride]
            with torch.no_grad():
                gradients = differentiate(ctx, grad_output, grad_lse, compute_backward)
            if not torch.is_grad_enabled():
                return gradients
            # of these a gradient may be asked for: none is known, and none must pass for 0
            anchors = [tensor for tensor in ctx.saved_tensors if tensor is not None and tensor.requires_grad]
            return tuple(None if gradient is None else Once.apply(gradient, *anchors) for gradient in gradients)

    def call(*arguments):
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        if torch.compiler.is_compiling() or any(map(_traced, tensors)):
            return forward_op(*arguments)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return Differentiable.apply(*arguments)
        return compute(*arguments)

    return call
