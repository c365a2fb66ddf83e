"""Tests of the custom op: memory layout of gradients, tensors that autograd saves."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from clearhead import ALiBi, Causal, Dense, attention
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


def random_tensors(count: int = 3) -> list[torch.Tensor]:
    return [torch.randn(2, 3, 5, 7, requires_grad=True) for _ in range(count)]


@pytest.mark.parametrize("changed", ["mask", "query_start", "query"])
def test_change_in_place_before_the_backward_pass_is_detected(changed):
    tensors, starts = random_tensors(), torch.tensor([0, 1])
    allowed, query = torch.ones(5, 5, dtype=torch.bool), tensors[0] * 1
    mask = Dense(allowed) & Causal()
    output = attention(query, *tensors[1:], mask=mask, query_start=starts, backend="streaming")
    with torch.no_grad():
        {"mask": allowed, "query_start": starts, "query": query}[changed].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_hooks_replace_saved_tensors():
    """Such hooks move activations to the CPU until the backward pass."""
    tensors, slopes = random_tensors(), torch.rand(3, requires_grad=True)
    packed = []

    def loss():
        return attention(*tensors, mask=Causal(), bias=ALiBi(slopes), backend="streaming").square().sum()

    expected = torch.autograd.grad(loss(), [*tensors, slopes])
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t.clone(), lambda t: t):
        value = loss()
    got = torch.autograd.grad(value, [*tensors, slopes])
    assert all(any(tensor is saved for saved in packed) for tensor in tensors)
    assert all(torch.equal(*pair) for pair in zip(got, expected, strict=True))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients(reentrant):
    tensors = random_tensors()

    def loss(*tensors):
        return attention(*tensors, mask=Causal(), softcap=3.0, backend="streaming").square().sum()

    expected = torch.autograd.grad(loss(*tensors), tensors)
    checkpoint(loss, *tensors, use_reentrant=reentrant).backward()
    assert all(torch.equal(tensor.grad, wanted) for tensor, wanted in zip(tensors, expected, strict=True))


def test_call_is_not_kept_by_autograd():
    """Tensors that hooks could not move would stay on the GPU."""
    tensors = random_tensors()
    output = attention(*tensors, mask=Causal(), backend="streaming")
    kept = [value for value in vars(output.grad_fn).values() if isinstance(value, torch.Tensor)]
    assert not kept
