"""Tests of addresses of cells, such as key.2:1,1."""

import pytest
import torch

from clearhead import MultiHeadAttention, trace
from clearhead.explain import load
from clearhead.explain.steps import key_head


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (6, 3), (6, 2), (4, 1), (3, 3)])
def test_addresses_of_keys_and_values_count_key_heads(heads, kv_heads):
    traced = trace(MultiHeadAttention(2 * heads, heads, kv_heads=kv_heads), torch.randn(3, 2 * heads))
    for name in ("key", "value"):
        for head in range(kv_heads):
            selected = traced.select_cells([f"{name}.{head + 1}:1,2"])
            assert selected.steps == (traced.step(name, head),)
            assert selected.cells == {(name, head): ((0, 1),)}
    for head in range(heads):  # the option --head counts query heads
        [step] = traced.select_cells(["key:1,1"], [head])
        assert step.head == key_head(head, heads, kv_heads) == head // (heads // kv_heads)
        assert traced.select_cells([f"query.{head + 1}:1,1"]).steps == (traced.step("query", head),)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("key.3:1,1", "key head 3 does not occur; expected 1 to 2, counted from 1"),
        ("value.0:1,1", "key head 0 does not occur; expected 1 to 2, counted from 1"),
        ("query.5:1,1", "head 5 does not occur; expected 1 to 4, counted from 1"),
        ("key:1,1", "once for each of 2 key heads; expected key.1 or key.2 in front of the colon"),
        ("query:1,1", "once for each of 4 heads; expected query.1 or query.2 in front of the colon"),
    ],
)
def test_errors_name_the_heads_that_are_counted(address, message):
    with pytest.raises(ValueError, match=message):
        load("grouped-heads").trace().select_cells([address])


def test_mask_and_masked_scores_can_both_be_selected():
    traced = load("song-causal").trace()
    for addresses in (["mask:1,2", "masked.1:1,2"], ["masked.1:1,2", "mask:1,2"]):
        selected = traced.select_cells(addresses)
        assert [step.name for step in selected] == ["mask", "masked"]
        assert selected.positions == (7, 7)
        assert selected.cells == {("mask", None): ((0, 1),), ("masked", 0): ((0, 1),)}
