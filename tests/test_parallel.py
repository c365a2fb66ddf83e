"""Heads and sequence over ranks: outputs, gradients and statistics are those of one process."""

import copy
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead import ALiBi, Causal, Dense, Documents, MultiHeadAttention, Padding, Prefix, Window, attention
from clearhead.distributed import (
    ZigzagLayout,
    context_parallel_attention,
    gather,
    parallelize_heads,
    process_group,
    sharded_kv_attention,
    tensor_parallel_plan,
)
from clearhead.distributed.cost_model import Cost, LayerShape, context_parallel_cost, tensor_parallel_cost
from clearhead.translation.config import ModelConfig
from clearhead.translation.model import Transformer
from clearhead.translation.sharding import shard_model
from ranks import started

LENGTH = 37  # divided by nothing
MASKS = {
    "none": lambda: None,
    "causal": Causal,
    "window": lambda: Window(before=5, after=2),
    "padding": lambda: Padding([30, 37]),
    "left padding": lambda: Padding.left([30, 37]) & Causal(),
    "documents": lambda: Causal() & Documents([10, 0, 20, 4]),  # the last tokens belong to none
    "prefix": lambda: Window(before=3) | (Causal() & Prefix(4)),
    "dense": lambda: Dense(torch.rand(2, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)) > 0.4),
    "dense and causal": lambda: Causal() & Dense(torch.arange(LENGTH) % 3 > 0),
}


@pytest.fixture(scope="module")
def ranks():
    with started(4) as found:
        yield found


def near(found, expected, scale=1.0):
    torch.testing.assert_close(found, expected, atol=1e-5 * scale, rtol=1e-5)


# -- heads -----------------------------------------------------------------------------------------------------------


def compare_heads(mesh, options, mask, memory):
    torch.manual_seed(0)
    whole = MultiHeadAttention(24, **options)
    for parameter in whole.parameters():  # biases, gains and sinks take part
        parameter.data += 0.1 * torch.randn_like(parameter)
    sharded = MultiHeadAttention(24, **options)
    sharded.load_state_dict(whole.state_dict())
    x = torch.randn(2, 11, 24)
    other = torch.randn(2, 7, 24) if memory else None
    parallelize_heads(sharded, mesh)
    inputs = [(x.clone().requires_grad_(), None if other is None else other.clone().requires_grad_()) for _ in range(2)]
    (expected, weights), (found, own) = (
        layer(*given, mask=mask, return_weights=True) for layer, given in zip((whole, sharded), inputs, strict=True)
    )
    near(found, expected)
    share = whole.heads // mesh.size()
    heads = slice(mesh.get_local_rank() * share, (mesh.get_local_rank() + 1) * share)
    near(own.dense(), weights.dense()[:, heads])
    seen = gather(own.observe(entropy=True, received=True, distance=True, top=3), mesh)
    near(seen.entropy, weights.entropy())
    near(seen.received, weights.received())
    near(seen.distance, weights.distance(), 10)
    near(seen.top.weights, weights.topk(3).weights)
    wanted = torch.randn_like(expected)
    for output in (expected, found):
        output.backward(wanted)
    for one, another in zip(*inputs, strict=True):
        if one is not None:
            near(another.grad, one.grad)
    named = dict(sharded.named_parameters())
    for name, parameter in whole.named_parameters():
        gradient = named[name].grad
        near(gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient, parameter.grad, 10)
    assert sharded.state_dict().keys() == whole.state_dict().keys()


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
def test_sharded_heads_are_the_whole_layer(ranks, count, options):
    ranks.run(count, compare_heads, options, Causal(), False)


def test_cross_attention_over_heads(ranks):
    ranks.run(2, compare_heads, {"heads": 4}, None, True)


