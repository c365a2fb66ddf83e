"""Tests of indexing the lazy matrix, and of its size limit."""

import numpy as np
import pytest
import torch

from clearhead import Causal, Window, attention
from clearhead.weights import cells
from support.numerics import Case
from support.weights import both_forms, sample

INDICES = [
    0,
    -1,
    (0, 5),
    (slice(None), 2),
    (0, 5, slice(3, 7)),
    (1, -2, slice(-4, None), slice(None, -2)),
    (slice(None), slice(1, 6, 2), slice(None, None, 3), slice(2, None, 4)),
    (..., 3),
    (0, ..., slice(0, 2)),
    (0, 1, 2, 3),
    (0, 1, slice(5, 5)),
    (0, 1, slice(9, 2), slice(None)),
    ...,
]


@pytest.mark.parametrize("index", INDICES, ids=repr)
@pytest.mark.parametrize("gradient", [False, True])
def test_indexing_matches_a_dense_tensor(index, gradient, monkeypatch):
    monkeypatch.setattr(cells, "CELLS_PER_STRIP", 40)
    weights = sample(requires_grad=gradient)[-1]
    got, expected = weights[index], weights.dense()[index]
    assert got.shape == expected.shape
    torch.testing.assert_close(got, expected)
    scores = weights.scores[index]
    torch.testing.assert_close(torch.exp(scores - weights.lse[..., None].expand(weights.shape)[index]), expected)


def test_length_iteration_and_size_match_a_tensor():
    weights = sample()[-1]
    assert len(weights) == 2
    assert [sequence.shape for sequence in weights] == [(6, 13, 17)] * 2
    assert weights.shape == weights.size() == (2, 6, 13, 17)
    assert weights.size(-1) == 17
    assert weights.ndim == weights.dim() == 4


def test_scores_are_minus_infinity_where_masked():
    weights = sample()[-1]
    assert torch.equal(weights.scores[0, 0] == -torch.inf, ~Causal().dense(13, 17)[0, 0])


@pytest.mark.parametrize("form", [0, 1])
def test_gradients_flow_through_cells(form):
    """Indexing, dense() and diagonal() are differentiable in query, key, bias and sinks."""
    query = torch.randn(1, 2, 5, 3, dtype=torch.float64, requires_grad=True)
    key = torch.randn(1, 1, 7, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, 1, 7, dtype=torch.float64, requires_grad=True)
    sinks = torch.randn(2, dtype=torch.float64, requires_grad=True)

    def call(query, key, bias, sinks):
        weights = both_forms(Case(query, key, key, Window(2, 1), bias, sinks=sinks, softcap=2.0), "streaming")[form]
        return weights[0, 1, 1:5:2, 2:], weights.dense(), weights.diagonal(-1), weights.scores[0, 0, 4, 4:]

    assert torch.autograd.gradcheck(call, (query, key, bias, sinks))


class TestSizeLimit:
    def weights(self):
        x = torch.randn(1, 1, 20_000, 8)
        return attention(x, x, x, mask=Causal(), return_weights=True)[1]

    def test_refuses_results_above_the_limit(self):
        weights = self.weights()
        for use in (weights.dense, lambda: weights[0], lambda: weights.scores[0], lambda: np.asarray(weights)):
            with pytest.raises(ValueError, match="400,000,000 weights are more than the limit") as caught:
                use()
            assert all(name in str(caught.value) for name in (".part()", ".pool()", ".topk()"))

    def test_computes_rows_of_a_large_matrix(self):
        weights = self.weights()
        rows = weights[0, 0, 12_345:12_347]
        assert rows.shape == (2, 20_000)
        torch.testing.assert_close(rows.sum(dim=-1), torch.ones(2), rtol=0, atol=1e-5)
        assert weights[0, 0, ::4000, ::1000].shape == (5, 20)


def test_too_little_memory_is_reported_with_the_ways_out(monkeypatch):
    x = torch.randn(1, 2, 7, 5)
    weights = attention(x, x, x, return_weights=True)[1]

    def fail(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(cells, "_scores", fail)
    with pytest.raises(
        torch.OutOfMemoryError, match=r"1 × 2 × 7 × 7 weights take 0\.0 GiB.* \.part\(\).* \.to\('cpu'\)"
    ):
        weights.dense()
