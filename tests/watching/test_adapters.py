"""Tests that `watch` observes each way of computing attention, with weights equal to a direct computation."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from clearhead import ALiBi, Causal, MultiHeadAttention, attention, watch
from support.watched_models import HEADS, MODEL_DIM, OwnModel, direct_weights, weights_of_calls


def inputs(batch=2, length=7, dtype=torch.float64):
    return torch.randn(batch, length, MODEL_DIM, dtype=dtype)


class Sdpa(nn.Module):
    def forward(self, *args, **options):
        return functional.scaled_dot_product_attention(*args, **options)


def masks(shape):
    allowed = torch.rand(shape) > 0.3
    allowed[..., 0, :] = False  # a row without keys
    return allowed


@pytest.mark.parametrize("mask", [None, "bool", "float", "keys"])
def test_own_module_with_grouped_heads_and_two_calls(mask):
    model, x = OwnModel().double(), inputs()
    given = {
        None: None, "bool": masks((2, 1, 7, 7)), "float": torch.randn(HEADS, 7, 7, dtype=torch.float64),
        "keys": torch.rand(2, 1, 1, 7) > 0.3,
    }[mask]  # fmt: skip
    expected = weights_of_calls(model, lambda: model(x, given))
    plain = model(x, given)
    with watch(model) as seen:
        output = model(x, given)
    assert torch.equal(output, plain)
    assert list(seen) == ["layers.0", "layers.1"]
    calls = [call for watched in seen.values() for call in watched.calls]
    for call, weights in zip(calls, expected, strict=True):
        torch.testing.assert_close(call.weights.dense(), weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"dropout_p": 0.4}], ids=str)
def test_dtypes_and_options_of_sdpa(dtype, options):
    query, key = torch.randn(2, 3, 9, 16, dtype=dtype), torch.randn(2, 3, 9, 16, dtype=dtype)
    module = Sdpa()
    torch.manual_seed(1)
    plain = module(query, key, key, **options)
    torch.manual_seed(1)
    with watch(module) as seen:
        output = module(query, key, key, **options)
    assert torch.equal(output, plain)
    options = {name: value for name, value in options.items() if name != "dropout_p"}
    expected = direct_weights(query, key, **options)
    torch.testing.assert_close(seen[""].weights.dense().double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(9, 8), (4, 9, 8), (2, 3, 4, 9, 8)], ids=len)
def test_other_numbers_of_axes(shape):
    query, key = torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    mask = masks((*shape[:-2], 9, 9))
    module = Sdpa()
    with watch(module) as seen:
        output = module(query, key, key, mask)
    assert torch.equal(output, module(query, key, key, mask))
    weights = seen[0].weights
    assert weights.shape[1] == (1 if len(shape) < 4 else 4)
    torch.testing.assert_close(weights.dense().view(*shape[:-2], 9, 9), direct_weights(query, key, mask))


@pytest.mark.parametrize("shape", [(3, 1), (1, 4), (2, 1, 1), (4,), ()], ids=str)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_with_fewer_leading_axes(shape, kind):
    query, key = torch.randn(2, 3, 4, 9, 8, dtype=torch.float64), torch.randn(2, 3, 4, 13, 8, dtype=torch.float64)
    mask = masks((*shape, 9, 13)) if kind == "bool" else torch.randn(*shape, 9, 13, dtype=torch.float64)
    module = Sdpa()
    with watch(module) as seen:
        output = module(query, key, key, mask)
    assert torch.equal(output, module(query, key, key, mask))
    torch.testing.assert_close(seen[0].weights.dense().view(2, 3, 4, 9, 13), direct_weights(query, key, mask))


def test_sequences_that_broadcast():
    query, key = torch.randn(3, 2, 5, 8, dtype=torch.float64), torch.randn(1, 2, 5, 8, dtype=torch.float64)
    module = Sdpa()
    with watch(module) as seen:
        module(query, key, key)
    torch.testing.assert_close(seen[0].weights.dense(), direct_weights(query, key))


@pytest.mark.parametrize("lower_right", [True, False])
def test_causal_bias_of_torch(lower_right):
    query, key = torch.randn(1, 2, 3, 8, dtype=torch.float64), torch.randn(1, 2, 7, 8, dtype=torch.float64)
    bias = causal_lower_right(3, 7) if lower_right else causal_upper_left(3, 7)
    module = Sdpa()
    with watch(module) as seen:
        output = module(query, key, key, bias)
    assert torch.equal(output, module(query, key, key, bias))
    (call,) = seen[0].calls
    allowed = torch.ones(3, 7, dtype=torch.bool).tril(4 if lower_right else 0)
    torch.testing.assert_close(call.weights.dense(), direct_weights(query, key, allowed))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_by_name():
    module = Sdpa()
    lengths = [torch.randn(length, 2, 8) for length in (3, 5)]
    nested = torch.nested.nested_tensor(lengths, layout=torch.jagged).transpose(1, 2)
    with (
        pytest.raises(
            ValueError, match="watch observed no attention of Sdpa: query is a nested tensor, which is not observed"
        ),
        watch(module),
    ):
        module(nested, nested, nested)


def test_autocast_rounds_queries_and_keys_as_torch_does():
    query = torch.randn(1, 2, 9, 16)
    module = Sdpa()
    with torch.autocast("cpu", torch.bfloat16), watch(module) as seen:
        output = module(query, query, query)
        assert torch.equal(output, module(query, query, query))
    rounded = query.bfloat16()
    weights = seen[0].calls[0].weights.dense().double()
    torch.testing.assert_close(weights, direct_weights(rounded, rounded), rtol=1e-5, atol=1e-6)


def encoder(norm_first, nested):
    layer = nn.TransformerEncoderLayer(MODEL_DIM, HEADS, 64, batch_first=True, norm_first=norm_first, dropout=0.0)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).double().eval()


@pytest.mark.filterwarnings("ignore:.*nested tensor.*")
@pytest.mark.parametrize("mask", [None, "padding", "causal", "both"])
@pytest.mark.parametrize(("norm_first", "nested"), [(True, False), (False, False), (False, True)])
def test_encoder_on_and_off_its_fast_path(norm_first, nested, mask):
    model, x = encoder(norm_first, nested), inputs()
    padding = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    causal = torch.ones(7, 7, dtype=torch.bool).triu(1)
    options = {
        None: {}, "padding": {"src_key_padding_mask": padding}, "causal": {"mask": causal},
        "both": {"src_key_padding_mask": padding, "mask": causal},
    }[mask]  # fmt: skip
    expected = weights_of_calls(model, lambda: model(x, **options))  # with gradients: off the fast path
    for fast in (True, False):
        with torch.set_grad_enabled(not fast):
            plain = model(x, **options)
            with watch(model) as seen:
                output = model(x, **options)
        assert torch.equal(output, plain)
        assert list(seen) == ["layers.0.self_attn", "layers.1.self_attn"]
        for watched, weights in zip(seen.values(), expected, strict=True):
            got = watched.weights.dense()
            rows = ~padding if mask in ("padding", "both") else torch.ones(2, 7, dtype=torch.bool)
            torch.testing.assert_close(got.transpose(1, 2)[rows], weights.transpose(1, 2)[rows])


def test_the_fast_path_stays_in_use():
    """A hook or a torch function mode would switch it off."""
    model, x = encoder(False, False), inputs()
    with torch.no_grad(), watch(model), torch.profiler.profile() as profile:
        model(x)
    names = [event.key for event in profile.key_averages()]
    assert "aten::_transformer_encoder_layer_fwd" in names


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("options", [{}, {"add_zero_attn": True}, {"add_bias_kv": True}, {"kdim": 16}], ids=str)
def test_multihead_attention_with_and_without_weights(batch_first, need_weights, options):
    layer = nn.MultiheadAttention(MODEL_DIM, HEADS, batch_first=batch_first, dropout=0.2, **options).double()
    x = inputs()
    keys = torch.randn(2, 5, options.get("kdim", MODEL_DIM), dtype=torch.float64)
    values = inputs(length=5)
    padding = torch.tensor([[False] * 5, [False] * 4 + [True]])
    arguments = [tensor if batch_first else tensor.transpose(0, 1) for tensor in (x, keys, values)]

    def run(need_weights):
        torch.manual_seed(3)
        return layer(*arguments, key_padding_mask=padding, need_weights=need_weights, average_attn_weights=False)

    plain = run(need_weights)
    with watch(layer) as seen:
        output = run(need_weights)
    assert torch.equal(output[0], plain[0])
    layer.eval()  # torch returns the weights after dropout
    torch.testing.assert_close(seen[""].weights.dense(), run(True)[1].detach())


@pytest.mark.parametrize("need_weights", [True, False])
def test_fast_path_of_multihead_attention(need_weights):
    layer, x = nn.MultiheadAttention(MODEL_DIM, HEADS, batch_first=True).double().eval(), inputs()
    with torch.no_grad():
        plain = layer(x, x, x, need_weights=need_weights)
        with watch(layer) as seen:
            output = layer(x, x, x, need_weights=need_weights)
    assert torch.equal(output[0], plain[0])
    _, weights = layer(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(seen[""].weights.dense(), weights.detach())


def test_is_causal_hint_does_not_replace_the_mask_with_need_weights():
    layer, x = nn.MultiheadAttention(MODEL_DIM, HEADS, batch_first=True).double(), inputs()
    band = torch.ones(7, 7, dtype=torch.bool).tril(2).logical_not()
    with watch(layer) as seen:
        _, weights = layer(x, x, x, attn_mask=band, is_causal=True, average_attn_weights=False)
        layer(x, x, x, attn_mask=band, is_causal=True, need_weights=False)  # torch then takes the hint
    first, second = (call.weights.dense() for call in seen[""].calls)
    torch.testing.assert_close(first, weights.detach())
    assert second.triu(1).abs().sum() == 0


def test_transformer_with_decoder_and_cross_attention():
    model = nn.Transformer(MODEL_DIM, HEADS, 1, 1, 64, batch_first=True, dropout=0.0).double()
    source, target = inputs(length=5), inputs(length=7)
    causal = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    expected = weights_of_calls(model, lambda: model(source, target, tgt_mask=causal))
    with watch(model) as seen:
        model(source, target, tgt_mask=causal)
    assert [name.split(".", 1)[1] for name in seen] == [
        "layers.0.self_attn", "layers.0.self_attn", "layers.0.multihead_attn",
    ]  # fmt: skip
    for watched, weights in zip(seen.values(), expected, strict=True):
        torch.testing.assert_close(watched.weights.dense(), weights)


class Flex(nn.Module):
    def __init__(self, score_mod=None, mask_mod=None):
        super().__init__()
        self.score_mod, self.mask_mod = score_mod, mask_mod

    def forward(self, query, key):
        size = (query.shape[2], key.shape[2])
        mask = None if self.mask_mod is None else create_block_mask(self.mask_mod, None, None, *size, device="cpu")
        return flex_attention(query, key, key, self.score_mod, mask, enable_gqa=True)


@pytest.mark.filterwarnings("ignore")  # torch advises to compile flex_attention
@pytest.mark.parametrize(
    ("score_mod", "mask_mod"),
    [
        (None, None),
        (None, lambda b, h, q, k: q >= k),
        (lambda s, b, h, q, k: s - (q - k).abs() * (h + 1) * 0.1, None),
        (lambda s, b, h, q, k: 5 * torch.tanh(s / 5) + b, lambda b, h, q, k: q - k < 3),
    ],
)
def test_flex_attention(score_mod, mask_mod):
    module = Flex(score_mod, mask_mod)
    query, key = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8)
    with watch(module) as seen:
        output = module(query, key)
    assert torch.equal(output, module(query, key))
    weights = seen[""].weights
    torch.testing.assert_close(weights.dense().sum(dim=-1), torch.ones(2, 4, 6))
    torch.testing.assert_close(weights @ key.repeat_interleave(2, dim=1), output)


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
def test_flex_attention_that_is_too_large_is_refused_by_name(monkeypatch):
    def relative_bias(score, batch, head, query, key):
        return score + query - key

    monkeypatch.setattr("clearhead.watching.flex.MAX_CELLS", 100)
    module, x = Flex(relative_bias), torch.randn(1, 2, 16, 8)
    message = "watch observed no attention of Flex: flex_attention: .*relative_bias is not evaluated for 512 cells"
    with pytest.raises(ValueError, match=message), watch(module):
        module(x, x)


def test_layers_and_operator_of_clearhead():
    layer = MultiHeadAttention(MODEL_DIM, HEADS).double()

    class Operator(nn.Module):
        def forward(self, x):
            return attention(x, x, x, mask=Causal(), bias=ALiBi(torch.tensor([0.5, 0.2])), softcap=3.0)

    operator = Operator()
    x, q = inputs(), torch.randn(1, 2, 5, 8, dtype=torch.float64)
    for module, argument in ((layer, x), (operator, q)):
        plain = module(argument)
        with watch(module) as seen:
            output = module(argument)
        assert torch.equal(output, plain)
        (call,) = seen[0].calls
        torch.testing.assert_close(call.weights.dense().sum(dim=-1), torch.ones(call.weights.shape[:3]).double())
    _, weights = layer(x, return_weights=True)
    with watch(layer) as seen:
        layer(x)
    torch.testing.assert_close(seen[0].weights.dense(), weights.dense().detach())


def test_functions_that_modules_hold_by_reference():
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = functional.scaled_dot_product_attention

        def forward(self, x):
            return self.attend(x, x, x)

    module, x = Holder(), torch.randn(1, 2, 5, 8)
    with watch(module) as seen:
        module(x)
    assert len(seen[""].calls) == 1
    assert module.attend is functional.scaled_dot_product_attention
