"""Tests of the custom op: memory layout of the gradients that its backward pass receives."""

import pytest
import torch

from clearhead.ops._custom_op import Gradients, custom_op
from clearhead.ops.arguments import build_call

STRIDES = []


def forward(call):
    return call.query * 1.0, call.query.sum(dim=-1)


def backward(call, results, need_bias):
    STRIDES.append(results.grad_output.stride())
    return Gradients(*(torch.zeros_like(tensor) for tensor in (call.query, call.key, call.value)), None, None, None)


OPERATION = custom_op("tests_gradient_layout", forward, backward)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "compiled"])
def test_expanded_gradient_is_made_contiguous(traced):
    query, key, value = (torch.randn(2, 3, 5, 7, requires_grad=True) for _ in range(3))

    def loss(query):
        return OPERATION(build_call(query, key, value))[0].sum()

    STRIDES.clear()
    (torch.compile(loss, backend="aot_eager") if traced else loss)(query).backward()
    torch._dynamo.reset()
    assert STRIDES == [(105, 35, 7, 1)]


def test_transposed_gradient_is_not_copied():
    query, key, value = (torch.randn(2, 3, 5, 7, requires_grad=True) for _ in range(3))
    output = OPERATION(build_call(query, key, value))[0]
    STRIDES.clear()
    output.backward(torch.randn(2, 5, 3, 7).transpose(1, 2))
    assert STRIDES == [(105, 7, 21, 1)]
