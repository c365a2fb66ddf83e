"""Tests of context parallelism: outputs, gradients and statistics match those of one process."""

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
)
from support.ranks import assert_near

LENGTH = 37  # prime, so that no number of ranks divides it
MASKS = {
    "none": lambda: None,
    "causal": Causal,
    "window": lambda: Window(before=5, after=2),
    "padding": lambda: Padding([30, 37]),
    "left padding": lambda: Padding.left([30, 37]) & Causal(),
    "documents": lambda: Causal() & Documents([10, 0, 20, 4], strict=False),  # excludes the last tokens
    "prefix": lambda: Window(before=3) | (Causal() & Prefix(4)),
    "dense": lambda: Dense(torch.rand(2, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)) > 0.4),
    "dense and causal": lambda: Causal() & Dense(torch.arange(LENGTH) % 3 > 0),
}


@given(length=st.integers(0, 200), ranks=st.integers(1, 9))
def test_zigzag_layout_assigns_every_token_to_one_rank(length, ranks):
    layout = ZigzagLayout(length, ranks)
    held = [token for rank in range(ranks) for chunk in layout.chunks(rank) for token in range(length)[chunk]]
    assert sorted(held) == list(range(length))
    counts = [layout.count(rank) for rank in range(ranks)]
    assert max(counts) - min(counts) <= 2
    tensor = torch.randn(2, length, 3)
    shards = [layout.shard(tensor, rank) for rank in range(ranks)]
    assert torch.equal(layout.unshard(shards), tensor)


def test_zigzag_layout_balances_causal_masks():
    for length, ranks in itertools.product((1000, 1003), (2, 3, 8)):
        layout = ZigzagLayout(length, ranks)
        work = [
            sum(token + 1 for chunk in layout.chunks(rank) for token in range(length)[chunk]) for rank in range(ranks)
        ]
        assert max(work) / min(work) < 1.03


def inputs(kv_heads, length=LENGTH):
    torch.manual_seed(0)
    shapes = ((4, 8), (kv_heads, 8), (kv_heads, 5))
    return [torch.randn(2, heads, length, dim) for heads, dim in shapes]


def compare_sequence(mesh, name, kv_heads, options=None):
    options = dict(options or {})
    tensors = [tensor.requires_grad_() for tensor in inputs(kv_heads)]
    group, rank = mesh.get_group(), mesh.get_local_rank()
    layout = ZigzagLayout(LENGTH, mesh.size())
    shards = [layout.shard(tensor.detach(), rank).requires_grad_() for tensor in tensors]
    mask = MASKS[name]()
    learned = {key: value for key, value in options.items() if isinstance(value, torch.Tensor)}
    copies = {key: value.clone().requires_grad_() for key, value in learned.items()}
    learned = {key: value.clone().requires_grad_() for key, value in learned.items()}
    expected, weights = attention(*tensors, mask=mask, return_weights=True, **{**options, **learned})
    output, sharded_weights = context_parallel_attention(
        *shards, layout, mask=mask, group=group, return_weights=True, **{**options, **copies}
    )
    assert_near(output, layout.shard(expected, rank))
    assert sharded_weights.shape == weights.shape
    assert_near(sharded_weights.entropy(), weights.entropy())
    actual, reference = (
        matrix.observe(received=True, distance=True, peak=True, spans={"a": (0, 5), "b": (3, LENGTH)}, top=3)
        for matrix in (sharded_weights, weights)
    )
    assert_near(actual.mass, reference.mass)
    attending = reference.peak > -torch.inf
    assert torch.equal(actual.peak > -torch.inf, attending)
    assert_near(actual.peak[attending], reference.peak[attending])
    assert_near(sharded_weights.mass([(2, 7)]), weights.mass([(2, 7)]))
    assert torch.equal(sharded_weights.peak(), actual.peak)
    assert_near(actual.received, reference.received)
    assert_near(actual.distance, reference.distance, 10)
    assert_near(actual.top.weights, reference.top.weights)
    for reduce in ("mean", "max"):
        assert_near(sharded_weights.pool(7, 5, reduce=reduce), weights.pool(7, 5, reduce=reduce))
    cotangent = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3))
    expected.backward(cotangent)
    output.backward(layout.shard(cotangent, rank))
    for tensor, shard in zip(tensors, shards, strict=True):
        assert_near(shard.grad, layout.shard(tensor.grad, rank), 10)
    for key, value in learned.items():
        assert_near(copies[key].grad, value.grad, 10)


@pytest.mark.parametrize("name", MASKS)
def test_sharded_sequence_matches_one_process(ranks, name):
    ranks.run(3, compare_sequence, name, 2)


@pytest.mark.parametrize(("count", "kv_heads"), [(2, 1), (4, 4), (1, 2)])
def test_numbers_of_ranks_and_key_heads_are_independent(ranks, count, kv_heads):
    ranks.run(count, compare_sequence, "causal", kv_heads)


def test_biases_sinks_and_softcap_match_one_process(ranks):
    bias = torch.randn(1, 4, LENGTH, LENGTH, generator=torch.Generator().manual_seed(2))
    ranks.run(2, compare_sequence, "causal", 2, {"bias": bias, "sinks": torch.randn(4), "softcap": 3.0})
    ranks.run(2, compare_sequence, "causal", 2, {"bias": ALiBi(torch.tensor([0.5, 0.25, 0.1, 0.0])), "scale": 0.3})


def compare_short(mesh, length):
    tensors = inputs(2, length)
    layout, rank = ZigzagLayout(length, mesh.size()), mesh.get_local_rank()
    shards = [layout.shard(tensor, rank) for tensor in tensors]
    output = context_parallel_attention(*shards, layout, mask=Causal(), group=mesh.get_group())
    assert_near(output, layout.shard(attention(*tensors, mask=Causal()), rank))


