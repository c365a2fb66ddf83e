"""Tests of attention rollout against products of dense matrices."""

import importlib

import pytest
import torch

from clearhead import Causal, Dense, Padding, Recording, Window, attention
from clearhead.analysis import rollout
from clearhead.analysis.rollout import QUERIES_AT_A_TIME
from clearhead.recording.recording import Stack
from support.crafted_recordings import looking_at, recording, weights_of
from support.numerics import assert_matches
from support.recordings import decoder, tokens, translation

LENGTH, LAYERS = 17, 3
MASKS = {
    "none": lambda: None,
    "causal": Causal,
    "window": lambda: Window(3, 2),
    "right padding": lambda: Padding(torch.tensor([11])),
    "causal with left padding": lambda: Causal() & Padding(torch.tensor([11]), side="left"),
    "dense": lambda: Dense(torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(2)),
}


def recorded(dtype, mask=None, *, sinks=False):
    """Return a recording of grouped heads, with the same numbers in every dtype."""
    generator = torch.Generator().manual_seed(0)
    layers = []
    for _ in range(LAYERS):
        query, key = (2 * torch.randn(1, heads, LENGTH, 5, generator=generator) for heads in (6, 3))
        logits = torch.randn(6, generator=generator).to(dtype) if sinks else None
        query, key = query.to(dtype), key.to(dtype)
        layers.append(attention(query, key, key, mask=mask, sinks=logits, return_weights="keep_qk")[1])
    axis = tokens([f"w{index}" for index in range(LENGTH)])
    return Recording("a model", {"decoder": Stack(tuple(layers), axis, axis)})


def dense_rollout(recording):
    """Multiply the matrices of all layers, with the residual connection."""
    result = None
    for weights in recording["decoder"].layers:
        mean = weights.dense()[0].mean(dim=0)
        layer = 0.5 * mean + 0.5 * torch.eye(LENGTH, dtype=mean.dtype)
        result = layer if result is None else layer @ result
    return result


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_rollout_is_the_product_of_all_layers(name, sinks):
    mask = MASKS[name]()
    exact = dense_rollout(recorded(torch.float64, mask, sinks=sinks))
    torch.testing.assert_close(rollout(recorded(torch.float64, mask, sinks=sinks)), exact)
    single = recorded(torch.float32, mask, sinks=sinks)
    assert_matches(rollout(single), exact, dense_rollout(single))


def test_rows_sum_to_one_without_sinks_and_empty_rows():
    assert torch.allclose(rollout(recorded(torch.float64, Causal())).sum(dim=-1), torch.ones(LENGTH).double())


def test_the_share_of_a_sink_is_lost():
    sums = rollout(recorded(torch.float64, Causal(), sinks=True)).sum(dim=-1)
    assert (sums < 1).all()
    assert (sums > 0.5**LAYERS).all()


def test_a_query_without_keys_keeps_only_the_residual():
    source = recorded(torch.float64, Causal() & Padding(torch.tensor([LENGTH - 1]), side="left"))
    expected = torch.zeros(1, LENGTH, dtype=torch.float64)
    expected[0, 0] = 0.5**LAYERS
    assert torch.equal(rollout(source, 0), expected)


@pytest.mark.parametrize(
    ("queries", "rows"),
    [
        (-1, [-1]),
        (3, [3]),
        (slice(2, 11, 3), [2, 5, 8]),
        ([5, 0, 5, -2], [5, 0, 5, -2]),
        (torch.tensor([1, 4]), [1, 4]),
    ],
)
def test_chosen_queries_are_rows_of_the_whole_rollout(queries, rows):
    source = recorded(torch.float64, Causal())
    torch.testing.assert_close(rollout(source, queries=queries), dense_rollout(source)[rows])


def test_layers_are_multiplied_from_the_last_to_the_first():
    """The last layer moves token 2 to token 1, and the first layer moves token 1 to token 0."""
    first, last = weights_of(looking_at([0, 0, 2])[None]), weights_of(looking_at([0, 1, 1])[None])
    torch.testing.assert_close(rollout(recording(first, last), 2)[0], torch.tensor([0.25, 0.25, 0.5]).double())


def test_more_queries_than_fit_in_one_product():
    length = QUERIES_AT_A_TIME + 3
    source = decoder([f"w{index}" for index in range(length)], layers=1)
    mean = source["decoder"].layers[0].dense()[0].mean(dim=0)
    torch.testing.assert_close(rollout(source), 0.5 * mean + 0.5 * torch.eye(length))


def test_rollout_is_differentiable():
    query = torch.randn(1, 2, 5, 3, dtype=torch.float64, requires_grad=True)
    axis = tokens("abcde")

    def last_row(query):
        weights = attention(query, query, query, mask=Causal(), return_weights="keep_qk")[1]
        return rollout(Recording("a model", {"decoder": Stack((weights, weights), axis, axis)}), -1)

    assert torch.autograd.gradcheck(last_row, (query,), check_undefined_grad=False)


def test_a_stack_is_chosen_by_name():
    source = translation("abc", "de")
    assert rollout(source, stack="encoder").shape == (3, 3)
    assert rollout(source, -1, stack="decoder").shape == (1, 2)
    cross = Recording("a model", {"cross": source["cross"]})
    for options, message in (
        ({}, "stack is None, but the recording has 'encoder', 'decoder'; expected the name of one"),
        ({"stack": "cross"}, "stack is 'cross', which is cross-attention; expected self-attention"),
        ({"stack": "middle"}, "stack is 'middle'; expected one of 'encoder', 'decoder'"),
        ({"recording": cross}, "recording has the stacks 'cross'; expected self-attention"),
    ):
        with pytest.raises(ValueError, match=message):
            rollout(**{"recording": source, **options})


def test_rejects_wrong_recordings_and_queries():
    source = decoder("abcdefg")
    with pytest.raises(TypeError, match="recording is .*; expected a Recording"):
        rollout(source["decoder"])
    for queries, error in ((7, IndexError), ([], ValueError), ("ab", TypeError), (True, TypeError), ([0.5], TypeError)):
        with pytest.raises(error, match="queries is .*; expected an index, a slice or a sequence of indices of 7 tok"):
            rollout(source, queries)


def test_rejects_a_result_above_the_limit(monkeypatch):
    monkeypatch.setattr(importlib.import_module("clearhead.analysis.rollout"), "MAX_CELLS", 20)
    with pytest.raises(ValueError, match="queries has 7 of 7 tokens; expected at most 2"):
        rollout(decoder("abcdefg"))
