"""Tests of products of the lazy matrix and its transpose with tensors."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clearhead import AttentionWeights, Causal, attention
from support.numerics import assert_matches, poisoned
from support.strategies import cases
from support.weights import PROBLEMS, Problem, assert_same, both_forms, sample

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@given(case=cases(DTYPES), width=st.sampled_from([1, 3]), wide=st.booleans())
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_products_match_extended_precision(small_tiles, case, width, wide):
    batch, heads, q_len, kv_len = case.shape
    dtype = case.statistics_dtype if wide else case.query.dtype
    x, y = (torch.randn(batch, heads, n, width, dtype=dtype) for n in (kv_len, q_len))
    exact, naive = case.exact()["weights"], case.to(dtype).plain()["weights"].detach()
    logs = case.terms + np.log(2 + kv_len)  # bound of the log weights, whose rounding error limits the precision
    for weights in both_forms(case):
        for got, left, plain, factor in (
            (lambda w=weights: w @ x, exact, naive, x),
            (lambda w=weights: w.mT @ y, exact.swapaxes(2, 3), naive.mT, y),
        ):
            with poisoned():
                product = got()
            truth = factor.double().numpy().astype(np.longdouble)
            size = float((left @ np.abs(truth)).max())
            assert_matches(product, left @ truth, plain @ factor, scale=logs * size)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("shape", [(5,), (5, 3), (1, 1, 5, 3), (2, 1, 5, 3), (1, 2, 5, 3), (2, 4, 5, 3)])
def test_products_broadcast_as_matmul(small_tiles, name, shape):
    problem = Problem(name)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    per_head = x.repeat_interleave(2, dim=1) if len(shape) == 4 and shape[1] == 2 else x  # key heads are shared
    assert_same(problem.weights() @ x, problem.dense() @ per_head, [*problem.leaves, x])


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("shape", [(5,), (5, 3), (2, 1, 5, 3), (1, 2, 5, 3), (2, 4, 5, 3)])
def test_factors_of_fixed_weights_have_gradients(small_tiles, name, shape):
    problem = Problem(name)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    per_head = x.repeat_interleave(2, dim=1) if len(shape) == 4 and shape[1] == 2 else x
    assert_same(problem.weights().detach() @ x, problem.dense().detach() @ per_head, [x])


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("shape", [(3,), (3, 2), (2, 1, 3, 2), (1, 4, 3, 2), (2, 4, 3, 2)])
def test_transposed_products_broadcast_as_matmul(small_tiles, name, shape):
    problem = Problem(name)
    y = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert_same(problem.weights().mT @ y, problem.dense().mT @ y, [*problem.leaves, y])


def test_factors_may_have_more_sequences_and_heads_than_the_matrix():
    x = torch.randn(1, 1, 7, 4, dtype=torch.float64)
    weights = attention(x, x, x, return_weights=True)[1]
    factor = torch.randn(3, 5, 7, 2, dtype=torch.float64)
    torch.testing.assert_close(weights @ factor, weights.dense() @ factor)
    torch.testing.assert_close(weights.mT @ factor, weights.dense().mT @ factor)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_products_have_the_dtype_of_the_factor(dtype):
    weights = sample()[-1]
    x, y = torch.randn(17, 2, dtype=dtype), torch.randn(13, 2, dtype=dtype)
    assert (weights @ x).dtype == (weights.mT @ y).dtype == dtype
    tolerance = torch.finfo(dtype).eps * 20 + 1e-6
    torch.testing.assert_close((weights @ x).double(), weights.dense().double() @ x.double(), rtol=0, atol=tolerance)


def test_a_float64_factor_takes_float64_weights():
    query, key, _, _, weights = sample()
    exact = attention(query.double(), key.double(), key.double(), mask=Causal(), return_weights=True)[1].dense()
    x, y = torch.randn(17, 2, dtype=torch.float64), torch.randn(13, 2, dtype=torch.float64)
    torch.testing.assert_close(weights @ x, exact @ x, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(weights.mT @ y, exact.mT @ y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lengths", [(0, 5), (5, 0)])
def test_products_of_empty_matrices_are_zero(lengths):
    weights = sample(*lengths, mask=None)[-1]
    q_len, kv_len = lengths
    assert torch.equal(weights @ torch.randn(kv_len, 2), torch.zeros(2, 6, q_len, 2))
    assert torch.equal(weights.mT @ torch.randn(q_len, 2), torch.zeros(2, 6, kv_len, 2))


def test_transpose_has_shape_indices_and_values_of_the_dense_transpose():
    weights = sample()[-1]
    dense, transposed = weights.dense().mT, weights.mT
    assert transposed.shape == dense.shape
    assert (transposed.dtype, transposed.device) == (dense.dtype, dense.device)
    assert transposed.mT is weights
    assert torch.equal(transposed.dense(), dense)
    for index in ((0, 1, 2), (..., 3), (1, slice(2, 4), -1, slice(None, None, 3)), (slice(None), 0, slice(3, 9), 5)):
        torch.testing.assert_close(transposed[index], dense[index])
    assert repr(transposed).startswith("Transpose of AttentionWeights(")
    with pytest.raises(IndexError, match=r"index 17 is out of range"):
        transposed[0, 0, 17]


class TestUnnormalizedRows:
    """Matrices whose rows do not sum to 1: after `hiding`, or loaded from a file."""

    @pytest.mark.parametrize("name", PROBLEMS)
    def test_hidden_keys_do_not_change_other_weights(self, small_tiles, name):
        problem = Problem(name)
        hidden, exact = problem.weights().hiding([0, 3]), problem.dense().detach()
        exact = exact * torch.tensor([0, 1, 1, 0, 1])
        x, y = (torch.randn(n, 2, dtype=torch.float64, requires_grad=True) for n in (5, 3))
        assert_same(hidden @ x, exact @ x, [x])
        assert_same(hidden.mT @ y, exact.mT @ y, [y])
        torch.testing.assert_close(hidden.sum(-1), exact.sum(-1))

    def test_a_more_precise_factor_does_not_normalize_the_rows(self):
        hidden = sample()[-1].hiding(0)
        exact = hidden.dense().double()
        x, y = (torch.randn(n, 2, dtype=torch.float64) for n in (17, 13))
        torch.testing.assert_close(hidden @ x, exact @ x, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(hidden.mT @ y, exact.mT @ y, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("derive", ["hiding", "scaled", "part"])
    def test_saved_matrices_give_the_same_products(self, derive, tmp_path):
        weights = sample()[-1]
        changed = {
            "hiding": lambda: weights.hiding([0, 5]),
            "scaled": lambda: weights.scaled(torch.rand(17)),
            "part": lambda: weights.part(heads=[1, 4]),
        }[derive]()
        changed.save(tmp_path / "weights")
        loaded = AttentionWeights.load(tmp_path / "weights")
        x, y = torch.randn(17, 3), torch.randn(13, 3)
        torch.testing.assert_close(loaded @ x, changed.dense() @ x)
        torch.testing.assert_close(loaded.mT @ y, changed.dense().mT @ y)


@pytest.mark.parametrize(
    ("factor", "error", "message"),
    [
        (torch.randn(13, 2), ValueError, r"the right factor has shape \(13, 2\); expected \[kv_len = 17, width\] or"),
        (torch.randn(2, 5, 17, 2), ValueError, r"has shape \(2, 5, 17, 2\); .*heads = 6 or 3 or 1, kv_len = 17"),
        (torch.randn(3, 6, 17, 2), ValueError, r"has shape \(3, 6, 17, 2\); expected .*batch = 2"),
        (torch.randn(()), ValueError, r"has shape \(\); expected"),
        (torch.randn(1, 1, 1, 17, 2), ValueError, r"has shape \(1, 1, 1, 17, 2\); expected"),
        (torch.ones(17, 2).long(), TypeError, r"the right factor has dtype torch.int64; expected float64, float32"),
        ([[1.0]] * 17, TypeError, r"the right factor is a list; expected \[kv_len = 17, width\]"),
        (torch.randn(17, 2, device="meta"), ValueError, r"the right factor is on meta; expected cpu, the device of"),
    ],
)
def test_wrong_factors_are_refused(factor, error, message):
    with pytest.raises(error, match=message):
        sample()[-1] @ factor


@pytest.mark.parametrize(
    ("factor", "error", "message"),
    [
        (torch.randn(17, 2), ValueError, r"the right factor has shape \(17, 2\); expected \[q_len = 13, width\] or"),
        (torch.randn(2, 3, 13, 2), ValueError, r"has shape \(2, 3, 13, 2\); expected .*heads = 6 or 1, q_len = 13"),
        (torch.ones(13, 2).bool(), TypeError, r"the right factor has dtype torch.bool; expected"),
        (torch.randn(13, 2, device="meta"), ValueError, r"the right factor is on meta; expected cpu"),
    ],
)
def test_wrong_factors_of_the_transpose_are_refused(factor, error, message):
    with pytest.raises(error, match=message):
        sample()[-1].mT @ factor