def compare_options(mesh):
    """What a call gives head by head is cut to a rank's heads, and what is learned of it gets its whole gradient."""
    torch.manual_seed(0)
    whole = MultiHeadAttention(24, heads=4, kv_heads=2)
    sharded = parallelize_heads(copy.deepcopy(whole), mesh)
    x = torch.randn(2, 11, 24)
    dense = torch.rand(1, 4, 11, 11) > 0.3
    for shape, mask in (((11, 11), None), ((1, 4, 11, 11), Causal() & Dense(dense)), ((4, 1, 11), dense)):
        ours, theirs = torch.randn(shape).requires_grad_(), None
        theirs = ours.detach().clone().requires_grad_()
        expected, found = whole(x, mask=mask, bias=ours), sharded(x, mask=mask, bias=theirs)
        near(found, expected)
        for output in (expected, found):
            output.square().sum().backward()
        near(theirs.grad, ours.grad, 10)
    slopes = ALiBi(torch.tensor([0.5, 0.25, 0.1, 0.0]))
    near(sharded(x, bias=slopes), whole(x, bias=slopes))


def test_options_of_single_heads(ranks):
    ranks.run(2, compare_options)


def compare_steps(mesh):
    """Clipping and AdamW, on the layer and on a copy of the sharded one."""
    torch.manual_seed(0)
    whole = MultiHeadAttention(24, heads=4, kv_heads=2, bias=False, qk_norm=True, sinks=True)
    for parameter in whole.parameters():
        parameter.requires_grad_(False)
    first = parallelize_heads(copy.deepcopy(whole), mesh)
    sharded = copy.deepcopy(first)
    for layer in (whole, sharded):
        layer.requires_grad_(True)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.01)
        for step in range(3):
            x = torch.randn(2, 11, 24, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            layer(x, mask=Causal()).square().sum().backward()
            torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
            optimizer.step()
    named = dict(sharded.named_parameters())
    for name, parameter in whole.named_parameters():
        near(named[name].full_tensor(), parameter.detach(), 30)
    assert not torch.equal(first.query.weight.full_tensor(), whole.query.weight)  # the original stays as it was


@pytest.mark.parametrize("count", [2, 4])
def test_sharded_layers_learn_as_whole_ones(ranks, count):
    ranks.run(count, compare_steps)


def refused_heads(mesh, options):
    try:
        tensor_parallel_plan(MultiHeadAttention(24, **options), mesh)
    except ValueError as error:
        return str(error)
    return None


def test_heads_that_cannot_be_shared_are_refused(ranks):
    assert (
        ranks.run(3, refused_heads, {"heads": 4})
        == ["4 heads cannot be shared equally by 3 ranks; expected a divisor of 4"] * 3
    )
    assert "2 heads cannot be shared equally by 4 ranks" in ranks.run(4, refused_heads, {"heads": 2})[0]
    [said, *_] = ranks.run(4, refused_heads, {"heads": 12, "kv_heads": 6})
    assert "6 key heads cannot be shared equally by 4 ranks, nor 4 ranks by 6 key heads" in said
    assert 'split="slice"; expected a projected one' in ranks.run(2, refused_heads, {"heads": 4, "split": "slice"})[0]


def compare_models(mesh):
    torch.manual_seed(0)
    config = ModelConfig(d_model=16, heads=4, feed_forward=24, encoder_layers=2, decoder_layers=1, dropout=0.0)
    whole = Transformer(config, 31)
    sharded = copy.deepcopy(whole)
    shard_model(sharded, mesh)
    source, target = torch.randint(31, (3, 9)), torch.randint(31, (3, 7))
    lengths = torch.tensor([9, 4, 6])
    expected, found = (model(source, target, lengths) for model in (whole, sharded))
    near(found, expected)
    wanted = torch.randn_like(expected)
    for output in (expected, found):
        output.backward(wanted)
    named = dict(sharded.named_parameters())
    for name, parameter in whole.named_parameters():
        gradient = named[name].grad
        near(gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient, parameter.grad, 10)
    caches = [model.caches() for model in (whole, sharded)]
    memories = [model.encode(source, lengths) for model in (whole, sharded)]
    with torch.no_grad():
        for token in target.unbind(dim=1)[:3]:  # each rank caches its own heads' keys
            one, other = (
                model.decode(token[:, None], memory, caches=cache)
                for model, memory, cache in zip((whole, sharded), memories, caches, strict=True)
            )
            near(other, one)


@pytest.mark.parametrize("count", [2, 4])
def test_a_sharded_transformer_is_the_whole_one(ranks, count):
    ranks.run(count, compare_models)


def refused_model(mesh):
    config = ModelConfig(d_model=12, heads=3, feed_forward=10, encoder_layers=1, decoder_layers=1)
    try:
        shard_model(Transformer(config, 31), mesh)
    except ValueError as error:
        return str(error)
    return None


def test_a_feed_forward_that_cannot_be_shared_is_refused(ranks):
    assert "feed_forward is 10 wide, which 3 ranks cannot share equally" in ranks.run(3, refused_model)[0]


# -- layouts ---------------------------------------------------------------------------------------------------------


@given(length=st.integers(0, 200), ranks=st.integers(1, 9))
def test_every_token_has_one_rank(length, ranks):
    layout = ZigzagLayout(length, ranks)
    held = [token for rank in range(ranks) for piece in layout.chunks(rank) for token in range(length)[piece]]
    assert sorted(held) == list(range(length))
    counts = [layout.count(rank) for rank in range(ranks)]
    assert max(counts) - min(counts) <= 2
    whole = torch.randn(2, length, 3)
    shards = [layout.shard(whole, rank) for rank in range(ranks)]
    assert torch.equal(layout.unshard(shards), whole)


def test_under_a_causal_mask_all_ranks_have_as_much_to_do():
    for length, ranks in itertools.product((1000, 1003), (2, 3, 8)):
        layout = ZigzagLayout(length, ranks)
        work = [
            sum(token + 1 for piece in layout.chunks(rank) for token in range(length)[piece]) for rank in range(ranks)
        ]
        assert max(work) / min(work) < 1.03


# -- the sequence ----------------------------------------------------------------------------------------------------


def inputs(kv_heads, length=LENGTH):
    torch.manual_seed(0)
    shapes = ((4, 8), (kv_heads, 8), (kv_heads, 5))
    return [torch.randn(2, heads, length, dim) for heads, dim in shapes]


def compare_sequence(mesh, name, kv_heads, options=None):
    options = dict(options or {})
    whole = [tensor.requires_grad_() for tensor in inputs(kv_heads)]
    group, rank = mesh.get_group(), mesh.get_local_rank()
    layout = ZigzagLayout(LENGTH, mesh.size())
    own = [layout.shard(tensor.detach(), rank).requires_grad_() for tensor in whole]
    mask = MASKS[name]()
    learned = {key: value for key, value in options.items() if isinstance(value, torch.Tensor)}
    copies = {key: value.clone().requires_grad_() for key, value in learned.items()}
    learned = {key: value.clone().requires_grad_() for key, value in learned.items()}
    expected, weights = attention(*whole, mask=mask, return_weights=True, **{**options, **learned})
    found, parts = context_parallel_attention(
        *own, layout, mask=mask, group=group, return_weights=True, **{**options, **copies}
    )
    near(found, layout.shard(expected, rank))
    assert parts.shape == weights.shape
    near(parts.entropy(), weights.entropy())
    seen, all_seen = (own.observe(received=True, distance=True, top=3) for own in (parts, weights))
    near(seen.received, all_seen.received)
    near(seen.distance, all_seen.distance, 10)
    near(seen.top.weights, all_seen.top.weights)
    for reduce in ("mean", "max"):
        near(parts.pool(7, 5, reduce=reduce), weights.pool(7, 5, reduce=reduce))
    wanted = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3))
    expected.backward(wanted)
    found.backward(layout.shard(wanted, rank))
    for one, another in zip(whole, own, strict=True):
        near(another.grad, layout.shard(one.grad, rank), 10)
    for key, value in learned.items():
        near(copies[key].grad, value.grad, 10)


