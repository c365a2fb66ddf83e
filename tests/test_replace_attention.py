"""Tests of `replace_attention`: models keep their outputs, and torch's encoder calls the replaced module."""

import copy

import pytest
import torch
from torch import nn

from clearhead.torch_compat import MultiheadAttention, replace_attention
from support.peers import assert_agrees
from support.torch_layers import BATCH, HEADS, KEYS


class TestReplaceAttention:
    @pytest.fixture
    def calls(self, monkeypatch):
        """List with one entry per call of the forward method of clearhead's layer."""
        calls = []
        forward = MultiheadAttention.forward
        monkeypatch.setattr(MultiheadAttention, "forward", lambda *a, **k: calls.append(1) or forward(*a, **k))
        return calls

    @pytest.mark.parametrize("norm_first", [False, True])
    @pytest.mark.parametrize("training", [False, True])
    @pytest.mark.parametrize("recording", [False, True])
    @pytest.mark.parametrize("padded", [False, True])
    @pytest.mark.parametrize("masked", [False, True])
    @pytest.mark.filterwarnings("ignore:enable_nested_tensor is True", "ignore:The PyTorch API of nested tensors")
    def test_encoder_keeps_its_outputs(self, norm_first, training, recording, padded, masked, calls):
        layer = nn.TransformerEncoderLayer(8, HEADS, 16, dropout=0.0, batch_first=True, norm_first=norm_first)
        model = nn.TransformerEncoder(layer, 3).train(training)
        replaced = replace_attention(copy.deepcopy(model))
        x = torch.randn(BATCH, KEYS, 8)
        mask = nn.Transformer.generate_square_subsequent_mask(KEYS) if masked else None
        hidden = torch.arange(KEYS) >= torch.tensor([[4], [7], [2]]) if padded else None
        hidden = torch.zeros(BATCH, KEYS).masked_fill(hidden, -torch.inf) if padded and masked else hidden

        def encoded(model, x, mask, hidden):
            with torch.set_grad_enabled(recording):
                return model(x, mask=mask, src_key_padding_mask=hidden)

        got = encoded(replaced, x, mask, hidden)
        assert len(calls) == 3
        assert_agrees(got, encoded, model, x, mask, hidden)
        assert len(calls) == 3

    @pytest.mark.parametrize("training", [False, True])
    @pytest.mark.parametrize("batch_first", [False, True])
    @pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
    def test_encoder_decoder_keeps_its_outputs(self, training, batch_first, calls):
        model = nn.Transformer(8, HEADS, 2, 2, 16, dropout=0.0, batch_first=batch_first).train(training)
        replaced = replace_attention(copy.deepcopy(model))
        source, target = torch.randn(2, BATCH, BATCH, 8)
        mask = nn.Transformer.generate_square_subsequent_mask(BATCH)

        def decoded(model, source, target, mask):
            return model(source, target, tgt_mask=mask, tgt_is_causal=True)

        got = decoded(replaced, source, target, mask)
        assert len(calls) == 2 + 2 * 2
        assert_agrees(got, decoded, model, source, target, mask)
        assert type(replaced.decoder.layers[0].multihead_attn) is MultiheadAttention

    def test_parameters_hooks_and_names_are_kept(self):
        model = nn.Sequential(nn.Linear(6, 6), nn.MultiheadAttention(6, HEADS))
        before = dict(model.named_parameters())
        fired = []
        model[1].register_forward_hook(lambda *a: fired.append(1))
        assert replace_attention(model) is model
        after = dict(model.named_parameters())
        assert before.keys() == after.keys()
        assert all(before[name] is after[name] for name in before)
        model[1](*torch.randn(3, 4, 5, 6))
        assert fired == [1]
        replace_attention(model)  # a second call changes nothing
        assert len(model[1]._forward_pre_hooks) == 1

    def test_a_single_layer_can_be_replaced(self):
        module = nn.MultiheadAttention(6, HEADS)
        replace_attention(module)
        assert type(module) is MultiheadAttention

    @pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
    def test_encoder_built_from_a_replaced_layer_calls_it(self, calls):
        layer = nn.TransformerEncoderLayer(8, HEADS, 16, batch_first=True)
        replace_attention(layer)
        model = nn.TransformerEncoder(layer, 2).eval()
        with torch.no_grad():
            model(torch.randn(BATCH, KEYS, 8))
        assert len(calls) == 2

    def test_subclasses_are_not_replaced_and_cause_a_warning(self):
        class Subclass(nn.MultiheadAttention):
            pass

        model = nn.ModuleDict({"derived": Subclass(6, HEADS), "plain": nn.MultiheadAttention(6, HEADS)})
        with pytest.warns(UserWarning, match="derived is a Subclass, a subclass of nn.MultiheadAttention"):
            replace_attention(model)
        assert type(model["derived"]) is Subclass
        assert type(model["plain"]) is MultiheadAttention

    def test_refuses_a_model_without_attention(self):
        with pytest.raises(ValueError, match="model is a Linear without nn.MultiheadAttention; expected at least one"):
            replace_attention(nn.Linear(2, 2))
