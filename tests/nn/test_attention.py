"""Tests of the multi-head layer: every option against the formula in float64, its heads, and rejected input."""

import copy

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

from clearhead import ALiBi, Causal, MultiHeadAttention, Padding, Window
from clearhead.nn import Rotary
from support.layers import OPTIONS, every_option, inputs, make
from support.numerics import assert_matches
from support.peers import assert_agrees, by_module
from support.plain_layer import plain


def causal(layer: MultiHeadAttention, kv_len: int) -> torch.Tensor:
    return Causal().dense(5, kv_len).expand(2, layer.heads, -1, -1)


@every_option
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=["all keys", "causal"])
def test_output_and_weights_match_the_formula(options, dtype, masked):
    layer = make(options, dtype)
    tensors = inputs(layer, dtype)
    allowed = causal(layer, tensors[-1].shape[1]) if masked else None
    output, weights = layer(*tensors, mask=Causal() if masked else None, return_weights=True)
    exact, naive = (
        plain(layer, *(t.double() for t in tensors), allowed=allowed),
        plain(layer, *tensors, allowed=allowed),
    )
    for result in (output, layer(*tensors, mask=Causal() if masked else None)):
        assert_matches(result, exact.output, naive.output, scale=exact.output_terms)
    # weights are float32 exponentials, so their relative error grows with the size of the scores
    assert_matches(weights.dense(), exact.weights, naive.weights.float(), scale=exact.score_terms)


@every_option
def test_gradients_match_the_formula(options):
    layer = make(options)
    tensors = [t.requires_grad_() for t in inputs(layer)]
    cotangent = torch.randn(2, 5, layer.output_dim)

    def gradients(output, layer, tensors, cotangent):
        state = dict(layer.named_parameters())
        grads = torch.autograd.grad(output, [*tensors, *state.values()], cotangent)
        return grads[: len(tensors)], by_module(dict(zip(state, grads[len(tensors) :], strict=True)))

    def by_the_formula(layer, tensors, cotangent):
        state, allowed = dict(layer.named_parameters()), causal(layer, tensors[-1].shape[1])
        return gradients(plain(layer, *tensors, allowed=allowed, state=state).output, layer, tensors, cotangent)

    got = gradients(layer(*tensors, mask=Causal()), layer, tensors, cotangent)
    # weights are exponentials of score - lse, so their relative error grows with the size of the scores
    terms = plain(layer, *tensors).score_terms
    scale = tree_map(lambda gradient: float(gradient.abs().max()) * terms, got)
    assert_agrees(got, by_the_formula, layer, tensors, cotangent, scale=scale)


@every_option
@pytest.mark.parametrize("batch", [0, 2])
def test_no_grad_and_inference_mode_do_not_change_outputs(options, batch):
    layer = make(options)
    tensors = [tensor[:batch] for tensor in inputs(layer)]
    expected = layer(*tensors, mask=Causal())
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(layer(*tensors, mask=Causal()), expected)


def test_default_sizes_are_those_of_the_original_transformer():
    layer = MultiHeadAttention()
    assert (layer.d_model, layer.heads, layer.key_dim, layer.value_dim) == (512, 8, 64, 64)
    assert {name: tuple(p.shape) for name, p in layer.named_parameters() if p.ndim == 2} == {
        f"{name}.weight": (512, 512) for name in ("query", "key", "value", "output")
    }
    assert sum(p.numel() for p in layer.parameters()) == 4 * 512 * 512 + 4 * 512


def test_initialization_is_xavier_uniform_per_slice():
    torch.manual_seed(3)
    layer = MultiHeadAttention(120, 6, sinks=True, qk_norm=True, split="slice")
    bound = (6 / (20 + 20)) ** 0.5  # Xavier bound of one slice
    for projection in (layer.query, layer.key, layer.value):
        assert 0.95 * bound < projection.weight.abs().max() <= bound
        assert (projection.bias == 0).all()
    assert 0.95 * (6 / 240) ** 0.5 < layer.output.weight.abs().max() <= (6 / 240) ** 0.5
    assert (layer.sinks == 0).all()
    assert (layer.query_norm.weight == 1).all()