@pytest.mark.parametrize("name", MASKS)
def test_a_sharded_sequence_is_the_whole_one(ranks, name):
    ranks.run(3, compare_sequence, name, 2)


@pytest.mark.parametrize(("count", "kv_heads"), [(2, 1), (4, 4), (1, 2)])
def test_any_number_of_ranks_and_key_heads(ranks, count, kv_heads):
    ranks.run(count, compare_sequence, "causal", kv_heads)


def test_biases_sinks_and_softcap(ranks):
    bias = torch.randn(1, 4, LENGTH, LENGTH, generator=torch.Generator().manual_seed(2))
    ranks.run(2, compare_sequence, "causal", 2, {"bias": bias, "sinks": torch.randn(4), "softcap": 3.0})
    ranks.run(2, compare_sequence, "causal", 2, {"bias": ALiBi(torch.tensor([0.5, 0.25, 0.1, 0.0])), "scale": 0.3})


def compare_short(mesh, length):
    tensors = inputs(2, length)
    layout, rank = ZigzagLayout(length, mesh.size()), mesh.get_local_rank()
    own = [layout.shard(tensor, rank) for tensor in tensors]
    found = context_parallel_attention(*own, layout, mask=Causal(), group=mesh.get_group())
    near(found, layout.shard(attention(*tensors, mask=Causal()), rank))


