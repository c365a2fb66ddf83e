"""Tests of outputs, log-sum-exp and gradients of every backend against the equation in extended precision."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from clearhead import ALiBi, Causal, Dense, Documents, Padding, Prefix, Window, attention
from support.backend_checks import BACKENDS, DENSE, check_forward, check_gradients, random_inputs
from support.numerics import Case, assert_matches
from support.peers import assert_agrees
from support.strategies import cases

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("backend", BACKENDS)
@given(case=cases(DTYPES))
@settings(max_examples=150)
def test_forward_matches_the_equation(backend, case):
    check_forward(case, backend)


@given(case=cases((torch.float32, torch.bfloat16)))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_forward_over_many_tiles_matches_the_equation(small_tiles, case):
    check_forward(case, "streaming")


@pytest.mark.parametrize("backend", BACKENDS)
@given(case=cases((torch.float32, torch.bfloat16)))
@settings(max_examples=100)
def test_gradients_match_the_equation(backend, case):
    check_gradients(case, backend)


@given(case=cases())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_gradients_over_many_tiles_match_the_equation(small_tiles, case):
    check_gradients(case, "streaming")


@given(case=cases(DTYPES, plain=True))
@settings(max_examples=150)
def test_fused_kernel_matches_the_equation(case):
    check_forward(case, "sdpa")
    if case.query.dtype in (torch.float32, torch.bfloat16):
        check_gradients(case, "sdpa")


MASKS = (
    Causal(),
    Window(before=2, after=1),
    Padding([5, 0]),
    Padding.left([11, 3]),
    Documents([3, 0, 5], strict=False),
    Documents([[2, 9], [7]]),
    Prefix(4),
    Dense(DENSE),
    Window(before=1) | (Causal() & Prefix(3)),
    Dense(DENSE) & Causal(),
)


@pytest.mark.parametrize("mask", MASKS, ids=repr)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_match_finite_differences(backend, mask):
    query, key, value = random_inputs(requires_grad=True)
    bias = torch.randn(6, 1, 11, dtype=torch.float64, requires_grad=True)
    sinks = torch.randn(6, dtype=torch.float64, requires_grad=True)

    def call(query, key, value, bias, sinks):
        return attention(query, key, value, mask=mask, bias=bias, sinks=sinks, softcap=1.5, backend=backend)

    assert torch.autograd.gradcheck(call, (query, key, value, bias, sinks), fast_mode=True)


def test_gradient_of_slopes_matches_finite_differences():
    query, key, value = random_inputs()
    slopes = torch.rand(6, dtype=torch.float64, requires_grad=True)

    def call(slopes):
        return attention(query, key, value, bias=ALiBi(slopes), mask=Causal(), backend="streaming")

    assert torch.autograd.gradcheck(call, (slopes,))


@pytest.mark.parametrize("backend", ["streaming", "triton"])
def test_in_place_change_before_backward_raises(backend):
    x = torch.randn(1, 2, 5, 4, requires_grad=True)
    key = torch.randn(1, 2, 5, 4)
    output = attention(x, key, key, backend=backend)
    key.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize("backend", ["streaming", "triton"])
def test_second_derivative_is_refused(backend):
    """A gradient penalty must not silently be 0."""
    x = torch.randn(1, 2, 5, 4, requires_grad=True)
    key = torch.randn(1, 2, 5, 4)
    (gradient,) = torch.autograd.grad(attention(x, key, key, backend=backend).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="backend='reference'"):
        (x.sum() + gradient.square().sum()).backward()


def test_second_derivative_of_the_reference_matches_finite_differences():
    inputs = random_inputs(requires_grad=True)
    assert torch.autograd.gradgradcheck(
        lambda q, k, v: attention(q, k, v, mask=Causal(), backend="reference"), inputs, fast_mode=True
    )


@pytest.mark.parametrize("key_dim", [1, 255, 2048])
@pytest.mark.parametrize("backend", [*BACKENDS, "sdpa"])
def test_key_dim_from_1_to_2048_matches_the_equation(backend, key_dim):
    generator = torch.Generator().manual_seed(3)
    check_forward(Case(*(torch.randn(1, 2, 7, key_dim, generator=generator) for _ in range(3))), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 5), (5, 0), (0, 0)])
@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -1.0])])
def test_empty_queries_or_keys_are_supported(backend, q_len, kv_len, sinks):
    query = torch.randn(3, 2, q_len, 7, requires_grad=True)
    key, value = (torch.randn(3, 2, kv_len, dim, requires_grad=True) for dim in (7, 11))
    output, weights = attention(query, key, value, sinks=sinks, return_weights=True, backend=backend)
    assert output.shape == (3, 2, q_len, 11)
    assert weights.shape == (3, 2, q_len, kv_len)
    if q_len:
        expected = torch.full((3, 2, q_len), -torch.inf) if sinks is None else sinks[:, None].expand(3, 2, q_len)
        assert (output == 0).all()
        assert torch.equal(weights.lse, expected)
    assert weights.entropy().shape == weights.distance().shape == (3, 2, q_len)
    assert (weights.received() == 0).all()
    assert weights.received().shape == (3, 2, kv_len)
    assert (weights.topk(2).keys == -1).all()
    output.sum().backward()
    assert all(t.grad is None or (t.grad == 0).all() for t in (query, key, value))


def test_empty_batch_is_supported():
    output = attention(torch.randn(0, 2, 3, 4), torch.randn(0, 2, 5, 4), torch.randn(0, 2, 5, 4))
    assert output.shape == (0, 2, 3, 4)


@pytest.mark.parametrize("backend", [*BACKENDS, "sdpa"])
def test_empty_rows_depend_on_the_mask_and_not_on_the_scores(backend):
    """A row of scores of −10⁴ has a normal softmax; a fully masked row is 0, whatever its scores."""
    query, key, value = torch.full((1, 1, 2, 4), 100.0), torch.full((1, 1, 3, 4), -50.0), torch.randn(1, 1, 3, 4)
    query.requires_grad_()
    allowed = torch.tensor([[True, True, True], [False, False, False]])
    output, weights = attention(query, key, value, mask=allowed, return_weights=True, backend=backend)
    assert_agrees(output[0, 0, 0], lambda value: value.mean(dim=0), value[0, 0])
    assert (output[0, 0, 1] == 0).all()
    assert weights.lse[0, 0, 0] < -9000
    assert weights.lse[0, 0, 1] == -torch.inf
    assert torch.autograd.grad(output.sum(), query)[0].isfinite().all()


@pytest.mark.parametrize("scale", [-1.0, 0.0])
@pytest.mark.parametrize("mask", [Causal(), Causal() & Padding([7]), Padding([7])])
def test_zero_and_negative_scales_match_the_equation(scale, mask):
    """The fused kernel of torch writes −inf before it scales, so it must not be chosen with a causal mask."""
    check_forward(Case(*(torch.randn(1, 2, 17, 13) for _ in range(3)), mask, scale=scale), "auto")


def test_autocast_does_not_change_the_precision():
    x = torch.randn(1, 4, 50, 16, requires_grad=True)
    case = Case(x.detach(), x.detach(), x.detach(), Window(5))
    exact, naive = case.exact()["weights"], case.statistics()["weights"]
    for backend in (*BACKENDS, "auto"):
        expected = attention(x, x, x, mask=Window(5), backend=backend)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output, weights = attention(x, x, x, mask=Window(5), return_weights=True, backend=backend)
            assert torch.equal(output, expected)
            assert_matches(weights.dense(), exact, naive, scale=case.terms)
            assert_matches(weights.received(), exact.sum(axis=2), naive.sum(dim=2), scale=case.terms)
            mean = exact.mean(axis=(2, 3), keepdims=True)
            assert_matches(weights.pool(1, 1), mean, naive.mean(dim=(2, 3), keepdim=True), scale=case.terms / 50)
            assert weights.diagonal().dtype == torch.float32


def test_query_start_of_a_narrow_dtype_does_not_overflow():
    x = torch.randn(1, 1, 300, 4, requires_grad=True)
    start = torch.zeros(1, dtype=torch.uint8)
    narrow, wide = (
        attention(x, x, x, bias=ALiBi([0.5]), query_start=at, return_weights=True)[1][0, 0, 256:] for at in (start, 0)
    )
    assert torch.equal(narrow, wide)


def test_softcap_is_applied_before_mask_and_bias():
    """A −inf must not pass through tanh, and a bias is not capped."""
    query, key, value = (torch.randn(1, 1, 3, 4) for _ in range(3))
    bias = torch.tensor([[0.0, 50.0, -torch.inf]]).expand(3, 3)
    case = Case(query, key, value, bias=bias, softcap=2.0)
    for backend in BACKENDS:
        _, weights = attention(query, key, value, bias=bias, softcap=2.0, return_weights=True, backend=backend)
        assert (weights[..., 2] == 0).all()
        naive = case.statistics()["weights"]
        assert_matches(weights.dense(), case.exact()["weights"], naive, scale=case.terms)
        assert (naive[..., 1] > 0.99).all()


def test_grouped_heads_equal_repeated_keys():
    def repeated(query, key, value):
        return attention(query, *(t.repeat_interleave(2, dim=1) for t in (key, value)))

    inputs = random_inputs(torch.float32)
    for backend in BACKENDS:
        assert_agrees(attention(*inputs, backend=backend), repeated, *inputs)


def test_causal_aligns_the_last_keys_by_default_and_the_first_with_query_start_0():
    query, key = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 5, 4)
    last = attention(query, key, key, mask=Causal(), return_weights=True)[1]
    first = attention(query, key, key, mask=Causal(), query_start=0, return_weights=True)[1]
    assert torch.equal(last.dense()[0, 0] > 0, torch.ones(3, 5).tril(2).bool())
    assert torch.equal(first.dense()[0, 0] > 0, torch.ones(3, 5).tril(0).bool())


@pytest.mark.parametrize("backend", [*BACKENDS, "sdpa"])
def test_inputs_may_have_any_strides(backend):
    """Heads of one fused projection, and a last axis that is not contiguous."""
    fused = torch.randn(2, 7, 3, 3, 5)  # batch, length, (query, key, value), heads, dim
    query, key, value = fused.unbind(2)
    query, key, value = (t.transpose(1, 2) for t in (query, key, value))
    value = value.transpose(-1, -2).contiguous().transpose(-1, -2)

    def contiguous(*tensors):
        return attention(*(t.contiguous() for t in tensors), backend="reference")

    assert_agrees(attention(query, key, value, backend=backend), contiguous, query, key, value)


def test_inputs_are_not_modified():
    inputs = [*random_inputs(torch.float32), torch.randn(6, 7, 11)]
    copies = [t.clone() for t in inputs]
    for backend in BACKENDS:
        _, weights = attention(*inputs[:3], bias=inputs[3], mask=Causal(), return_weights=True, backend=backend)
        weights.observe(entropy=True, received=True, distance=True, top=2)
        rows = weights[0, 0]
        rows.zero_()
    assert all(torch.equal(a, b) for a, b in zip(inputs, copies, strict=True))
    assert weights[0, 0].sum() > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_runs_repeat_bit_for_bit(backend):
    results = []
    for _ in range(2):
        inputs = random_inputs(torch.float32, requires_grad=True)
        output = attention(*inputs, mask=Causal(), backend=backend)
        results.append([output, *torch.autograd.grad(output.sum(), inputs)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_sharp_heads_and_large_scores_match_the_equation():
    """Weights that underflow are 0, sums are 1, and nothing overflows."""
    generator = torch.Generator().manual_seed(4)
    case = Case(*(30 * torch.randn(2, 7, 17, 13, generator=generator) for _ in range(3)), mask=Causal())
    for backend in (*BACKENDS, "sdpa"):
        check_forward(case, backend)
        check_gradients(case, backend)
