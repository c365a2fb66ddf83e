"""Tests of dropout."""

import torch

from clearhead import Causal, attention
from support.backend_checks import BACKENDS, random_inputs


class TestDropout:
    """Tests of dropout: the same seed drops the same weights on every backend, whatever its tile sizes."""

    def test_backends_agree(self, small_tiles):
        results = []
        for backend in BACKENDS:
            query, key, value = random_inputs(requires_grad=True)
            torch.manual_seed(5)
            output = attention(query, key, value, mask=Causal(), dropout=0.4, backend=backend)
            results.append([output, *torch.autograd.grad(output.square().sum(), (query, key, value))])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other)

    def test_drops_its_share_and_scales_the_rest(self):
        query, value = torch.zeros(1, 8, 64, 4), torch.eye(64).expand(1, 8, 64, 64)
        applied = attention(query, query, value, dropout=0.25)  # equal weights of 1/64, made visible by V = identity
        kept = applied > 0
        assert abs(kept.float().mean() - 0.75) < 0.02  # ± 8 standard deviations of 32,768 draws
        torch.testing.assert_close(applied[kept], torch.full_like(applied[kept], 1 / 64 / 0.75))
        by_row, by_column = kept.float().mean(dim=-1), kept.float().mean(dim=-2)
        assert by_row.std() < 0.09, "rows are correlated"  # √(.25·.75/64) = 0.054
        assert by_column.std() < 0.09, "columns are correlated"

    def test_calls_differ_unless_the_seed_is_the_same(self):
        inputs = random_inputs(torch.float32)
        torch.manual_seed(1)
        first, second = (attention(*inputs, dropout=0.5) for _ in range(2))
        torch.manual_seed(1)
        assert not torch.equal(first, second)
        assert torch.equal(first, attention(*inputs, dropout=0.5))

    def test_returned_weights_are_those_before_dropout(self):
        query, key, value = random_inputs()
        _, weights = attention(query, key, value, dropout=0.5, return_weights=True)
        torch.testing.assert_close(weights.dense().sum(dim=-1), torch.ones(2, 6, 7, dtype=torch.float64))
