"""Tests of the multi-head layer as a torch module: compile, export, copy, state dict, meta device and autocast."""

import copy

import pytest
import torch
from torch import nn

from clearhead import Causal, KVCache, MultiHeadAttention
from support.layers import OPTIONS, every_option, inputs, make
from support.numerics import assert_matches
from support.peers import assert_agrees, by_module
from support.plain_layer import plain


def causal_output(layer, *tensors):
    return layer(*tensors, mask=Causal())


@pytest.fixture
def empty_compile_cache():
    """Empty dynamo cache: these tests compile more layers than dynamo caches per function."""
    torch._dynamo.reset()


@pytest.mark.usefixtures("empty_compile_cache")
class TestAsModule:
    @pytest.mark.slow
    @every_option
    def test_compiled_output_matches_eager(self, options):
        layer = make(options).eval()
        tensors = inputs(layer)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        assert_agrees(compiled(*tensors, mask=Causal()), causal_output, layer, *tensors)

    @pytest.mark.slow
    def test_compiled_weights_and_gradients_match_eager(self):
        layer, x = make(OPTIONS["all"]), torch.randn(2, 5, 30)

        def output_entropy_and_gradients(called, layer, x):
            output, weights = called(x, mask=Causal(), return_weights=True)
            named = dict(layer.named_parameters())
            gradients = torch.autograd.grad(output.sum(), list(named.values()))
            return output, weights.entropy(), by_module(dict(zip(named, gradients, strict=True)))

        got = output_entropy_and_gradients(torch.compile(layer, fullgraph=True), layer, x)
        assert_agrees(got, lambda layer, x: output_entropy_and_gradients(layer, layer, x), layer, x)

    @pytest.mark.parametrize("name", ["defaults", "all", "slices, grouped"])
    def test_exported_program_accepts_any_length(self, name):
        class CausalLayer(nn.Module):
            def __init__(self, layer):
                super().__init__()
                self.layer = layer

            def forward(self, x):
                return self.layer(x, mask=Causal())

        layer = make(OPTIONS[name]).eval()
        length = torch.export.Dim("length", min=2, max=1000)
        x = torch.randn(2, 5, 30)
        program = torch.export.export(CausalLayer(layer), (x,), dynamic_shapes=({1: length},))
        for tensor in (x, torch.randn(2, 11, 30)):
            assert_agrees(program.module()(tensor), causal_output, layer, tensor)

    @every_option
    def test_copies_and_loaded_state_dicts_keep_outputs(self, options, tmp_path):
        layer = make(options)
        tensors = inputs(layer)
        expected = layer(*tensors)
        assert torch.equal(copy.deepcopy(layer)(*tensors), expected)
        torch.save(layer.state_dict(), tmp_path / "layer.pt")
        other = MultiHeadAttention(**layer.options())
        other.load_state_dict(torch.load(tmp_path / "layer.pt", weights_only=True))
        assert torch.equal(other(*tensors), expected)

    def test_state_dict_has_the_documented_keys(self):
        names = {f"{name}.{part}" for name in ("query", "key", "value", "output") for part in ("weight", "bias")}
        assert set(make({}).state_dict()) == set(make({"split": "slice"}).state_dict()) == names
        assert set(make({"rope": True, "key_dim": 4, "bias": False}).state_dict()) == {n for n in names if "w" in n}
        extra = {"query_norm.weight", "key_norm.weight", "sinks"}
        assert set(make({"qk_norm": True, "sinks": True}).state_dict()) == names | extra

    def test_can_be_built_on_the_meta_device(self):
        with torch.device("meta"):
            outside = MultiHeadAttention(30, 6, sinks=True, split="slice")
        inside = MultiHeadAttention(30, 6, sinks=True, split="slice", device="meta")
        for layer in (outside, inside):
            assert all(p.is_meta for p in layer.parameters())
            layer.to_empty(device="cpu").reset_parameters()
            assert layer(torch.randn(2, 5, 30)).isfinite().all()

    @pytest.mark.parametrize("name", ["defaults", "all", "slices, grouped"])
    def test_autocast_output_is_bfloat16(self, name):
        layer, x = make(OPTIONS[name]), torch.randn(2, 5, 30)
        cache = KVCache()
        with torch.autocast("cpu", torch.bfloat16):
            output, weights = layer(x, mask=Causal(), cache=cache, return_weights=True)
        assert output.dtype == torch.bfloat16
        allowed = Causal().dense(5, 5).expand(2, layer.heads, -1, -1)
        exact, naive = (plain(layer, x.to(dtype), allowed=allowed) for dtype in (torch.float64, torch.bfloat16))
        assert_matches(output, exact.output, naive.output, scale=exact.output_terms)
        assert_matches(weights.dense().bfloat16(), exact.weights, naive.weights, scale=exact.score_terms)

    def test_repr_contains_options_that_differ_from_defaults(self):
        assert "MultiHeadAttention(\n  d_model=30, heads=6\n" in repr(make({}))
        printed = repr(make({"kv_heads": 2, "bias": False, "softcap": 3, "rope": True, "key_dim": 4}))
        assert "d_model=30, heads=6, kv_heads=2, key_dim=4, rope=Rotary(" in printed
        assert "softcap=3.0, bias=False" in printed
