"""Tests of `from_torch` and `to_torch`: conversion between clearhead's and torch's layer."""

import pytest
import torch
from torch import nn

from clearhead import MultiHeadAttention
from support.peers import assert_agrees
from support.torch_layers import BATCH, KEYS, OPTIONS, QUERIES, pair


class TestFromAndToTorch:
    @pytest.mark.parametrize("name", ["defaults", "batch_first", "no bias", "kdim"])
    def test_round_trip_keeps_outputs_and_parameters(self, name):
        options = {"kdim": 11, "vdim": 11} if name == "kdim" else OPTIONS[name]
        theirs, _ = pair(options | {"dropout": 0.2})
        theirs.eval().out_proj.weight.requires_grad_(False)
        layer = MultiHeadAttention.from_torch(theirs)
        x, source = torch.randn(BATCH, QUERIES, 6), torch.randn(BATCH, KEYS, theirs.kdim)

        def output(module, x, source):
            if module.batch_first:
                return module(x, source, source)[0]
            return module(*(t.transpose(0, 1) for t in (x, source, source)))[0].transpose(0, 1)

        assert_agrees(layer(x, source), output, theirs, x, source)
        assert not layer.training
        assert layer.dropout == 0.2
        assert not layer.output.weight.requires_grad
        assert layer.query.weight.requires_grad
        back = layer.to_torch()
        assert type(back) is nn.MultiheadAttention
        assert back.batch_first
        assert_agrees(layer(x, source), output, back, x, source)
        for name, tensor in theirs.state_dict().items():
            assert torch.equal(back.state_dict()[name], tensor)

    @pytest.mark.parametrize("options", [{"kv_heads": 2}, {"split": "slice"}, {"kv_heads": 1, "bias": False}], ids=str)
    def test_to_torch_converts_grouped_and_sliced_layers(self, options):
        layer, x = MultiHeadAttention(24, 4, **options), torch.randn(BATCH, QUERIES, 24)
        assert_agrees(layer(x), lambda module, x: module(x, x, x)[0], layer.to_torch(), x)

    @pytest.mark.parametrize(
        ("call", "error", "message"),
        [
            (
                lambda: MultiHeadAttention.from_torch(nn.Linear(2, 2)),
                TypeError,
                "module is a Linear; expected",
            ),
            (
                lambda: MultiHeadAttention.from_torch(nn.MultiheadAttention(6, 2, add_bias_kv=True, kdim=5)),
                ValueError,
                "module has add_bias_kv and kdim 5 and vdim 6 that differ, which MultiHeadAttention does not support",
            ),
            (
                lambda: MultiHeadAttention(6, 2, sinks=True, softcap=3, output_dim=5).to_torch(),
                ValueError,
                "this layer has output_dim 5 ≠ d_model 6 and softcap 3.0 and sinks, which nn.MultiheadAttention",
            ),
            (
                lambda: MultiHeadAttention(6, 2, value_dim=5).to_torch(),
                ValueError,
                "this layer has key_dim 3 and value_dim 5, where d_model / heads is 3",
            ),
        ],
    )
    def test_refuses_layers_without_an_equivalent(self, call, error, message):
        with pytest.raises(error) as caught:
            call()
        assert message in str(caught.value)
