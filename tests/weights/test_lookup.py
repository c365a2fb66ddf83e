"""Tests of lists, tensors, bool masks and new axes in indices of the lazy matrices."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead import Causal, Window, attention
from clearhead.weights import cells, lookup
from support.numerics import Case
from support.weights import PROBLEMS, Problem, assert_same, both_forms, sample

MATRICES = {
    "weights": lambda weights: (weights, lambda dense: dense),
    "transpose": lambda weights: (weights.mT, lambda dense: dense.mT),
    "mean over heads": lambda weights: (
        weights.mean_heads(2),
        lambda dense: dense.unflatten(1, (2, -1)).mean(dim=2),
    ),
    "scaled": lambda weights: (
        weights.scaled(torch.arange(5.0).double()),
        lambda dense: dense * torch.arange(5.0).double(),
    ),
}


@st.composite
def lists(draw: st.DrawFn, length: int, points: tuple[int, ...]) -> object:
    """Draw a list of indices in one of its forms, whose shape broadcasts with `points`."""
    shape = [draw(st.sampled_from((1, size))) for size in points][draw(st.integers(0, len(points) - 1)) :]
    values = st.integers(-length, length - 1)
    drawn = draw(st.lists(values, min_size=math.prod(shape), max_size=math.prod(shape)))
    tensor = torch.tensor(drawn, dtype=torch.long).view(shape)
    forms = [tensor, tensor.int(), tensor.numpy(), np.flip(tensor.numpy())]
    nested = tensor.tolist()
    if np.array(nested).shape == tuple(shape):  # a list of no lists does not tell their length
        forms.append(nested)
    return draw(st.sampled_from(forms))


@st.composite
def masks(draw: st.DrawFn, shape: tuple[int, ...], points: tuple[int, ...]) -> object:
    """Draw a bool mask in one of its forms, with as many cells as broadcast with `points`."""
    total = math.prod(shape)
    count = points[-1] if points[-1] <= total and draw(st.booleans()) else 1
    mask = torch.zeros(total, dtype=torch.bool)
    mask[draw(st.lists(st.integers(0, total - 1), min_size=count, max_size=count, unique=True))] = True
    mask = mask.view(shape)
    return draw(st.sampled_from([mask, mask.numpy(), mask.tolist()]))


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple:
    """Draw any index of four axes: items of the first axes, `...`, and items of the last axes."""
    points = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=2)))

    def items(axis: int, end: int) -> list:
        drawn = []
        while axis < end:
            kind = draw(st.sampled_from(["integer", "slice", "list", "list", "mask", "wide mask", "new axis"]))
            length, width = shape[axis], min(2, end - axis) if kind == "wide mask" else 1
            if kind == "new axis":
                drawn.append(None)
                continue
            bounds = st.none() | st.integers(-length - 1, length + 1)
            strategy = {
                "integer": st.integers(-length, length - 1) | st.just(torch.tensor(length - 1)) | st.just(np.int64(0)),
                "slice": st.builds(slice, bounds, bounds, st.none() | st.integers(1, 3)),
                "list": lists(length, points),
                "mask": masks(shape[axis : axis + 1], points),
                "wide mask": masks(shape[axis : axis + width], points),
            }[kind]
            drawn.append(draw(strategy))
            axis += width
        return drawn

    first = draw(st.integers(0, 4))
    last = draw(st.integers(first, 4))
    dots = [...] if last < 4 or draw(st.booleans()) else []
    return (*items(0, first), *dots, *(items(last, 4) if dots else ()))


def for_torch(index: tuple) -> tuple:
    """Return the index with tensors for lists and arrays: torch counts a nested list as one axis next to `...`."""

    def tensor(item: list | np.ndarray) -> torch.Tensor:
        array = np.array(item)
        return torch.from_numpy(array if array.size else array.astype(np.int64))

    return tuple(tensor(item) if isinstance(item, list | np.ndarray) else item for item in index)


@pytest.mark.parametrize("step", [1, 2**16], ids=["scattered", "blocks"])
@settings(max_examples=150)
@given(data=st.data())
def test_any_index_matches_torch(step, data):
    problem = Problem(data.draw(st.sampled_from(sorted(PROBLEMS))))
    weights = problem.weights()
    kinds = [kind for kind in MATRICES if kind != "scaled" or not problem.alibi]
    matrix, of_dense = MATRICES[data.draw(st.sampled_from(kinds))](weights)
    index = data.draw(indices(tuple(matrix.shape)))
    expected = of_dense(problem.dense())[for_torch(index)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup, "CELLS_PER_STEP", step)  # 1: compute large outer selections by heads or cells
        got = matrix[index]
        scores = weights.scores[index] if matrix is weights else None
    assert got.shape == expected.shape
    if expected.numel():
        assert_same(got, expected, problem.leaves)
    if scores is not None:
        torch.testing.assert_close(scores, weights.scores[...][for_torch(index)])


HEADS, ROWS, KEYS = torch.tensor([5, 0, 0, 3]), torch.tensor([12, 0, 7, 1]), torch.tensor([0, 16, 7, 2])


@pytest.mark.parametrize(
    ("index", "blocks"),
    [
        ((slice(None), [0, 3]), [(2, 2, 13, 17)]),
        ((0, [1, 2], slice(None), 5), [(1, 2, 13, 1)]),
        ((slice(None), torch.arange(6) % 4 == 0), [(2, 2, 13, 17)]),
        ((0, slice(None), ROWS[:, None], KEYS), [(1, 6, 4, 4)]),
        ((0, HEADS, ROWS), [(1, 1, 2, 17), (1, 1, 1, 17), (1, 1, 1, 17)]),
        (([0, 1, 0, 1], HEADS), [(2, 3, 13, 17)]),  # less than twice the result
        ((0, HEADS, slice(None), KEYS), [(1, 1, 13, 2), (1, 1, 13, 1), (1, 1, 13, 1)]),
        ((0, slice(1, 3), ROWS, KEYS), []),
        (([0, 1, 0, 1], HEADS, ROWS, KEYS), []),
    ],
)
def test_only_chosen_cells_are_computed(index, blocks, monkeypatch):
    computed = []

    def weights_at(call, lse, selection):
        computed.append(selection.lengths)
        return cells.weights_at(call, lse, selection)

    weights = sample()[-1]
    expected = weights.dense()[index]
    monkeypatch.setattr("clearhead.weights.matrix.weights_at", weights_at)
    monkeypatch.setattr(lookup, "CELLS_PER_STEP", 1)
    torch.testing.assert_close(weights[index], expected)
    assert computed == blocks


@pytest.mark.parametrize("form", [0, 1])
def test_gradients_flow_through_lists(form, monkeypatch):
    """Blocks, heads and cells are differentiable in query, key, bias and sinks."""
    monkeypatch.setattr(lookup, "CELLS_PER_STEP", 1)
    query = torch.randn(1, 4, 5, 3, dtype=torch.float64, requires_grad=True)
    key = torch.randn(1, 2, 7, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(4, 1, 7, dtype=torch.float64, requires_grad=True)
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
    heads, rows, keys = [3, 0, 1, 3], [4, 0, 0, 2], [4, 1, 0, 6]

    def call(query, key, bias, sinks):
        weights = both_forms(Case(query, key, key, Window(2, 1), bias, sinks=sinks, softcap=2.0), "streaming")[form]
        return weights[:, [3, 0], [[4], [1]]], weights[0, heads, rows], weights[0, heads, rows, keys]

    assert torch.autograd.gradcheck(call, (query, key, bias, sinks), fast_mode=True)


class TestLargeMatrix:
    LENGTH = 20_000

    def weights(self):
        x = torch.randn(1, 2, self.LENGTH, 8)
        return attention(x, x, x, mask=Causal(), return_weights=True)[1]

    def test_computes_scattered_rows_and_cells(self):
        weights = self.weights()
        heads, rows = torch.tensor([0, 1, 1, 0]), torch.tensor([5, 19_999, 0, 12_345])
        found = weights[0, heads, rows]
        assert found.shape == (4, self.LENGTH)
        torch.testing.assert_close(found.sum(dim=-1), torch.ones(4), rtol=0, atol=1e-5)
        keys = torch.tensor([6, 0, 0, 12_345])  # the first is masked
        torch.testing.assert_close(weights[0, heads, rows, keys], found[torch.arange(4), keys])
        assert weights[0, 0, 5, 6] == weights[0, [0], [5], [6]] == 0
        assert weights[:, :, ::100, [3, 5]].shape == (1, 2, 200, 2)

    def test_refuses_results_above_the_limit(self):
        weights = self.weights()
        every = list(range(self.LENGTH))
        for index in (
            (0, [0]),
            (0, 0, every),
            (0, 0, [5] * self.LENGTH),
            (0, 0, torch.arange(self.LENGTH)[:, None], every),
        ):
            with pytest.raises(ValueError, match="400,000,000 weights are more than the limit"):
                weights[index]


def test_one_element_lists_keep_their_axis():
    weights = sample()[-1]
    for heads in ([2], torch.tensor([2]), np.array([2]), torch.arange(6) == 2):
        assert torch.equal(weights[:, heads], weights[:, 2:3])


def test_matrix_without_values_returns_shapes():
    weights = sample()[-1].to("meta")
    assert weights[:, [0, 3], None].shape == (2, 2, 1, 13, 17)
    assert weights[0, [0, 1], [3, 4], [5, 6]].shape == (2,)
    assert weights[0, [0, 1], [3, 4], [5, 6]].is_meta
