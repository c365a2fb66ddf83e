"""Tests of `ablate`, and of interventions in every function that computes attention, nested and in threads."""

import threading
from contextlib import nullcontext
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.backends import mha
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

import clearhead
from clearhead.watching import ablate, cut, watch
from support.watched_models import HEADS, KV_HEADS, MODEL_DIM, WIDTH
from support.written_out import (
    BATCH,
    LENGTH,
    in_layer,
    model_and_input,
    plain,
    with_head,
    without_edges,
    written_out,
)

CUT = [(slice(2, None), 0)]


def ablated(scores, value):
    return with_head(plain(scores, value), 3, 0.0)


class TestAblate:
    @pytest.mark.parametrize("selector", [(1, 3), ("layers.1", 3), (np.int64(1), torch.tensor(3))])
    def test_output_of_the_head_is_zero(self, selector):
        model, x = model_and_input()
        whole = model(x)
        with ablate(model, [selector]):
            got = model(x)
        with written_out(in_layer(1, ablated)):
            torch.testing.assert_close(got, model(x))
        assert torch.equal(model(x), whole)

    def test_tensors_and_means(self):
        model, x = model_and_input()
        given = torch.randn(LENGTH, WIDTH, dtype=torch.float64)
        with ablate(model, [(0, 1)], given):
            got = model(x)
        with written_out(in_layer(0, lambda scores, value: with_head(plain(scores, value), 1, given))):
            torch.testing.assert_close(got, model(x))

    def test_means_over_batches(self):
        torch.manual_seed(0)
        model = nn.MultiheadAttention(MODEL_DIM, HEADS, batch_first=True).double()
        first, second = (torch.randn(BATCH, LENGTH, MODEL_DIM, dtype=torch.float64) for _ in range(2))
        outputs = []
        with written_out(lambda index, scores, value: outputs.append(plain(scores, value)) or outputs[-1]):
            for x in (first, second):
                model(x, x, x, need_weights=False)
        mean = torch.cat(outputs)[:, 2].mean(dim=(0, 1))
        with written_out(lambda index, scores, value: with_head(plain(scores, value), 2, mean)):
            expected = model(first, first, first, need_weights=False)[0]
        with ablate(model, [("", 2)], "mean", batches=[(first, first, first), (second, second, second)]):
            got = model(first, first, first, need_weights=False)[0]
        torch.testing.assert_close(got, expected)

    def test_gradients_flow_through_the_rest(self):
        model, x = model_and_input()
        with ablate(model, [(1, 3)]):
            model(x).square().sum().backward()
        got = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        with written_out(in_layer(1, ablated)):
            model(x).square().sum().backward()
        torch.testing.assert_close(got, [parameter.grad for parameter in model.parameters()])


