"""Tests of parts, hidden keys, devices and the text form of the lazy matrix."""

import numpy as np
import pytest
import torch

from clearhead import ALiBi, Causal, Dense, Documents, Padding, Prefix, Window, attention
from support.weights import sample


class TestPart:
    @pytest.mark.parametrize("heads", [5, -1, slice(2, 4), [0, 1], [4, 5, 0, 1], [0, 2, 3], [5, 0], slice(None)])
    @pytest.mark.parametrize("batch", [None, 1, [1, 0]])
    @pytest.mark.parametrize(
        "mask", [None, Padding([9, 17]), Dense(torch.rand(2, 6, 13, 17) < 0.7), Documents([[4, 9], [17]]) | Prefix(2)]
    )
    def test_matches_the_selected_heads_and_sequences(self, heads, batch, mask):
        weights = sample(mask=mask)[-1]
        part = weights.part(batch=batch, heads=heads)
        chosen = torch.arange(6)[heads].reshape(-1)
        sequences = torch.arange(2) if batch is None else torch.arange(2)[batch].reshape(-1)
        assert part.shape == (len(sequences), len(chosen), 13, 17)
        torch.testing.assert_close(part.dense(), weights.dense()[sequences][:, chosen])
        torch.testing.assert_close(part.entropy(), weights.entropy()[sequences][:, chosen])
        assert mask is None or repr(mask) in repr(part)

    def test_selects_per_head_and_per_sequence_options(self):
        query, key = torch.randn(2, 6, 13, 3), torch.randn(2, 3, 13, 3)
        for bias in (torch.randn(2, 6, 13, 13), ALiBi(torch.rand(6))):
            _, weights = attention(
                query,
                key,
                key,
                bias=bias,
                sinks=torch.randn(6),
                query_start=torch.tensor([0, 5]),
                mask=Causal(),
                return_weights=True,
            )
            part = weights.part(batch=1, heads=[1, 4])
            torch.testing.assert_close(part.dense()[0], weights.dense()[1, [1, 4]])
            torch.testing.assert_close(part.distance()[0], weights.distance()[1, [1, 4]])

    def test_accepts_indices_of_any_integer_type(self):
        weights = sample()[-1]
        for heads in (torch.tensor([1, 2]), np.array([1, 2]), range(1, 3), [np.int64(1), 2]):
            assert torch.equal(weights.part(heads=heads).lse, weights.lse[:, 1:3])
        assert torch.equal(weights.topk(np.int64(3)).keys, weights.topk(3).keys)

    def test_shares_memory_with_the_matrix(self):
        query, key, *_, weights = sample()
        part = weights.part(heads=slice(2, 4))
        assert part._call.query.data_ptr() == query[:, 2].data_ptr()
        assert part._call.key.data_ptr() == key[:, 1].data_ptr()

    @pytest.mark.parametrize("queries", [slice(3, 7), slice(-2, None), slice(5, 5)])
    @pytest.mark.parametrize("mask", [None, Causal(), Dense(torch.rand(1, 6, 13, 17) < 0.7), Padding([9, 17])])
    def test_sliced_queries_keep_their_positions(self, queries, mask):
        query, key, value, *_ = sample()
        _, weights = attention(query, key, value, mask=mask, bias=ALiBi(torch.rand(6)), return_weights=True)
        part = weights.part(heads=[1, 4], queries=queries)
        torch.testing.assert_close(part.dense(), weights.dense()[:, [1, 4], queries])
        torch.testing.assert_close(part.distance(), weights.distance()[:, [1, 4], queries])
        torch.testing.assert_close(part.diagonal(-1), weights.diagonal(-1)[:, [1, 4], queries])


class TestHiding:
    @pytest.mark.parametrize("keys", [0, [0, 16], slice(3, 9)])
    @pytest.mark.parametrize(
        "mask", [None, Causal(), Padding([9, 17]), Dense(torch.rand(1, 6, 13, 17) < 0.7), Window(3) | Prefix(2)]
    )
    def test_zeroes_only_the_hidden_columns(self, keys, mask):
        weights = sample(mask=mask)[-1]
        expected = weights.dense().clone()
        expected[..., keys] = 0
        hidden = weights.hiding(keys)
        torch.testing.assert_close(hidden.dense(), expected)
        torch.testing.assert_close(hidden.received(), expected.sum(dim=2))
        torch.testing.assert_close(hidden.pool(13, 17, reduce="max"), expected)
        torch.testing.assert_close(hidden.part(heads=2, queries=slice(4, 9)).dense(), expected[:, 2:3, 4:9])

    def test_works_on_a_matrix_that_holds_scores(self):
        query, key = torch.randn(1, 1, 1, 5), torch.randn(1, 1, 3, 5)
        _, weights = attention(query, key, key, return_weights=True)
        assert "holds scores" in repr(weights)
        torch.testing.assert_close(weights.hiding(1).dense()[0, 0, 0, [0, 2]], weights.dense()[0, 0, 0, [0, 2]])
        assert weights.hiding(1).dense()[0, 0, 0, 1] == 0

    def test_carries_no_gradient_and_does_not_renormalize(self):
        query, key = torch.randn(1, 2, 5, 7, requires_grad=True), torch.randn(1, 2, 11, 7)
        _, weights = attention(query, key, key, return_weights=True)
        hidden = weights.hiding(0)
        assert not hidden.dense().requires_grad
        torch.testing.assert_close(hidden.dense()[..., 1:], weights.dense()[..., 1:].detach())


def test_the_smaller_form_is_held():
    """Scores are held if heads · q_len ≤ kv_heads · key_dim, as in decoding."""
    for q_len, form in ((2, "holds scores"), (3, "holds query and key")):
        query, key = torch.randn(1, 4, q_len, 4), torch.randn(1, 2, 1000, 4)  # 4 · q_len against 2 · 4
        _, weights = attention(query, key, key, return_weights=True)
        assert form in repr(weights)


def test_to_moves_the_matrix_to_another_device():
    weights = sample(mask=Dense(torch.rand(13, 17) < 0.5))[-1]
    assert torch.equal(weights.cpu().dense(), weights.dense())
    moved = weights.to("meta")
    assert moved.device.type == "meta"
    assert moved.shape == weights.shape


def test_repr_contains_the_shape_and_the_memory_saved():
    x = torch.randn(1, 2, 1000, 16)
    _, weights = attention(x, x, x, mask=Causal(), return_weights=True)
    assert repr(weights) == (
        "AttentionWeights(1 × 2 heads × 1000 queries × 1000 keys, torch.float32, cpu, mask=Causal(); "
        "holds query and key, 250 KiB; dense 7.63 MiB)"
    )
