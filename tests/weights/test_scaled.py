"""Tests of the matrix with scaled columns, and of value-weighted attention."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.autograd import gradcheck
from torch.nn.functional import adaptive_avg_pool2d, adaptive_max_pool2d

from clearhead import ALiBi, AttentionWeights, attention
from support.numerics import assert_matches
from support.strategies import cases
from support.weights import PROBLEMS, Problem, assert_same, both_forms, sample

NAMES = [name for name in PROBLEMS if "ALiBi" not in name]
SHAPES = [(5,), (4, 5), (1, 1, 5), (2, 1, 5), (2, 4, 5)]


def factors_of(*shape: int) -> torch.Tensor:
    factors = torch.rand(shape, dtype=torch.float64) + 0.1
    factors[..., 2] = 0.0
    return factors.requires_grad_()


@given(case=cases((torch.float32, torch.float64, torch.bfloat16)))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_weights_and_sums_match_extended_precision(small_tiles, case):
    if isinstance(case.bias, ALiBi):
        return
    factors = torch.rand(case.shape[3], dtype=case.statistics_dtype)
    truth = factors.double().numpy().astype(np.longdouble)
    exact, naive = case.exact()["weights"] * truth, case.statistics()["weights"] * factors
    logs = case.terms + np.log(2 + case.shape[3])
    for weights in both_forms(case):
        scaled = weights.scaled(factors)
        assert_matches(scaled.dense(), exact, naive, scale=logs)
        received = exact.sum(axis=-2)
        assert_matches(scaled.received(), received, naive.sum(-2), scale=logs * max(1.0, float(received.max())))
        assert_matches(scaled.sum(-1), exact.sum(axis=-1), naive.sum(-1), scale=logs)
        assert_matches(scaled.amax(-1), exact.max(axis=-1), naive.amax(-1), scale=logs)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_everything_is_that_of_the_dense_product(small_tiles, name, shape):
    problem, factors = Problem(name), factors_of(*shape)
    scaled = problem.weights().scaled(keys=factors)
    exact = problem.dense() * factors[(None,) * (3 - factors.ndim)][:, :, None]
    x = torch.randn(2, 2, 5, 3, dtype=torch.float64, requires_grad=True)
    y = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    leaves = [*problem.leaves, factors, x, y]
    top, above = scaled.topk(2), scaled.above(0.1)
    for got, expected in (
        (scaled.dense(), exact),
        (scaled[1, 0, 1:, ::2], exact[1, 0, 1:, ::2]),
        (scaled.received(), exact.sum(-2)),
        (scaled.mass([(0, 4), (1, 3)]), torch.stack([exact[..., :4].sum(-1), exact[..., 1:3].sum(-1)], -1)),
        (top.weights, torch.where(top.keys >= 0, exact.gather(-1, top.keys.clamp(min=0)), 0.0)),
        (above.values, exact[tuple(above.indices)]),
        (scaled.pool(2, 3), adaptive_avg_pool2d(exact, (2, 3))),
        (scaled.sum((0, -1)), exact.sum((0, -1))),
        (scaled @ x, exact @ x.repeat_interleave(2, dim=1)),
        (scaled.mT @ y, exact.mT @ y),
        (scaled.part(batch=1, heads=(0, 2), queries=slice(1, 3)).dense(), exact[1:, [0, 2], 1:3]),
        (scaled.part(batch=(0, 1), heads=np.int64(3)).received(), exact[:, 3:].sum(-2)),
        (scaled.scaled(factors.detach()).topk(1).weights, (exact * factors.detach().view(1, -1, 1, 5)).topk(1).values)
        if shape == (5,)
        else (scaled.sum(), exact.sum()),
    ):
        assert_same(got, expected, leaves)
    torch.testing.assert_close(top.weights, exact.topk(2).values)
    assert torch.equal(above.indices, (exact > 0.1).nonzero().mT)
    torch.testing.assert_close(scaled.amax(-2), exact.amax(-2))
    assert scaled.amax(-2).requires_grad
    torch.testing.assert_close(scaled.detach().pool(2, 3, reduce="max"), adaptive_max_pool2d(exact, (2, 3)).detach())
    torch.testing.assert_close(scaled.peak(), problem.weights().peak())


@pytest.mark.parametrize("name", NAMES)
def test_gradients_match_finite_differences(small_tiles, name):
    problem, factors = Problem(name), torch.rand(4, 5, dtype=torch.float64).add(0.1).requires_grad_()
    x = torch.randn(2, 4, 5, 2, dtype=torch.float64, requires_grad=True)
    for use in (
        lambda s: s.received(),
        lambda s: s @ x,
        lambda s: s.topk(2).weights,
        lambda s: s.amax(-2),
        lambda s: s.diagonal(-1),
        lambda s: s.pool(2, 3),
    ):
        function = lambda f, *leaves, use=use: use(problem.weights(*leaves).scaled(f))  # noqa: E731
        assert gradcheck(function, [factors, *problem.leaves], fast_mode=True, atol=1e-6)


def test_factors_of_zero_have_a_gradient():
    problem, factors = Problem(), torch.zeros(5, dtype=torch.float64, requires_grad=True)
    scaled = problem.weights().scaled(factors)
    (gradient,) = torch.autograd.grad(scaled.received().sum(), factors)
    torch.testing.assert_close(gradient, problem.dense().sum((0, 1, 2)))
    assert not scaled.dense().any()
    assert (scaled.topk(2).keys == -1).all()


def test_value_norms_are_norms_of_weighted_values():
    query, key, value, _, weights = sample(dtype=torch.float64, requires_grad=True)
    dense, values = weights.dense(), value.repeat_interleave(2, dim=1)
    leaves = [query, key, value]
    assert_same(weights.value_norms().dense(), dense * values.norm(dim=-1)[:, :, None], leaves)
    output_weight = torch.randn(11, 24, dtype=torch.float64)
    projected = torch.einsum("bhkd,mhd->bhkm", values, output_weight.view(11, 6, 4))
    got = weights.value_norms(output_weight)
    assert_same(got.dense(), dense * projected.norm(dim=-1)[:, :, None], leaves)


def test_values_of_zero_have_norm_and_gradient_zero():
    x, value = torch.randn(1, 2, 5, 4), torch.zeros(1, 2, 5, 3, requires_grad=True)
    weights = attention(x, x, value, return_weights=True)[1]
    for norms in (weights.value_norms(), weights.value_norms(torch.randn(7, 6))):
        assert not norms.dense().any()
        assert torch.autograd.grad(norms.sum(), value)[0].isfinite().all()


def test_observe_returns_the_results_of_the_methods():
    scaled = sample()[-1].scaled(torch.rand(17))
    statistics = scaled.observe(received=True, distance=True, peak=True, spans=[(0, 3)], top=2, pool=(2, 3))
    assert torch.equal(statistics.received, scaled.received())
    assert torch.equal(statistics.distance, scaled.distance())
    assert torch.equal(statistics.mass, scaled.mass([(0, 3)]))
    assert torch.equal(statistics.pooled, scaled.pool(2, 3))
    last = scaled.observe(queries=slice(-2, None), received=True).received
    torch.testing.assert_close(last, scaled.dense()[:, :, -2:].sum(-2))


def test_copies_keep_the_factors(tmp_path):
    scaled = sample()[-1].scaled(torch.rand(6, 17))
    dense = scaled.dense()
    assert torch.equal(copy.deepcopy(scaled).dense(), dense)
    assert torch.equal(scaled.to("cpu").dense(), dense)
    scaled.save(tmp_path / "scaled")
    loaded = AttentionWeights.load(tmp_path / "scaled")
    torch.testing.assert_close(loaded.dense(), dense)
    torch.testing.assert_close(loaded.received(), dense.sum(-2))
    torch.testing.assert_close(loaded @ torch.ones(17), dense.sum(-1))


def test_factors_may_change_after_the_call():
    weights, factors = sample()[-1], torch.rand(17)
    scaled, exact = weights.scaled(factors), weights.dense() * factors
    factors.zero_()
    torch.testing.assert_close(scaled.dense(), exact)
    torch.testing.assert_close(scaled.topk(1).weights, exact.topk(1).values)


@pytest.mark.parametrize("lengths", [(0, 5), (5, 0)])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_empty_matrices(lengths, requires_grad):
    q_len, kv_len = lengths
    scaled = sample(*lengths, mask=None, requires_grad=requires_grad)[-1].scaled(torch.rand(kv_len))
    assert scaled.topk(2).weights.shape == (2, 6, q_len, 2)
    assert scaled.diagonal().shape == (2, 6, q_len)
    assert scaled.above(0).values.shape == (0,)
    assert torch.equal(scaled.pool(2, 3), torch.zeros(2, 6, 2, 3))
    assert scaled.sum() == 0


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        (torch.rand(13), ValueError, r"keys has shape \(13,\); expected \[kv_len = 17\], or a shape that broadcasts"),
        (torch.rand(3, 17), ValueError, r"keys has shape \(3, 17\); expected .*\[2, 6, 17\]"),
        (torch.rand(2, 6, 1, 17), ValueError, r"keys has shape \(2, 6, 1, 17\); expected"),
        (torch.rand(()), ValueError, r"keys has shape \(\); expected"),
        (-torch.rand(17), ValueError, r"keys has a negative, infinite or undefined factor; expected finite factors"),
        (torch.full((17,), torch.nan), ValueError, r"keys has a negative, infinite or undefined factor"),
        (torch.full((17,), torch.inf), ValueError, r"keys has a negative, infinite or undefined factor"),
        (torch.ones(17).long(), TypeError, r"keys has dtype torch.int64; expected float64, float32"),
        ([1.0] * 17, TypeError, r"keys is a list; expected \[kv_len = 17\]"),
        (torch.rand(17, device="meta"), ValueError, r"keys is on meta; expected cpu, the device of the weights"),
    ],
)
def test_wrong_factors_are_refused(keys, error, message):
    with pytest.raises(error, match=message):
        sample()[-1].scaled(keys=keys)


@pytest.mark.parametrize(
    ("output_weight", "error", "message"),
    [
        (
            torch.rand(8, 23),
            ValueError,
            r"output_weight has shape \(8, 23\); expected \[model_dim, heads · value_dim = 24",
        ),
        (torch.rand(24), ValueError, r"output_weight has shape \(24,\); expected"),
        (torch.ones(8, 24).long(), TypeError, r"output_weight has dtype torch.int64; expected"),
        (torch.rand(8, 24, device="meta"), ValueError, r"output_weight is on meta; expected cpu"),
    ],
)
def test_wrong_output_weights_are_refused(output_weight, error, message):
    with pytest.raises(error, match=message):
        sample()[-1].value_norms(output_weight)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda w, s: s.entropy(), r"which do not sum to 1; take weights\.unscaled\.entropy\(\)"),
        (lambda w, s: s.observe(entropy=True), r"entropy is not defined for scaled rows"),
        (lambda w, s: s.kl(w), r"the teacher is a scaled matrix or hides keys; expected rows of a softmax"),
        (lambda w, s: w.kl(s), r"student is a scaled matrix or hides keys; expected rows of a softmax"),
        (lambda w, s: s.mean_heads().kl(w), r"the teacher is a scaled matrix or hides keys"),
        (lambda w, s: s.distance(), r"the distance of scaled rows has no gradient; call detach\(\) first"),
        (lambda w, s: s.pool(2, 2, reduce="max"), r"only means over the whole scaled matrix have a gradient; call det"),
        (
            lambda w, s: w.without_values().value_norms(),
            r"the values were not kept \(without_values\); expected .* watch\(values=True\)",
        ),
    ],
)
def test_statistics_without_a_meaning_are_refused(use, message):
    weights = sample(requires_grad=True)[-1]
    with pytest.raises(ValueError, match=message):
        use(weights, weights.scaled(torch.rand(17)))


def test_alibi_is_refused():
    x = torch.randn(1, 2, 5, 4)
    weights = attention(x, x, x, bias=ALiBi(torch.rand(2)), return_weights=True)[1]
    with pytest.raises(
        ValueError, match=r"scaled\(\) does not support ALiBi; take scaled\(\) of a matrix with a tensor"
    ):
        weights.scaled(torch.rand(5))
