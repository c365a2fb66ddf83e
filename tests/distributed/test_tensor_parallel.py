"""Tests of tensor parallelism: outputs, gradients and statistics match those of one process."""

import copy

import pytest
import torch

from clearhead import ALiBi, Causal, Dense, MultiHeadAttention
from clearhead.distributed import gather, parallelize_heads, tensor_parallel_plan
from clearhead.translation.config import ModelConfig
from clearhead.translation.model import Transformer
from clearhead.translation.sharding import shard_model
from support.ranks import assert_near


def compare_heads(mesh, options, mask, memory):
    torch.manual_seed(0)
    layer = MultiHeadAttention(24, **options)
    for parameter in layer.parameters():  # so that biases, gains and sinks differ from their initial values
        parameter.data += 0.1 * torch.randn_like(parameter)
    sharded = MultiHeadAttention(24, **options)
    sharded.load_state_dict(layer.state_dict())
    x = torch.randn(2, 11, 24)
    other = torch.randn(2, 7, 24) if memory else None
    parallelize_heads(sharded, mesh)
    inputs = [(x.clone().requires_grad_(), None if other is None else other.clone().requires_grad_()) for _ in range(2)]
    (expected, weights), (output, local_weights) = (
        module(*tensors, mask=mask, return_weights=True)
        for module, tensors in zip((layer, sharded), inputs, strict=True)
    )
    assert_near(output, expected)
    share = layer.heads // mesh.size()
    heads = slice(mesh.get_local_rank() * share, (mesh.get_local_rank() + 1) * share)
    assert_near(local_weights.dense(), weights.dense()[:, heads])
    local = local_weights.observe(entropy=True, received=True, distance=True, peak=True, spans=[(0, 3), (2, 7)], top=3)
    statistics = gather(local, mesh)
    assert_near(statistics.peak, weights.peak())
    assert_near(statistics.mass, weights.mass([(0, 3), (2, 7)]))
    assert_near(statistics.entropy, weights.entropy())
    assert_near(statistics.received, weights.received())
    assert_near(statistics.distance, weights.distance(), 10)
    assert_near(statistics.top.weights, weights.topk(3).weights)
    cotangent = torch.randn_like(expected)
    for result in (expected, output):
        result.backward(cotangent)
    for tensor, sharded_tensor in zip(*inputs, strict=True):
        if tensor is not None:
            assert_near(sharded_tensor.grad, tensor.grad)
    named = dict(sharded.named_parameters())
    for name, parameter in layer.named_parameters():
        actual = named[name].grad
        assert_near(actual.full_tensor() if hasattr(actual, "full_tensor") else actual, parameter.grad, 10)
    assert sharded.state_dict().keys() == layer.state_dict().keys()


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (2, {"heads": 4}),
        (3, {"heads": 6, "kv_heads": 3, "bias": False}),
        (4, {"heads": 4, "key_dim": 5, "value_dim": 3}),
        (4, {"heads": 8, "kv_heads": 2, "rope": True, "key_dim": 4}),  # more ranks than key heads
        (2, {"heads": 4, "kv_heads": 1, "key_dim": 4}),
        (4, {"heads": 4, "kv_heads": 2, "qk_norm": True, "sinks": True, "softcap": 5.0}),
    ],
)
def test_sharded_heads_match_the_unsharded_layer(ranks, count, options):
    ranks.run(count, compare_heads, options, Causal(), False)


def test_sharded_cross_attention_matches_the_unsharded_layer(ranks):
    ranks.run(2, compare_heads, {"heads": 4}, None, True)


