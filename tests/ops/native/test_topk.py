"""Tests of the largest log weights in C++: every size and number, equal ones, masked ones and NaN."""

import pytest
import torch

from clearhead import Causal, attention
from clearhead.ops.native import functions, topk
from clearhead.ops.native.topk import NativeTopK
from support.native_functions import available_options, compiled_for


def largest(compiled, logs, top, *, step, threads=1):
    """Return the largest log weights of each row and their keys, from tiles of `step` keys."""
    heads, rows, keys = logs.shape
    values, keys_of = torch.full((heads, rows + 2, top), -torch.inf), torch.full((heads, rows + 2, top), -1).int()
    for start in range(0, keys, step):
        tile = logs[..., start : start + step].contiguous()
        arguments = (tile.data_ptr(), values.data_ptr(), keys_of.data_ptr(), heads, rows, tile.shape[2], start)
        compiled.add_top(functions.TopCall(*arguments, rows + 2, top, threads))
    assert (values[:, rows:] == -torch.inf).all()
    return values[:, :rows], keys_of[:, :rows].long()


@pytest.fixture(params=available_options())
def compiled(request):
    return compiled_for(request.param)


def test_every_size_gives_the_values_of_torch(compiled):
    for top in (1, 2, 3, 8, 15, 16, 17, 33, topk.MAX_TOP):
        for keys, step in ((1, 1), (7, 3), (16, 16), (129, 50), (300, 300), (1000, 257)):
            logs = torch.randn(2, 5, keys)
            values, keys_of = largest(compiled, logs, top, step=step)
            count = min(top, keys)
            assert torch.equal(values[..., :count], logs.topk(count).values)
            assert torch.equal(logs.gather(-1, keys_of[..., :count]), values[..., :count])
            assert (values[..., count:] == -torch.inf).all()
            assert (keys_of[..., count:] == -1).all()


def test_the_first_of_equal_ones_comes_first(compiled):
    logs = torch.randint(0, 3, (2, 7, 500)).float()
    order = logs.sort(dim=-1, descending=True, stable=True)
    for top in (1, 5, 40):
        values, keys_of = largest(compiled, logs, top, step=200)
        assert torch.equal(values, order.values[..., :top])
        assert torch.equal(keys_of, order.indices[..., :top])


def test_masked_keys_are_not_found(compiled):
    logs = torch.full((1, 3, 200), -torch.inf)
    logs[0, 1, 150] = -3.0
    values, keys_of = largest(compiled, logs, 2, step=128)
    assert keys_of.tolist() == [[[-1, -1], [150, -1], [-1, -1]]]
    assert values[0, 1].tolist() == [-3.0, -torch.inf]


@pytest.mark.parametrize("top", [1, 3, 20])
def test_nan_comes_before_all_numbers_and_has_no_key(compiled, top):
    logs = torch.randn(1, 4, 300)
    logs[0, 1, 250] = torch.nan
    logs[0, 2, :3] = torch.nan
    logs[0, 3] = torch.nan
    values, keys_of = largest(compiled, logs, top, step=130)
    torch.testing.assert_close(values, logs.topk(top).values, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(keys_of == -1, values.isnan())
    numbers = ~values.isnan()
    assert torch.equal(logs.gather(-1, keys_of.clamp(min=0))[numbers], values[numbers])


def test_numbers_of_threads_give_the_same_keys():
    compiled = functions.native_functions()
    logs = torch.randn(3, 200, 300)
    one, four = (largest(compiled, logs, 8, step=300, threads=threads) for threads in (1, 4))
    assert torch.equal(one[1], four[1])


@pytest.mark.parametrize(("top", "used"), [(topk.MAX_TOP, True), (topk.MAX_TOP + 1, False)])
def test_long_lists_stay_in_torch(top, used, monkeypatch):
    monkeypatch.setattr(functions, "MIN_CELLS", 0)
    tiles = []
    add = NativeTopK.add
    monkeypatch.setattr(NativeTopK, "add", lambda *args: (tiles.append(1), add(*args)))
    x = torch.randn(1, 2, 100, 4)
    weights = attention(x, x, x, mask=Causal(), return_weights=True)[1]
    found = weights.topk(top)
    assert bool(tiles) == used
    torch.testing.assert_close(found.weights, weights.dense().topk(top).values)
