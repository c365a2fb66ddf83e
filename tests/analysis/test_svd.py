"""Tests of the randomized singular value decomposition against torch's."""

import pytest
import torch

from clearhead import Causal, attention
from clearhead.analysis import SVD, svd
from support.weights import sample


def matrices(q_len=101, kv_len=67, *, dtype=torch.float64, **options):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 6, q_len, 5, generator=generator).to(dtype)
    key = torch.randn(2, 3, kv_len, 5, generator=generator).to(dtype)
    return attention(query, key, key, return_weights="keep_qk", **options)[1]


@pytest.mark.parametrize("mask", [None, Causal()])
def test_largest_singular_values_and_vectors(mask):
    weights = matrices(mask=mask)
    dense = weights[1, 4]
    left, values, right = svd(weights, 5, batch=1, head=4, oversampling=20, iterations=20)
    assert (left.shape, values.shape, right.shape) == ((101, 5), (5,), (67, 5))
    expected = torch.linalg.svd(dense, full_matrices=False)
    torch.testing.assert_close(values, expected.S[:5])
    for columns in (left, right):
        torch.testing.assert_close(columns.mT @ columns, torch.eye(5, dtype=torch.float64))
    # vectors are unique up to their sign; products of both sides do not depend on it
    torch.testing.assert_close(
        left[:, None] * right[None], expected.U[:, None, :5] * expected.Vh.mT[None, :, :5], rtol=1e-6, atol=1e-9
    )


def test_default_options_are_accurate_in_float32():
    weights = matrices(499, 499, dtype=torch.float32, mask=Causal())
    values = svd(weights, 8).values
    exact = torch.linalg.svdvals(weights[0, 0].double())[:8]
    assert values.dtype == torch.float32
    assert ((values - exact).abs() <= 1e-4 * exact[0]).all()


def test_all_singular_values_reproduce_the_matrix():
    weights = matrices(13, 7)
    left, values, right = svd(weights, 7, iterations=0)
    torch.testing.assert_close(left * values @ right.mT, weights[0, 0])


def test_wide_matrices_and_negative_indices():
    weights = matrices(11, 59)
    got = svd(weights, 3, batch=-1, head=-1)
    assert isinstance(got, SVD)
    torch.testing.assert_close(got.values, torch.linalg.svdvals(weights[1, 5])[:3])


def test_the_seed_determines_the_result():
    weights = matrices()
    first, second, other = (svd(weights, 3, iterations=0, seed=seed) for seed in (1, 1, 2))
    assert all(map(torch.equal, first, second))
    assert not torch.equal(first.values, other.values)
    state = torch.get_rng_state()
    svd(weights, 3)
    assert torch.equal(torch.get_rng_state(), state)


def test_signs_do_not_depend_on_the_seed():
    weights = matrices()
    first, other = (svd(weights, 3, iterations=30, oversampling=20, seed=seed) for seed in (1, 2))
    for columns, same in zip(first, other, strict=True):
        torch.testing.assert_close(columns, same, rtol=1e-6, atol=1e-9)
    assert (first.left[:, 0] > 0).all()  # by Perron and Frobenius


def test_works_on_unnormalized_rows():
    weights = matrices(29, 31).hiding(0)
    torch.testing.assert_close(svd(weights, 2, oversampling=29).values, torch.linalg.svdvals(weights[0, 0])[:2])


def test_results_have_no_gradient():
    query = torch.randn(1, 1, 7, 3, requires_grad=True)
    weights = attention(query, query, query, return_weights=True)[1]
    assert not any(result.requires_grad for result in svd(weights, 2))


def test_rejects_wrong_arguments():
    weights = sample()[-1]  # [2, 6, 13, 17]
    for arguments, error, message in (
        ({"weights": weights.dense()}, TypeError, "weights is a Tensor; expected AttentionWeights"),
        ({"k": 0}, ValueError, "k is 0; expected a whole number of at least 1"),
        ({"k": 14}, ValueError, "k is 14; expected .* and at most 13"),
        ({"batch": 2}, ValueError, "batch is 2; expected .* and at most 1"),
        ({"head": slice(2)}, TypeError, "head is slice"),
        ({"oversampling": -1}, ValueError, "oversampling is -1"),
        ({"iterations": 0.5}, TypeError, "iterations is 0.5"),
        ({"seed": -1}, ValueError, "seed is -1"),
    ):
        with pytest.raises(error, match=message):
            svd(**{"weights": weights, "k": 2, **arguments})
    with pytest.raises(ValueError, match="expected at least one query and one key"):
        svd(sample(q_len=0)[-1], 1)