class TestFunctions:
    """Interventions in the other functions that compute attention."""

    def expected(self, model, x, **options):
        def change(index, scores, value):
            return with_head(plain(without_edges(scores, slice(None), slice(2, None), 0), value), 1, 0.0)

        with mock.patch.object(mha, "get_fastpath_enabled", return_value=False), written_out(change):
            return model(x, **options)

    def got(self, model, x, **options):
        with cut(model, CUT), ablate(model, [(layer, 1) for layer in range(self.layers(model))]):
            return model(x, **options)

    def layers(self, model):
        return sum(isinstance(module, nn.MultiheadAttention) for module in model.modules())

    @pytest.mark.parametrize("training", [False, True])
    def test_encoder_layers_on_and_off_their_fast_path(self, training):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(MODEL_DIM, HEADS, 48, dropout=0.0, batch_first=True)
        model = nn.TransformerEncoder(layer, 2).double().train(training)
        x = torch.randn(BATCH, LENGTH, MODEL_DIM, dtype=torch.float64)
        padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
        padding[1, -2:] = True
        with torch.no_grad():
            got = self.got(model, x, src_key_padding_mask=padding)
            expected = self.expected(model, x, src_key_padding_mask=padding)
        torch.testing.assert_close(got[~padding], expected[~padding])
        assert mha.get_fastpath_enabled()

    @pytest.mark.parametrize("average", [True, False])
    def test_weights_of_multihead_attention_are_those_after_cuts(self, average):
        torch.manual_seed(0)
        model = nn.MultiheadAttention(MODEL_DIM, HEADS, batch_first=True).double()
        x = torch.randn(BATCH, LENGTH, MODEL_DIM, dtype=torch.float64)
        with cut(model, CUT):
            output, weights = model(x, x, x, average_attn_weights=average)
        with written_out(
            lambda index, scores, value: plain(without_edges(scores, slice(None), slice(2, None), 0), value)
        ):
            torch.testing.assert_close(output, model(x, x, x, need_weights=False)[0])
        assert weights.shape == ((BATCH, LENGTH, LENGTH) if average else (BATCH, HEADS, LENGTH, LENGTH))
        assert weights[..., 2:, 0].abs().max() == 0
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))

    @pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
    @pytest.mark.parametrize("kind", ["clearhead", "clearhead with weights", "flex"])
    def test_other_operators(self, kind):
        torch.manual_seed(0)

        class Layer(nn.Module):
            def forward(self, query, key, value):
                if kind == "flex":
                    return flex_attention(query, key, value, enable_gqa=True)
                output = clearhead.attention(query, key, value, return_weights=kind.endswith("weights"))
                return output[0] if isinstance(output, tuple) else output

        query = torch.randn(BATCH, HEADS, LENGTH, WIDTH, dtype=torch.float64)
        key, value = (torch.randn(BATCH, KV_HEADS, LENGTH, WIDTH, dtype=torch.float64) for _ in range(2))
        model = Layer()
        with cut(model, CUT), ablate(model, [("", 1)]):
            got = model(query, key, value)
        scores = query @ key.repeat_interleave(2, dim=1).mT * WIDTH**-0.5
        output = plain(without_edges(scores, slice(None), slice(2, None), 0), value.repeat_interleave(2, dim=1))
        torch.testing.assert_close(got, with_head(output, 1, 0.0))

    def test_inputs_without_an_axis_of_heads(self):
        class Layer(nn.Module):
            def forward(self, x):
                return nn.functional.scaled_dot_product_attention(x, x, x)

        x, model = torch.randn(3, LENGTH, WIDTH, dtype=torch.float64), Layer()
        with ablate(model, [(0, 0)]):
            assert model(x).shape == x.shape
            assert model(x).abs().max() == 0
        assert model(x).abs().max() > 0


