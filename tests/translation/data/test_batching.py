"""Tests of batching: every pair once, the token limit, the seeded order, and the tensors of a batch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.translation.data._batching import TokenIds, batch_indices, collate, pad_rows
from clearhead.translation.tokenizer import END, PAD, START

A = TokenIds([5, 6, 7, END], [11, 12, END])
B = TokenIds([8, END], [13, END])
C = TokenIds([9, 5, 6, END], [14, 15, 16, 17, END])
lengths = st.tuples(st.integers(1, 17), st.integers(1, 17))


def pairs_of(sizes: list[tuple[int, int]]) -> list[TokenIds]:
    return [TokenIds([7] * (source - 1) + [END], [7] * (target - 1) + [END]) for source, target in sizes]


def random_pairs(count: int = 307) -> list[TokenIds]:
    sizes = torch.randint(2, 13, (count, 2)).tolist()
    return pairs_of([(source, source + target // 4) for source, target in sizes])


def tokens_of(pairs: list[TokenIds], batch: list[int]) -> int:
    """Return the number of tokens of a batch, including padding."""
    widest = [max(len(pairs[index][side]) for index in batch) for side in (0, 1)]
    return sum(widest) * len(batch)


@given(st.lists(lengths, max_size=60), st.integers(1, 101), st.none() | st.integers())
def test_every_pair_is_in_one_batch_within_the_token_limit(sizes, tokens, seed):
    pairs = pairs_of(sizes)
    batches = batch_indices(pairs, tokens, seed)
    assert sorted(index for batch in batches for index in batch) == list(range(len(pairs)))
    for batch in batches:
        assert len(batch) == 1 or tokens_of(pairs, batch) <= tokens
        collated = collate([pairs[index] for index in batch])
        assert collated.source.numel() + collated.target.numel() == tokens_of(pairs, batch)


def test_a_pair_over_the_limit_is_a_batch_by_itself():
    pairs = pairs_of([(3, 3), (50, 60), (3, 3)])
    assert sorted(map(sorted, batch_indices(pairs, 20, 0))) == [[0, 2], [1]]


def test_the_seed_determines_the_order():
    pairs = random_pairs()
    first = batch_indices(pairs, 101, (3, 0))
    assert batch_indices(pairs, 101, (3, 0)) == first
    for other in ((3, 1), (4, 0)):
        again = batch_indices(pairs, 101, other)
        assert again != first
        assert sorted(map(sorted, again)) != sorted(map(sorted, first))  # the batches differ, not only their order


def test_with_a_seed_batches_are_not_sorted_by_length():
    """Sorted batches would train on short sentences first in every epoch."""
    pairs = random_pairs()
    sizes = [len(pairs[batch[0]].source) for batch in batch_indices(pairs, 101, 0)]
    assert sizes != sorted(sizes)


def test_without_a_seed_batches_are_sorted_by_length():
    pairs = random_pairs()
    batches = batch_indices(pairs, 101)
    assert batch_indices(pairs, 101) == batches
    sizes = [(len(pairs[index].source), len(pairs[index].target)) for batch in batches for index in batch]
    assert sizes == sorted(sizes)


def test_most_batches_have_one_source_length_and_are_at_least_half_full():
    pairs, tokens = random_pairs(), 211
    batches = batch_indices(pairs, tokens, 0)
    one_length = [len({len(pairs[index].source) for index in batch}) == 1 for batch in batches]
    assert sum(one_length) > 0.7 * len(batches)
    assert sum(tokens_of(pairs, batch) for batch in batches) < 1.1 * sum(len(side) for pair in pairs for side in pair)
    # with few pairs of each length, batches mix lengths: otherwise they would be almost empty
    few = pairs_of([(length, length) for length in range(2, 31)])
    mixed = batch_indices(few, 1000)
    assert len(mixed) == 3
    assert all(tokens_of(few, batch) > 400 for batch in mixed[:-1])


def test_no_pairs_give_no_batches():
    assert batch_indices([], 101, 0) == batch_indices([], 101) == []


class TestCollate:
    def test_collate_pads_and_shifts_tokens(self):
        batch = collate([A, B, C])
        assert batch.source.tolist() == [[5, 6, 7, END], [8, END, PAD, PAD], [9, 5, 6, END]]
        assert batch.lengths.tolist() == [4, 2, 4]
        assert batch.target.tolist() == [
            [START, 11, 12, PAD, PAD],
            [START, 13, PAD, PAD, PAD],
            [START, 14, 15, 16, 17],
        ]
        assert batch.expected.tolist() == [
            [11, 12, END, PAD, PAD],
            [13, END, PAD, PAD, PAD],
            [14, 15, 16, 17, END],
        ]
        assert {tensor.dtype for tensor in batch} == {torch.int64}

    def test_sources_of_one_length_need_no_mask(self):
        assert collate([A, C]).lengths is None
        assert collate([B]).lengths is None

    @given(st.lists(lengths, min_size=1, max_size=11))
    def test_lengths_are_none_only_for_equal_sources_and_targets_are_shifted(self, sizes):
        pairs = pairs_of(sizes)
        batch = collate(pairs)
        assert (batch.lengths is None) == (len({source for source, _ in sizes}) == 1)
        assert batch.target.shape == batch.expected.shape
        for row, pair in enumerate(pairs):
            count = len(pair.target)
            assert batch.target[row, 0] == START
            assert torch.equal(batch.target[row, 1:count], batch.expected[row, : count - 1])
            assert batch.expected[row, :count].tolist() == pair.target
            assert (batch.expected[row, count:] == PAD).all()

    @pytest.mark.parametrize("pairs", [[A, B], [A, C]], ids=["lengths", "no lengths"])
    def test_to_and_map_apply_to_every_tensor(self, pairs):
        batch = collate(pairs)
        doubled = batch.map(lambda tensor: 2 * tensor)
        assert torch.equal(doubled.source, 2 * batch.source)
        assert torch.equal(doubled.expected, 2 * batch.expected)
        assert (doubled.lengths is None) == (batch.lengths is None)
        moved = batch.to(torch.device("meta"))
        assert {tensor.device.type for tensor in moved if tensor is not None} == {"meta"}

    def test_pad_rows_returns_lengths_only_if_they_differ(self):
        rows, sizes = pad_rows([A.source, B.source], torch.device("cpu"))
        assert rows.tolist() == [[5, 6, 7, END], [8, END, PAD, PAD]]
        assert sizes.tolist() == [4, 2]
        rows, sizes = pad_rows([A.source, C.source], torch.device("cpu"))
        assert (rows.shape, sizes) == ((2, 4), None)