class TestArguments:
    def test_mask_bias_and_query_start_reach_the_operator(self):
        layer, x = make({}, torch.float64), torch.randn(2, 5, 30, dtype=torch.float64)
        bias = torch.randn(2, 6, 5, 5, dtype=torch.float64)
        allowed = (Window(before=2) & Padding([4, 5])).dense(5, 5, 1).expand(2, 6, -1, -1)
        got = layer(x, mask=Window(before=2) & Padding([4, 5]), bias=bias, query_start=1)
        torch.testing.assert_close(got, plain(layer, x, allowed=allowed, bias=bias).output)
        torch.testing.assert_close(got, layer(x, mask=allowed, bias=bias))

    def test_alibi_matches_a_dense_bias(self):
        layer, x = make({}, torch.float64), torch.randn(2, 5, 30, dtype=torch.float64)
        slopes = torch.rand(6, dtype=torch.float64)
        distance = (torch.arange(5)[:, None] - torch.arange(5)).abs()
        bias = (-slopes[:, None, None] * distance).expand(2, -1, -1, -1)
        torch.testing.assert_close(layer(x, bias=ALiBi(slopes)), plain(layer, x, bias=bias).output)

    @pytest.mark.parametrize("per_sequence", [False, True])
    def test_positions_reach_rope(self, per_sequence):
        layer, x = make({"key_dim": 8, "rope": True}, torch.float64), torch.randn(2, 5, 30, dtype=torch.float64)
        positions = torch.tensor([[0, 1, 0, 1, 2], [7, 3, 9, 100, 4]])
        positions = positions if per_sequence else positions[1]
        exact = plain(layer, x, positions=positions.expand(2, -1)).output
        torch.testing.assert_close(layer(x, positions=positions), exact)

    def test_dropout_acts_only_in_training_and_keeps_the_mean(self):
        layer, x = make({"dropout": 0.4}), torch.randn(2, 5, 30)
        layer.eval()
        assert torch.equal(layer(x), layer(x))
        expected = layer(x)
        layer.train()
        assert not torch.equal(layer(x), layer(x))
        mean = layer(x.repeat(3000, 1, 1)).view(3000, *x.shape).mean(dim=0)
        assert (mean - expected).abs().max() < 0.1 * expected.abs().max()
        _, weights = layer(x, return_weights=True)
        assert torch.allclose(weights.dense().sum(dim=-1), torch.ones(()))

    @pytest.mark.parametrize("options", [{}, {"kv_heads": 2}, {"split": "slice"}], ids=str)
    def test_ablate_removes_the_contribution_of_heads(self, options):
        layer, x = make(options, torch.float64), torch.randn(2, 5, 30, dtype=torch.float64)
        torch.testing.assert_close(layer(x, ablate=[1, 4]), plain(layer, x, without=(1, 4)).output)
        torch.testing.assert_close(layer(x, ablate=0), plain(layer, x, without=(0,)).output)
        assert torch.equal(layer(x, ablate=[]), layer(x))
        assert torch.equal(layer(x, ablate=torch.tensor([4, 1])), layer(x, ablate=[1, 4]))
        assert torch.equal(layer(x, ablate=torch.tensor(4)), layer(x, ablate={4}))
        assert torch.equal(layer(x, ablate=range(6)), layer.output.bias.expand(2, 5, -1))
        assert layer(x, ablate=[1], return_weights=True)[1].shape == (2, 6, 5, 5)

    def test_a_layer_sharded_by_columns_works_unchanged(self):
        """The number of heads is inferred from the projected width: half of the columns are half of the heads."""
        layer, x = make({"kv_heads": 2}, torch.float64), torch.randn(2, 5, 30, dtype=torch.float64)
        shard = copy.deepcopy(layer)
        with torch.no_grad():
            for name, rows in (("query", 15), ("key", 5), ("value", 5)):
                projection = getattr(shard, name)
                projection.weight = nn.Parameter(projection.weight[:rows])
                projection.bias = nn.Parameter(projection.bias[:rows])
            shard.output.weight = nn.Parameter(shard.output.weight[:, :15])
        torch.testing.assert_close(shard(x), layer(x, ablate=[3, 4, 5]))

    def test_refuses_slices_sharded_by_columns(self):
        layer = make({"split": "slice"})
        layer.query.weight = nn.Parameter(layer.query.weight[:15].detach())
        with pytest.raises(ValueError, match="weight has 15 of its 30 rows: slices cannot be sharded by columns"):
            layer(torch.randn(2, 5, 30))