class TestBlocks:
    def test_order_of_blocks_does_not_matter(self):
        model, x = model_and_input()
        with ablate(model, [(1, 3)]), cut(model, [(-1, 3)]):
            inner = model(x)
        with cut(model, [(-1, 3)]), ablate(model, [(1, 3)]):
            outer = model(x)
        assert torch.equal(inner, outer)

    def test_everything_is_restored_after_an_exception(self):
        model, x = model_and_input()
        whole, function = model(x), nn.functional.scaled_dot_product_attention
        with pytest.raises(RuntimeError, match="stop"), ablate(model, [(0, 0)]), cut(model, [(0, 0)]):
            raise RuntimeError("stop")
        assert nn.functional.scaled_dot_product_attention is function
        assert torch.equal(model(x), whole)

    def test_threads_with_blocks_of_their_own(self):
        model, x = model_and_input()
        expected = {}
        for head in range(HEADS):
            with torch.no_grad(), ablate(model, [(1, head)]):
                expected[head] = model(x)
        got, barrier = {}, threading.Barrier(HEADS)

        def work(head):
            with torch.no_grad(), ablate(model, [(1, head)]):
                barrier.wait()
                for _ in range(5):
                    got[head] = model(x)
                barrier.wait()

        threads = [threading.Thread(target=work, args=(head,)) for head in range(HEADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got.keys() == expected.keys()
        assert all(torch.equal(got[head], expected[head]) for head in range(HEADS))

    def test_gradient_checkpointing_runs_the_same_intervention(self):
        model, x = model_and_input()
        x.requires_grad_()
        gradients = []
        for run in (model, lambda x: checkpoint(model, x, use_reentrant=False)):
            with ablate(model, [(0, 1)]), cut(model, {(1, 2): [(-1, 0)]}):
                (gradient,) = torch.autograd.grad(run(x).square().sum(), x)
            gradients.append(gradient)
        assert torch.equal(*gradients)

    @pytest.mark.parametrize("length", [LENGTH, 300])  # torch saves the outputs of long calls for the backward pass
    def test_gradients_of_nested_blocks(self, length):
        model, _ = model_and_input()
        x = torch.randn(1, length, MODEL_DIM, dtype=torch.float64)

        def change(index, scores, value):
            output = plain(without_edges(scores, slice(None), -1, 3), value)
            return with_head(output, 1, 0.0) if index >= 2 else output

        gradients = []
        for run in (lambda: cut(model, [(-1, 3)]), lambda: written_out(change)):
            with run(), ablate(model, [(1, 1)]) if not gradients else nullcontext():
                loss = model(x).square().sum()
            gradients.append(torch.autograd.grad(loss, list(model.parameters())))
        torch.testing.assert_close(*gradients)

    def test_means_do_not_depend_on_other_blocks(self):
        model, x = model_and_input()
        edges, longer = torch.rand(LENGTH, LENGTH) < 0.3, torch.randn(1, 11, MODEL_DIM, dtype=torch.float64)
        outputs = []
        for outer, inner in ((0, 1), (1, 0)):
            blocks = (
                lambda: cut(model, edges),
                lambda: ablate(model, [(0, 1)], "mean", batches=[longer]),
            )
            with watch(model) as seen, blocks[outer](), blocks[inner]():
                outputs.append(model(x))
            assert len(seen[0].calls) == 2  # of OwnAttention, in one pass
        assert torch.equal(*outputs)

    def test_a_watched_ablation_keeps_the_pattern(self):
        model, x = model_and_input()
        with watch(model) as whole:
            model(x)
        with ablate(model, [(0, 1)]), watch(model) as seen:
            model(x)
        torch.testing.assert_close(seen[0].calls[0].weights.dense(), whole[0].calls[0].weights.dense())

    def test_models_without_attention_that_can_be_changed(self):
        model = nn.Sequential(nn.Linear(3, 3))
        with (
            pytest.raises(ValueError, match="ablate found no attention of Sequential: no call of"),
            ablate(model, [(0, 0)]),
        ):
            model(torch.zeros(1, 3))
        with ablate(model, [(0, 0)]):
            pass  # nothing ran

    def test_compiled_models_are_refused(self):
        model, x = model_and_input()
        compiled = torch.compile(model)
        with pytest.raises(ValueError, match="ablate: the model is compiled"), ablate(compiled, [(0, 0)]):
            compiled(x)

    def test_rejects_wrong_arguments(self):
        model, _ = model_and_input()
        for arguments, error, message in (
            (([(0, 0)], "median"), ValueError, "value is 'median'; expected 'zero', 'mean' or a tensor"),
            (([(0, 0)], "mean"), ValueError, "batches is None; expected a list of at least one batch"),
            ((3,), ValueError, r"heads contains 3; expected \(layer, head\)"),
            (([(True, 1)],), ValueError, r"heads contains \(True, 1\)"),
            (([(0, "x")],), ValueError, r"heads contains \(0, 'x'\); expected \(layer, head\)"),
            (([("layers.9", 1)],), ValueError, "the model has no module 'layers.9'"),
        ):
            with pytest.raises(error, match=message):
                ablate(model, *arguments).__enter__()
        with pytest.raises(ValueError, match="expected batches only for means"):
            ablate(model, [(0, 0)], batches=[]).__enter__()
        with pytest.raises(TypeError, match="model is 3; expected a torch.nn.Module"):
            ablate(3, [(0, 0)]).__enter__()
