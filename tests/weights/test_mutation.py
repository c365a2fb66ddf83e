"""Tests of the detection of in-place changes of a lazy matrix's inputs."""

import pytest
import torch

from clearhead import ALiBi, Causal, Dense, attention
from support.weights import sample


class TestInPlaceChanges:
    USES = (
        lambda w: w[0, 0, 0],
        lambda w: w.entropy(),
        lambda w: w.pool(2, 2),
        lambda w: w.part(heads=0),
        lambda w: w.diagonal(),
        lambda w: w.dense(),
        lambda w: w.scores[0, 0],
    )

    @pytest.mark.parametrize("which", [0, 1])
    @pytest.mark.parametrize("inference", [False, True])
    def test_in_place_changes_of_query_and_key_are_detected(self, which, inference):
        with torch.inference_mode(inference):
            *tensors, _, _, weights = sample()
            weights.entropy()
            row = tensors[which][0, 0, 0]
            row.copy_(row.flip(0))
            for use in self.USES:
                with pytest.raises(RuntimeError, match=f"{('query', 'key')[which]} was changed in place"):
                    use(weights)

    @pytest.mark.parametrize("inference", [False, True])
    def test_in_place_changes_of_bias_sinks_and_mask_are_detected(self, inference):
        with torch.inference_mode(inference):
            x, allowed = torch.randn(1, 2, 9, 3), torch.ones(9, 9, dtype=torch.bool)
            for name, changed, options in (
                ("bias", bias := torch.zeros(9, 9), {"bias": bias}),
                ("bias", slopes := torch.zeros(2), {"bias": ALiBi(slopes)}),
                ("sinks", sinks := torch.zeros(2), {"sinks": sinks}),
                ("mask", allowed, {"mask": Causal() & Dense(allowed)}),
            ):
                _, weights = attention(x, x, x, **options, return_weights=True)
                changed[0] = 1 - changed[0].float()
                with pytest.raises(RuntimeError, match=f"{name} was changed in place"):
                    weights.entropy()

    def test_in_place_changes_of_query_start_have_no_effect(self):
        x, start = torch.randn(2, 2, 9, 3), torch.tensor([0, 3])
        _, weights = attention(x, x, x, mask=Causal(), query_start=start, return_weights=True)
        before = weights.distance()
        start += 1
        assert torch.equal(weights.distance(), before)

    def test_in_place_changes_of_values_are_allowed(self):
        *_, value, _, weights = sample()
        value.zero_()
        weights.entropy()

    def test_in_place_changes_have_no_effect_on_a_matrix_that_holds_scores(self):
        query, key, *_, weights = sample(q_len=1)
        before = weights.dense()
        query.zero_()
        key.zero_()
        assert torch.equal(weights.dense(), before)