class TestHeads:
    @pytest.mark.parametrize("name", ["defaults", "both", "slices, grouped", "slices of memory", "no bias"])
    def test_contributions_of_single_heads_sum_to_the_output(self, name):
        """Concatenation and W_O equal the sum of the heads' outputs, each times its slice of W_O."""
        layer = make(OPTIONS[name], torch.float64)
        tensors = inputs(layer, torch.float64)
        x, source = tensors[0], tensors[-1]
        total = torch.zeros(()) if layer.output.bias is None else layer.output.bias
        for index in range(layer.heads):
            head = layer.head(index)
            assert head.index == index
            query, key, value = x[..., head.columns], source[..., head.kv_columns], source[..., head.kv_columns]
            query, key, value = query @ head.query_weight, key @ head.key_weight, value @ head.value_weight
            if head.query_bias is not None:
                query, key, value = query + head.query_bias, key + head.key_bias, value + head.value_bias
            weights = torch.softmax(query @ key.mT / layer.key_dim**0.5, dim=-1)
            total = total + weights @ value @ head.output_weight
        torch.testing.assert_close(total, layer(*tensors))

    def test_a_sliced_head_has_matrices_of_the_slice_width(self):
        head = MultiHeadAttention(4, 2, split="slice").head(1)
        assert head.columns == slice(2, 4)
        assert head.query_weight.shape == head.key_weight.shape == head.value_weight.shape == (2, 2)
        assert MultiHeadAttention(4, 2).head(1).query_weight.shape == (4, 2)

    def test_head_weights_are_views(self):
        layer, x = make({}), torch.randn(2, 5, 30)
        original = copy.deepcopy(layer)
        with torch.no_grad():
            layer.head(2).output_weight.zero_()
        assert_agrees(layer(x), lambda layer, x: layer(x, ablate=[2]), original, x)

    @every_option
    def test_drop_heads_matches_ablation(self, options):
        layer = make(options, torch.float64)
        tensors = inputs(layer, torch.float64)
        for dropped in ([0], [1, 2, 5], [3, 4, 5], list(range(1, layer.heads))):
            smaller = layer.drop_heads(dropped)
            assert smaller.heads == layer.heads - len(dropped)
            expected = plain(layer, *tensors, without=tuple(dropped)).output
            torch.testing.assert_close(smaller(*tensors), expected, rtol=1e-10, atol=1e-12)

    def test_key_heads_are_repeated_only_if_groups_become_unequal(self):
        layer = make({"kv_heads": 3})
        assert layer.drop_heads([2, 3]).kv_heads == 2
        assert layer.drop_heads([1, 3, 5]).kv_heads == 3
        assert layer.drop_heads([1]).kv_heads == 5
        grouped = MultiHeadAttention(32, 8, kv_heads=2)
        assert grouped.drop_heads([0, 1]).kv_heads == 3  # groups of 2 and 4 heads: one key head per pair
        assert layer.drop_heads([]).kv_heads == 3

    def test_parametrized_projections_can_be_dropped_and_converted(self):
        layer, x = make({}, torch.float64), torch.randn(2, 5, 30, dtype=torch.float64)
        nn.utils.parametrizations.weight_norm(layer.key)
        torch.testing.assert_close(layer.drop_heads([1])(x), layer(x, ablate=[1]))
        torch.testing.assert_close(layer.to_torch()(x, x, x)[0], layer(x))

    def test_drop_heads_copies_parameters_and_flags(self):
        layer = make({"dropout": 0.1}).eval()
        layer.query.requires_grad_(False)
        smaller = layer.drop_heads([1])
        assert not smaller.training
        assert not smaller.query.weight.requires_grad
        assert smaller.key.weight.requires_grad
        assert smaller.key.weight.is_leaf
        assert smaller.dropout == 0.1
        before = layer(torch.ones(1, 2, 30))
        with torch.no_grad():
            smaller.output.weight.zero_()
        assert torch.equal(layer(torch.ones(1, 2, 30)), before)


@pytest.mark.parametrize("name", ["slices", "slices, grouped", "slices of memory"])
def test_to_projected_keeps_the_outputs_of_sliced_layers(name):
    layer = make(OPTIONS[name], torch.float64)
    tensors = inputs(layer, torch.float64)
    projected = layer.to_projected()
    assert projected.split == "project"
    assert projected.query.weight.shape == (layer.heads * layer.key_dim, 30)
    torch.testing.assert_close(projected(*tensors, mask=Causal()), layer(*tensors, mask=Causal()), rtol=1e-12, atol=0)
    assert torch.equal(projected.to_projected()(*tensors), projected(*tensors))


