"""Tests of eviction scores against formulas on the dense matrix."""

import pytest
import torch
from torch.nn.functional import avg_pool1d, max_pool1d

from clearhead import Causal, Padding, attention
from clearhead.analysis import eviction_scores
from support.numerics import Case, assert_matches
from support.weights import both_forms, sample

BATCH, KV_HEADS, GROUP = 2, 3, 2


def weights_in(dtype, q_len=41, kv_len=53, **options):
    generator = torch.Generator().manual_seed(0)
    query = (2 * torch.randn(BATCH, KV_HEADS * GROUP, q_len, 5, generator=generator)).to(dtype)
    key = torch.randn(BATCH, KV_HEADS, kv_len, 5, generator=generator).to(dtype)
    return attention(query, key, key, return_weights="keep_qk", **options)[1]


def h2o(weights):
    return weights.dense().sum(dim=-2).view(BATCH, KV_HEADS, GROUP, -1).sum(dim=2)


def snapkv(weights, window, kernel, pooling):
    """Compute the scores of the keys before the window, as the authors' code does."""
    dense = weights.dense()
    earlier = dense[:, :, -window:, :-window].sum(dim=-2).view(BATCH, KV_HEADS, GROUP, -1).sum(dim=2)
    pool = max_pool1d if pooling == "max" else avg_pool1d
    return pool(earlier, kernel_size=kernel, padding=kernel // 2, stride=1)


def test_h2o_scores_are_the_attention_that_keys_receive():
    weights, exact = (weights_in(dtype, mask=Causal()) for dtype in (torch.float32, torch.float64))
    torch.testing.assert_close(eviction_scores(exact), h2o(exact))
    assert_matches(eviction_scores(weights), h2o(exact), h2o(weights))


@pytest.mark.parametrize(("window", "kernel", "pooling"), [(32, 7, "max"), (7, 5, "mean"), (11, 1, "max")])
def test_snapkv_scores_are_the_pooled_attention_of_the_last_queries(window, kernel, pooling):
    options = {"window": window, "kernel": kernel, "pooling": pooling}
    weights, exact = (weights_in(dtype, mask=Causal()) for dtype in (torch.float32, torch.float64))
    got, double = (eviction_scores(each, "snapkv", **options) for each in (weights, exact))
    assert (got[..., -window:] == torch.inf).all()
    torch.testing.assert_close(double[..., :-window], snapkv(exact, **options))
    assert_matches(got[..., :-window], snapkv(exact, **options), snapkv(weights, **options))


def test_the_defaults_of_snapkv_are_those_of_the_paper():
    weights = weights_in(torch.float64, mask=Causal())
    got = eviction_scores(weights, recipe="snapkv")
    assert torch.equal(got, eviction_scores(weights, "snapkv", window=32, kernel=7, pooling="max"))


def test_padding_keys_have_score_zero():
    mask = Causal() & Padding(torch.tensor([53, 40]), side="left")
    weights = weights_in(torch.float64, mask=mask)
    assert eviction_scores(weights)[1, :, :13].abs().sum() == 0
    # pooling reaches 3 keys into the padding
    assert eviction_scores(weights, "snapkv", window=11)[1, :, :10].abs().sum() == 0


def test_sums_of_decoding_steps_are_the_scores_of_the_whole():
    query, key, value, _, weights = sample(17, 17, dtype=torch.float64)
    total = torch.zeros(2, 3, 17, dtype=torch.float64)
    for step in range(17):
        seen = [tensor[:, :, : step + 1] for tensor in (key, value)]
        _, row = attention(query[:, :, step : step + 1], *seen, mask=Causal(), return_weights=True)
        total[..., : step + 1] += eviction_scores(row)
    torch.testing.assert_close(total, eviction_scores(weights))


@pytest.mark.parametrize(("q_len", "kv_len"), [(5, 53), (5, 5), (41, 11)])
def test_windows_of_fewer_queries_or_keys(q_len, kv_len):
    weights = weights_in(torch.float64, q_len, kv_len)
    window = min(q_len, 32)
    got = eviction_scores(weights, "snapkv", kernel=1)
    expected = weights.dense()[:, :, -window:].sum(dim=-2).view(BATCH, KV_HEADS, GROUP, -1).sum(dim=2)
    expected[..., max(0, kv_len - window) :] = torch.inf
    torch.testing.assert_close(got, expected)


def test_matrices_that_hold_scores_have_the_same_scores():
    query, key = torch.randn(2, 6, 7, 5), torch.randn(2, 3, 11, 5)
    factors, scores = both_forms(Case(query, key, key, Causal()))
    for recipe in ("h2o", "snapkv"):
        torch.testing.assert_close(eviction_scores(factors, recipe), eviction_scores(scores, recipe))


def test_rejects_wrong_arguments():
    weights = sample()[-1]
    for arguments, error, message in (
        ({"weights": weights.dense()}, TypeError, "weights is a Tensor; expected AttentionWeights"),
        ({"recipe": "tova"}, ValueError, "recipe is 'tova'; expected 'h2o' or 'snapkv'"),
        ({"recipe": "snapkv", "window": 0}, ValueError, "window is 0; expected a whole number of at least 1"),
        ({"recipe": "snapkv", "kernel": 6}, ValueError, "kernel is 6; expected an odd number"),
        ({"pooling": "sum"}, ValueError, "pooling is 'sum'; expected 'max' or 'mean'"),
    ):
        with pytest.raises(error, match=message):
            eviction_scores(**{"weights": weights, **arguments})
