"""Tests of `cut` against attention written out."""

import pytest
import torch
from torch import nn

from clearhead.watching import cut, editing, watch
from support.watched_models import HEADS, MODEL_DIM, OwnModel
from support.written_out import CALLS, LENGTH, model_and_input, plain, without_edges, written_out


@pytest.mark.parametrize(
    ("edges", "heads", "rows", "keys"),
    [
        ([(-1, 3)], slice(None), -1, 3),
        ([(slice(2, 5), [0, 1, 4])], slice(None), torch.arange(2, 5)[:, None], [0, 1, 4]),
        ({(0, 2): [(None, 0)], (1, 2): [(None, 0)]}, 2, slice(None), 0),
        ({0: [([1, 4], None)], "layers.1": [([1, 4], None)]}, slice(None), [1, 4], slice(None)),
    ],
)
def test_removed_edges(edges, heads, rows, keys):
    model, x = model_and_input()

    def change(index, scores, value):
        return plain(without_edges(scores, heads, rows, keys), value)

    with watch(model) as seen, cut(model, edges):
        got = model(x)
    with written_out(change):
        torch.testing.assert_close(got, model(x))
    removed = seen[1].calls[0].weights[:, heads][..., rows, keys]
    assert removed.numel() > 0
    assert removed.abs().max() == 0


def test_bool_tensors():
    model, x = model_and_input()
    edges = torch.rand(LENGTH, LENGTH) < 0.4
    with cut(model, edges):
        got = model(x)
    with written_out(lambda index, scores, value: plain(scores.masked_fill(edges, -torch.inf), value)):
        torch.testing.assert_close(got, model(x))


@pytest.mark.parametrize("selector", [None, (1, 2)])
def test_without_renormalizing_the_other_weights_stay(selector):
    model, x = model_and_input()
    pairs = [(slice(2, None), 1)]
    heads = slice(None) if selector is None else 2

    def change(scores, value):
        weights = scores.softmax(dim=-1).nan_to_num(0.0)
        weights[:, heads, 2:, 1] = 0.0
        return weights @ value

    with watch(model) as seen, cut(model, pairs if selector is None else {selector: pairs}, renormalize=False):
        got = model(x)
        loss = got.square().sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with written_out(lambda index, s, v: change(s, v) if selector is None or index // CALLS == 1 else plain(s, v)):
        expected = model(x)
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(gradients, torch.autograd.grad(expected.square().sum(), list(model.parameters())))
    sums = seen[1].calls[0].weights.sum(-1)[:, heads]
    assert bool((sums[..., 2:] < 1 - 1e-6).all())
    assert bool((sums[..., 0] > 1 - 1e-12).all())


def test_cuts_of_several_blocks_add_up():
    model, x = model_and_input()
    with cut(model, [(3, 0)]), cut(model, {(1, 2): [(3, 1)]}), cut(model, [(4, 0)], renormalize=False):
        got = model(x)

    def change(index, scores, value):
        scores = without_edges(scores, slice(None), 3, 0)
        if index // CALLS == 1:
            scores = without_edges(scores, 2, 3, 1)
        weights = scores.softmax(dim=-1).nan_to_num(0.0)
        weights[..., 4, 0] = 0.0
        return weights @ value

    with written_out(change):
        torch.testing.assert_close(got, model(x))


def test_a_row_without_edges_is_zero():
    model, x = model_and_input()
    with watch(model, values=True) as seen, cut(model, [(2, None)]):
        got = model(x)
    assert got.isfinite().all()
    assert seen[0].calls[0].output[:, :, 2].abs().max() == 0


def test_many_edges_fall_back_to_a_bool_mask():
    torch.manual_seed(0)
    model, x = OwnModel().double(), torch.randn(1, 101, MODEL_DIM, dtype=torch.float64)
    keys = list(range(0, 101, 2))
    with cut(model, [(slice(50, None), keys)]):
        got = model(x)
    rows = torch.arange(50, 101)[:, None]
    with written_out(lambda index, s, v: plain(without_edges(s, slice(None), rows, keys), v)):
        torch.testing.assert_close(got, model(x))


def test_rejects_edges_that_do_not_exist():
    model, x = model_and_input()
    for edges, message in (
        ([(LENGTH, 0)], "queries of edges contains 7, not in any call"),
        ([([0, 1], [0, -LENGTH - 1])], "keys of edges contains -8, not in any call"),
        ([(slice(20, 30), 0)], "'edges' was not applied: its positions, not in any call"),
        (torch.zeros(3, LENGTH, dtype=torch.bool), r"edges has shape \(3, 7\); expected \[q_len = 7, kv_len = 7\]"),
        ({(0, 9): [(0, 0)]}, "head is 9; expected 0 to 3 in layers.0"),
        ({5: [(0, 0)]}, "2 attention modules ran; expected a layer from 0 to 1"),
    ):
        with pytest.raises(ValueError, match=message), cut(model, edges):
            model(x)
    for edges, error, message in (
        ("0", TypeError, "edges is '0'; expected a list of pairs"),
        ([], ValueError, "edges is empty"),
        ([(0, 1, 2)], ValueError, "expected pairs"),
        ([(0.5, 1)], TypeError, "queries of edges is 0.5; expected an index, a slice"),
        (torch.zeros(7, 7), ValueError, "expected a bool tensor"),
        ({"layers.7": [(0, 0)]}, ValueError, "the model has no module 'layers.7'"),
        ({None: [(0, 0)]}, ValueError, "edges contains None; expected a layer, or the name of a module"),
    ):
        with pytest.raises(error, match=message):
            cut(model, edges).__enter__()


def test_a_call_with_one_query_has_row_0():
    torch.manual_seed(0)
    model = nn.MultiheadAttention(MODEL_DIM, HEADS, batch_first=True).double()
    query, keys = (torch.randn(1, length, MODEL_DIM, dtype=torch.float64) for length in (1, LENGTH))
    for _ in range(2):
        with cut(model, [(0, 3)]):
            _, weights = model(query, keys, keys)
        assert weights[0, 0, 3] == 0
        assert weights.count_nonzero() == LENGTH - 1


def test_heads_with_the_same_edges_are_computed_together(monkeypatch):
    model, x = model_and_input()
    shapes = []
    attend = editing._attend
    monkeypatch.setattr(
        editing, "_attend", lambda call, **options: shapes.append(call.shape) or attend(call, **options)
    )
    with cut(model, {(0, head): [(-1, 0)] for head in (0, 2, 3)}):
        model(x)
    assert {shape[1] for shape in shapes} == {3}
    assert len(shapes) == CALLS