LAYER = MultiHeadAttention(30, 6)
X = torch.randn(2, 5, 30)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: MultiHeadAttention(30, 7), ValueError, "d_model 30 is not divisible by 7 heads; change one of them"),
        (lambda: MultiHeadAttention(0, 7), ValueError, "d_model is 0; expected a whole number of at least 1"),
        (lambda: MultiHeadAttention(30, 2.0), TypeError, "heads is 2.0; expected a whole number"),
        (lambda: MultiHeadAttention(30, 6, kv_heads=4), ValueError, "kv_heads is 4; expected a divisor of the 6 heads"),
        (lambda: MultiHeadAttention(30, 6, key_dim=0), ValueError, "key_dim is 0; expected a whole number"),
        (
            lambda: MultiHeadAttention(30, 6, rope=True),
            ValueError,
            "pairs of columns, but key_dim is 5; expected",
        ),
        (
            lambda: MultiHeadAttention(30, 6, rope=Rotary(dims=6)),
            ValueError,
            "rope rotates dims=6 columns, but key_dim is 5",
        ),
        (lambda: MultiHeadAttention(30, 6, rope="yes"), TypeError, "rope is 'yes'; expected a Rotary"),
        (lambda: MultiHeadAttention(30, 6, split="cut"), ValueError, "split is 'cut'; expected 'project' or 'slice'"),
        (
            lambda: MultiHeadAttention(30, 7, key_dim=4, split="slice"),
            ValueError,
            "d_model 30 is not divisible by heads 7, as split='slice' requires",
        ),
        (
            lambda: MultiHeadAttention(30, 6, kv_input_dim=13, split="slice"),
            ValueError,
            "kv_input_dim 13 is not divisible by kv_heads 6",
        ),
        (lambda: MultiHeadAttention(30, 6, dropout=1.5), ValueError, "dropout is 1.5; expected a number in [0, 1)"),
        (lambda: MultiHeadAttention(30, 6, softcap=-1), ValueError, "softcap is -1; expected a finite number above 0"),
        (lambda: MultiHeadAttention(30, 6, scale="1"), TypeError, "scale is '1'; expected a finite number"),
        (lambda: LAYER(X[0]), ValueError, "x has shape (5, 30); expected [batch, q_len, 30] (d_model)"),
        (lambda: LAYER(X[..., :7]), ValueError, "x has shape (2, 5, 7); expected [batch, q_len, 30] (d_model)"),
        (lambda: LAYER([1.0]), TypeError, "x is a list; expected [batch, q_len, 30]"),
        (
            lambda: LAYER(X, X[..., :7]),
            ValueError,
            "memory has shape (2, 5, 7); expected [batch, kv_len, 30]",
        ),
        (lambda: LAYER(X, X[:1]), ValueError, "memory has batch 1, but x has 2; expected the same"),
        (
            lambda: MultiHeadAttention(30, 6, kv_input_dim=13)(X),
            ValueError,
            "memory is None, but this layer projects keys from kv_input_dim 13 columns",
        ),
        (
            lambda: MultiHeadAttention(30, 6, key_dim=4, rope=True)(X, X),
            ValueError,
            "memory is given to a layer with rope; expected None",
        ),
        (lambda: LAYER(X, positions=torch.arange(5)), ValueError, "positions is given to a layer without rope"),
        (
            lambda: MultiHeadAttention(30, 6, key_dim=4, rope=True)(X, positions=torch.arange(4)),
            ValueError,
            "positions has shape (4,) in torch.int64; expected an int64 or int32 tensor (5,) or (2, 5)",
        ),
        (
            lambda: MultiHeadAttention(30, 6, key_dim=4, rope=True)(X, positions=[0, 1, 2, 3, 4]),
            TypeError,
            "positions is a list; expected an int64 or int32 tensor",
        ),
        (lambda: LAYER(X, ablate=[6]), ValueError, "ablate has head 6, but there are 6, numbered from 0 to 5"),
        (lambda: LAYER(X, ablate=[-1]), ValueError, "ablate is -1; expected a whole number of at least 0"),
        (lambda: LAYER(X, ablate=torch.tensor([True])), TypeError, "ablate is True; expected a whole number"),
        (lambda: LAYER(X, ablate=torch.tensor([1.7])), TypeError, "ablate is 1.7"),
        (lambda: LAYER.head([1, 2]), TypeError, "index is [1, 2]; expected a whole number"),
        (lambda: LAYER.head(6), ValueError, "index has head 6, but there are 6"),
        (lambda: LAYER.drop_heads(range(6)), ValueError, "heads has all 6 heads of the layer; expected at least"),
        (lambda: LAYER(X, mask=torch.ones(4, 5) > 0), ValueError, "mask does not fit: Dense has shape (1, 1, 4, 5)"),
    ],
)
def test_rejects_invalid_arguments(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