@pytest.mark.parametrize("length", [1, 2, 5])
def test_text_may_have_fewer_tokens_than_chunks(ranks, length):
    ranks.run(4, compare_short, length)


def compare_decoding(mesh, name, options, q_len):
    query, key, value = inputs(2)
    query = query[:, :, :q_len]
    layout, rank = ZigzagLayout(LENGTH, mesh.size()), mesh.get_local_rank()
    masks = {"causal": Causal(), "window": Window(before=4), "padding": Padding([3, 37]), "empty": Padding([0, 37])}
    mask = masks[name]
    expected, weights = attention(query, key, value, mask=mask, return_weights=True, **options)
    shards = [layout.shard(tensor, rank) for tensor in (key, value)]
    output, lse = sharded_kv_attention(query, *shards, layout, mask=mask, group=mesh.get_group(), **options)
    assert_near(output, expected)
    assert_near(lse, weights.lse)


@pytest.mark.parametrize("name", ["causal", "window", "padding", "empty"])
def test_sharded_kv_decoding_matches_one_process(ranks, name):
    ranks.run(3, compare_decoding, name, {}, 2)


def test_sharded_kv_decoding_with_sinks_bias_and_query_start_matches_one_process(ranks):
    options = {"sinks": torch.randn(4), "bias": ALiBi(torch.tensor([0.5, 0.25, 0.1, 0.0])), "softcap": 4.0}
    ranks.run(4, compare_decoding, "causal", options, 1)
    ranks.run(2, compare_decoding, "empty", {"sinks": torch.randn(4)}, 3)
    ranks.run(2, compare_decoding, "window", {"query_start": 20}, 3)


def refused_sequence(mesh, length, shard_len, ranks_of_layout):
    tensors = [tensor[:, :, :shard_len] for tensor in inputs(2)]
    try:
        context_parallel_attention(*tensors, ZigzagLayout(length, ranks_of_layout), group=mesh.get_group())
    except ValueError as error:
        return str(error)
    return None


def test_rejects_shards_of_wrong_length_with_the_sizes(ranks):
    messages = ranks.run(2, refused_sequence, 20, 9, 2)
    assert messages[1] == (
        "query has 9 tokens, but rank 1 of 2 holds 10 of 20 tokens; expected the result of layout.shard"
    )
    assert "layout is for 3 ranks, but the group has 2" in ranks.run(2, refused_sequence, 20, 9, 3)[0]
    with pytest.raises(ValueError, match="tensor has 5 tokens on axis -2; expected the layout's 6"):
        ZigzagLayout(6, 2).shard(torch.zeros(1, 5, 2), 0)


def refused_options(mesh):
    """Return the errors of invalid calls. Every rank must raise, because otherwise the others wait in a collective."""
    layout, rank = ZigzagLayout(LENGTH, mesh.size()), mesh.get_local_rank()
    query, key, value = (layout.shard(tensor, rank) for tensor in inputs(2))
    rows = context_parallel_attention(query, key, value, layout, group=mesh.get_group(), return_weights=True)[1]
    group = {"group": mesh.get_group()}
    messages = []
    for call in (
        lambda: context_parallel_attention(query, key, value, layout, bias=torch.zeros(LENGTH + 5, LENGTH), **group),
        lambda: context_parallel_attention(query, key, value, layout, bias=torch.zeros(LENGTH - 1, LENGTH), **group),
        lambda: context_parallel_attention(query, key, value.double(), layout, **group),
        lambda: sharded_kv_attention(query, key, value, layout, sinks=torch.zeros(3), **group),
        lambda: sharded_kv_attention(query[0], key, value, layout, **group),
        lambda: rows.pool(0, 2),
        lambda: rows.mass([(0, LENGTH + 1)]),
        lambda: rows.mass(None),
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
            messages.append("no error")
        except (ValueError, TypeError) as error:
            messages.append(str(error))
    return messages


def test_every_rank_rejects_invalid_calls(ranks):
    first, second = ranks.run(2, refused_options)
    expected = (
        "bias is (42, 37); expected a shape that broadcasts to (2, 4, 37, 37)",
        "bias is (36, 37); expected",
        "value is (2, 2, 19, 5) in torch.float64 on cpu, but key",
        "sinks is (3,); expected (4,), one per head",
        "query is (4, 19, 8); expected [batch, heads, q_len, width]",
        "rows is 0",
        f"spans[0] is (0, {LENGTH + 1}); expected an end of at most kv_len = {LENGTH}",
        "spans is None; expected spans of keys",
        "reduce is 'sum'; expected 'mean' or 'max'",
        "layout is 7; expected a ZigzagLayout",
        "statistics is a tensor (3,); expected a statistic",
        "mesh is None; expected the DeviceMesh",
        "layer is a Linear; expected a clearhead.MultiHeadAttention",
        "mesh is a str; expected a DeviceMesh",
        "rank is 9; expected one of 0 to 1",
    )
    for message, part in zip(first, expected, strict=True):
        assert part in message
    assert len(second) == len(first)
    assert "no error" not in second


def check_versions_with_one_different(mesh):
    group = process_group.ProcessGroup(mesh.get_local_rank(), mesh.size())
    process_group.__version__ = "9.9" if group.rank == 3 else "1.0"
    try:
        process_group._check_versions(group)
    except ValueError as error:
        return str(error)
    return None


def test_rejects_ranks_with_different_versions(ranks):
    [message, *others] = ranks.run(4, check_versions_with_one_different)
    assert message.startswith("rank 3 has clearhead 9.9, torch")
    assert "but rank 0 has clearhead 1.0" in message
    assert others == [message] * 3