@pytest.mark.parametrize("length", [1, 2, 5])
def test_fewer_tokens_than_pieces(ranks, length):
    ranks.run(4, compare_short, length)


def compare_decoding(mesh, name, options, q_len):
    query, key, value = inputs(2)
    query = query[:, :, :q_len]
    layout, rank = ZigzagLayout(LENGTH, mesh.size()), mesh.get_local_rank()
    mask = {"causal": Causal(), "window": Window(before=4), "padding": Padding([3, 37]), "nothing": Padding([0, 37])}[
        name
    ]
    expected, weights = attention(query, key, value, mask=mask, return_weights=True, **options)
    own = [layout.shard(tensor, rank) for tensor in (key, value)]
    found, lse = sharded_kv_attention(query, *own, layout, mask=mask, group=mesh.get_group(), **options)
    near(found, expected)
    near(lse, weights.lse)


@pytest.mark.parametrize("name", ["causal", "window", "padding", "nothing"])
def test_partial_outputs_are_merged(ranks, name):
    ranks.run(3, compare_decoding, name, {}, 2)


def test_partial_outputs_with_everything(ranks):
    options = {"sinks": torch.randn(4), "bias": ALiBi(torch.tensor([0.5, 0.25, 0.1, 0.0])), "softcap": 4.0}
    ranks.run(4, compare_decoding, "causal", options, 1)
    ranks.run(2, compare_decoding, "nothing", {"sinks": torch.randn(4)}, 3)
    ranks.run(2, compare_decoding, "window", {"query_start": 20}, 3)


def refused_sequence(mesh, length, given, ranks_of_layout):
    tensors = [tensor[:, :, :given] for tensor in inputs(2)]
    try:
        context_parallel_attention(*tensors, ZigzagLayout(length, ranks_of_layout), group=mesh.get_group())
    except ValueError as error:
        return str(error)
    return None


def test_what_does_not_fit_is_said_with_its_numbers(ranks):
    said = ranks.run(2, refused_sequence, 20, 9, 2)
    assert said[1] == (
        "query has 9 tokens, but of 20 tokens over 2 ranks rank 1 holds 10; expected what layout.shard gives"
    )
    assert "layout is for 3 ranks, but the group has 2" in ranks.run(2, refused_sequence, 20, 9, 3)[0]
    with pytest.raises(ValueError, match="tensor has 5 tokens on axis -2; expected the layout's 6"):
        ZigzagLayout(6, 2).shard(torch.zeros(1, 5, 2), 0)


