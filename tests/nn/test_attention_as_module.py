"""The multi-head layer as a torch module: compiled, exported, copied, saved, on the meta device, under autocast."""

import copy

import pytest
import torch
from torch import nn

from clearhead import Causal, KVCache, MultiHeadAttention
from support.layers import OPTIONS, every_option, inputs, make
from support.numerics import assert_matches
from support.peers import assert_agrees, by_module
from support.plain_layer import plain


def causally(layer, *tensors):
    return layer(*tensors, mask=Causal())


@pytest.fixture
def forgetful_compiler():
    """Layers of many kinds are compiled here, more than dynamo keeps of one function."""
    torch._dynamo.reset()


@pytest.mark.usefixtures("forgetful_compiler")
class TestAsAModule:
    @every_option
    def test_compiled(self, options):
        layer = make(options).eval()
        tensors = inputs(layer)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        assert_agrees(compiled(*tensors, mask=Causal()), causally, layer, *tensors)

    def test_compiled_with_weights_gradients_and_the_default_backend(self):
        layer, x = make(OPTIONS["all"]), torch.randn(2, 5, 30)

        def everything(called, layer, x):
            output, weights = called(x, mask=Causal(), return_weights=True)
            named = dict(layer.named_parameters())
            gradients = torch.autograd.grad(output.sum(), list(named.values()))
            return output, weights.entropy(), by_module(dict(zip(named, gradients, strict=True)))

        got = everything(torch.compile(layer, fullgraph=True), layer, x)
        assert_agrees(got, lambda layer, x: everything(layer, layer, x), layer, x)

    @pytest.mark.parametrize("name", ["defaults", "all", "slices, grouped"])
    def test_exported_for_any_length(self, name):
        class Causally(nn.Module):
            def __init__(self, layer):
                super().__init__()
                self.layer = layer

            def forward(self, x):
                return self.layer(x, mask=Causal())

        layer = make(OPTIONS[name]).eval()
        length = torch.export.Dim("length", min=2, max=1000)
        x = torch.randn(2, 5, 30)
        program = torch.export.export(Causally(layer), (x,), dynamic_shapes=({1: length},))
        for tensor in (x, torch.randn(2, 11, 30)):
            assert_agrees(program.module()(tensor), causally, layer, tensor)

    @every_option
    def test_copied_saved_and_loaded(self, options, tmp_path):
        layer = make(options)
        tensors = inputs(layer)
        expected = layer(*tensors)
        assert torch.equal(copy.deepcopy(layer)(*tensors), expected)
        torch.save(layer.state_dict(), tmp_path / "layer.pt")
        other = MultiHeadAttention(**layer.options())
        other.load_state_dict(torch.load(tmp_path / "layer.pt", weights_only=True))
        assert torch.equal(other(*tensors), expected)

    def test_state_dict_keys(self):
        names = {f"{name}.{part}" for name in ("query", "key", "value", "output") for part in ("weight", "bias")}
        assert set(make({}).state_dict()) == set(make({"split": "slice"}).state_dict()) == names
        assert set(make({"rope": True, "key_dim": 4, "bias": False}).state_dict()) == {n for n in names if "w" in n}
        extra = {"query_norm.weight", "key_norm.weight", "sinks"}
        assert set(make({"qk_norm": True, "sinks": True}).state_dict()) == names | extra

    def test_made_on_the_meta_device(self):
        with torch.device("meta"):
            outside = MultiHeadAttention(30, 6, sinks=True, split="slice")
        inside = MultiHeadAttention(30, 6, sinks=True, split="slice", device="meta")
        for layer in (outside, inside):
            assert all(p.is_meta for p in layer.parameters())
            layer.to_empty(device="cpu").reset_parameters()
            assert layer(torch.randn(2, 5, 30)).isfinite().all()

    @pytest.mark.parametrize("name", ["defaults", "all", "slices, grouped"])
    def test_autocast(self, name):
        layer, x = make(OPTIONS[name]), torch.randn(2, 5, 30)
        cache = KVCache()
        with torch.autocast("cpu", torch.bfloat16):
            output, weights = layer(x, mask=Causal(), cache=cache, return_weights=True)
        assert output.dtype == torch.bfloat16
        allowed = Causal().dense(5, 5).expand(2, layer.heads, -1, -1)
        exact, naive = (plain(layer, x.to(dtype), allowed=allowed) for dtype in (torch.float64, torch.bfloat16))
        assert_matches(output, exact.output, naive.output, scale=exact.output_terms)
        assert_matches(weights.dense().bfloat16(), exact.weights, naive.weights, scale=exact.score_terms)

    def test_repr_says_what_is_unusual(self):
        assert "MultiHeadAttention(\n  d_model=30, heads=6\n" in repr(make({}))
        shown = repr(make({"kv_heads": 2, "bias": False, "softcap": 3, "rope": True, "key_dim": 4}))
        assert "d_model=30, heads=6, kv_heads=2, key_dim=4, rope=Rotary(" in shown
        assert "softcap=3.0, bias=False" in shown