def compare_options(mesh):
    """Check that per-head masks and biases are sliced to a rank's heads, and that a learned bias gets its gradient."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(24, heads=4, kv_heads=2)
    sharded = parallelize_heads(copy.deepcopy(layer), mesh)
    x = torch.randn(2, 11, 24)
    dense = torch.rand(1, 4, 11, 11) > 0.3
    for shape, mask in (((11, 11), None), ((1, 4, 11, 11), Causal() & Dense(dense)), ((4, 1, 11), dense)):
        ours, theirs = torch.randn(shape).requires_grad_(), None
        theirs = ours.detach().clone().requires_grad_()
        expected, output = layer(x, mask=mask, bias=ours), sharded(x, mask=mask, bias=theirs)
        assert_near(output, expected)
        for result in (expected, output):
            result.square().sum().backward()
        assert_near(theirs.grad, ours.grad, 10)
    slopes = ALiBi(torch.tensor([0.5, 0.25, 0.1, 0.0]))
    assert_near(sharded(x, bias=slopes), layer(x, bias=slopes))


def test_per_head_masks_and_biases_match_the_unsharded_layer(ranks):
    ranks.run(2, compare_options)


def compare_steps(mesh):
    """Compare clipped AdamW steps of a layer with those of a copy of the sharded layer."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(24, heads=4, kv_heads=2, bias=False, qk_norm=True, sinks=True)
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    first = parallelize_heads(copy.deepcopy(layer), mesh)
    sharded = copy.deepcopy(first)
    for module in (layer, sharded):
        module.requires_grad_(True)
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
        for step in range(3):
            x = torch.randn(2, 11, 24, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            module(x, mask=Causal()).square().sum().backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
    named = dict(sharded.named_parameters())
    for name, parameter in layer.named_parameters():
        assert_near(named[name].full_tensor(), parameter.detach(), 30)
    assert not torch.equal(first.query.weight.full_tensor(), layer.query.weight)  # the original is unchanged


@pytest.mark.parametrize("count", [2, 4])
def test_optimizer_steps_match_the_unsharded_layer(ranks, count):
    ranks.run(count, compare_steps)


def refused_heads(mesh, options):
    try:
        tensor_parallel_plan(MultiHeadAttention(24, **options), mesh)
    except ValueError as error:
        return str(error)
    return None


def test_refuses_heads_that_ranks_do_not_divide(ranks):
    assert (
        ranks.run(3, refused_heads, {"heads": 4})
        == ["4 heads cannot be divided equally over 3 ranks; expected a divisor of 4"] * 3
    )
    assert "2 heads cannot be divided equally over 4 ranks" in ranks.run(4, refused_heads, {"heads": 2})[0]
    [message, *_] = ranks.run(4, refused_heads, {"heads": 12, "kv_heads": 6})
    assert "6 key heads cannot be divided equally over 4 ranks, nor 4 ranks over 6 key heads" in message
    assert 'split="slice"; expected a projected one' in ranks.run(2, refused_heads, {"heads": 4, "split": "slice"})[0]


def compare_models(mesh):
    torch.manual_seed(0)
    config = ModelConfig(d_model=16, heads=4, feed_forward=24, encoder_layers=2, decoder_layers=1, dropout=0.0)
    model = Transformer(config, 31)
    sharded = copy.deepcopy(model)
    shard_model(sharded, mesh)
    source, target = torch.randint(31, (3, 9)), torch.randint(31, (3, 7))
    lengths = torch.tensor([9, 4, 6])
    expected, output = (module(source, target, lengths) for module in (model, sharded))
    assert_near(output, expected)
    cotangent = torch.randn_like(expected)
    for result in (expected, output):
        result.backward(cotangent)
    named = dict(sharded.named_parameters())
    for name, parameter in model.named_parameters():
        actual = named[name].grad
        assert_near(actual.full_tensor() if hasattr(actual, "full_tensor") else actual, parameter.grad, 10)
    caches = [module.caches() for module in (model, sharded)]
    memories = [module.encode(source, lengths) for module in (model, sharded)]
    with torch.no_grad():
        for token in target.unbind(dim=1)[:3]:  # each rank caches the keys of its heads
            expected_logits, logits = (
                module.decode(token[:, None], memory, caches=cache)
                for module, memory, cache in zip((model, sharded), memories, caches, strict=True)
            )
            assert_near(logits, expected_logits)


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_sharded_transformer_matches_the_unsharded_model(ranks, count):
    ranks.run(count, compare_models)


def refused_model(mesh):
    config = ModelConfig(d_model=12, heads=3, feed_forward=10, encoder_layers=1, decoder_layers=1)
    try:
        shard_model(Transformer(config, 31), mesh)
    except ValueError as error:
        return str(error)
    return None


def test_refuses_a_feed_forward_width_that_ranks_do_not_divide(ranks):
    assert "feed_forward is 10; expected a multiple of the 3 ranks" in ranks.run(3, refused_model)[0]