def refused_options(mesh):
    """Each on every rank, so that none waits for another."""
    layout, rank = ZigzagLayout(LENGTH, mesh.size()), mesh.get_local_rank()
    query, key, value = (layout.shard(tensor, rank) for tensor in inputs(2))
    rows = context_parallel_attention(query, key, value, layout, group=mesh.get_group(), return_weights=True)[1]
    group = {"group": mesh.get_group()}
    said = []
    for call in (
        lambda: context_parallel_attention(query, key, value, layout, bias=torch.zeros(LENGTH + 5, LENGTH), **group),
        lambda: context_parallel_attention(query, key, value, layout, bias=torch.zeros(LENGTH - 1, LENGTH), **group),
        lambda: context_parallel_attention(query, key, value.double(), layout, **group),
        lambda: sharded_kv_attention(query, key, value, layout, sinks=torch.zeros(3), **group),
        lambda: sharded_kv_attention(query[0], key, value, layout, **group),
        lambda: rows.pool(0, 2),
        lambda: rows.pool(2, 2, reduce="sum"),
        lambda: context_parallel_attention(query, key, value, 7, **group),
        lambda: gather(torch.zeros(3), mesh),
        lambda: gather(torch.zeros(3, 3), None),
        lambda: parallelize_heads(torch.nn.Linear(2, 2), mesh),
        lambda: parallelize_heads(MultiHeadAttention(8, 2), "cpu"),
        lambda: layout.chunks(9),
    ):
        try:
            call()
            said.append("nothing")
        except (ValueError, TypeError) as error:
            said.append(str(error))
    return said


def test_every_rank_says_what_is_wrong(ranks):
    one, other = ranks.run(2, refused_options)
    expected = (
        "bias is (42, 37); expected what broadcasts to (2, 4, 37, 37)",
        "bias is (36, 37); expected",
        "value is (2, 2, 19, 5) in torch.float64 on cpu, but key",
        "sinks is (3,); expected one for each of 4 heads",
        "query is (4, 19, 8); expected [batch, heads, q_len, width]",
        "rows is 0",
        "reduce is 'sum'; expected 'mean' or 'max'",
        "layout is 7; expected a ZigzagLayout",
        "statistics is a tensor (3,); expected a statistic",
        "mesh is None; expected the DeviceMesh",
        "layer is a Linear; expected a clearhead.MultiHeadAttention",
        "mesh is a str; expected a DeviceMesh",
        "rank is 9; expected one of 0 to 1",
    )
    for found, part in zip(one, expected, strict=True):
        assert part in found
    assert len(other) == len(one)
    assert "nothing" not in other


def of_another_version(mesh):
    group = process_group.ProcessGroup(mesh.get_local_rank(), mesh.size())
    process_group.__version__ = "9.9" if group.rank == 3 else "1.0"
    try:
        process_group._check_versions(group)
    except ValueError as error:
        return str(error)
    return None


def test_a_rank_of_another_version_is_named(ranks):
    [said, *others] = ranks.run(4, of_another_version)
    assert said.startswith("rank 3 has clearhead 9.9, torch")
    assert "but rank 0 has clearhead 1.0" in said
    assert others == [said] * 3


# -- what it costs ---------------------------------------------------------------------------------------------------


def test_costs():
    """By hand: 1,000 tokens, 4 heads of 8 that share 2 key heads, d_model 32, numbers of 4 bytes, no mask."""
    shape = LayerShape(1000, 32, 4, 2, 8, itemsize=4, causal=False)
    attention_flops = 4 * 4 * 8 * 1000**2
    projections = 2 * 1000 * 32 * (32 + 16 + 16 + 32)
    assert tensor_parallel_cost(shape, 1) == Cost(attention_flops + projections, 0)
    assert context_parallel_cost(shape, 1) == Cost(attention_flops + projections, 0)
    halves = tensor_parallel_cost(shape, 2)
    assert halves == Cost((attention_flops + projections) / 2, 1000 * 32 * 4)  # half of it sent, half sent back
    shared = tensor_parallel_cost(shape, 4)  # two ranks each compute a key head
    assert shared.flops == attention_flops / 4 + 2 * 1000 * 32 * (8 + 8 + 8 + 8)
    assert context_parallel_cost(shape, 4).bytes_sent == 0.75 * 1000 * (16 + 16) * 4
    assert tensor_parallel_cost(shape, 2, backward=True).bytes_sent == 3 * halves.bytes_sent
    assert context_parallel_cost(shape, 2, backward=True).flops == 2.5 * attention_flops / 2 + projections
    assert LayerShape(10, 1, 1, 1, 1).computed_cells == 55
    assert Cost(6.0, 10.0).seconds(2.0, 5.0) == 5.0
