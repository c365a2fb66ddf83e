"""Tests of the sums over tiles in C++: all sizes and instruction sets, special numbers, and the calls that run them."""

import math

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters
from torch.fx.experimental.proxy_tensor import make_fx

from clearhead import Causal, Documents, Padding, Window, attention
from clearhead.ops.arguments import build_call
from clearhead.ops.native import functions, library
from clearhead.ops.native.tile_sums import NativeSums
from clearhead.ops.statistics import StatisticsRequest
from clearhead.ops.tiled import statistics as tiled
from clearhead.ops.tiled.logits import FoldedCall, exp_
from support.native_functions import available_options, compiled_for
from support.numerics import Case, assert_matches

NAMES = ("entropy", "received", "distance")


@pytest.fixture
def tiles(monkeypatch):
    """Count the tiles that the functions in C++ add, which also take small calls."""
    counted = []
    monkeypatch.setattr(functions, "MIN_CELLS", 0)
    add = NativeSums.add
    monkeypatch.setattr(NativeSums, "add", lambda *args: (counted.append(1), add(*args))[1])
    return counted


@pytest.fixture(params=available_options())
def compiled(request):
    return compiled_for(request.param)


class Tile:
    """A tile of log weights, and its sums by the functions in C++."""

    def __init__(self, compiled, logs, *, position=0, first_key=0, threads=1, weights=False, distance=True):
        heads, rows, keys = logs.shape
        self.logs, self.offsets = logs, position - first_key + torch.arange(rows)[:, None] - torch.arange(keys)
        # rows and columns of a larger matrix, whose other elements must not change
        self.entropies, self.distances = (torch.zeros(heads, rows + 3, dtype=torch.float64) for _ in range(2))
        self.columns = torch.zeros(heads, keys + 5, dtype=torch.float64)
        self.weights = torch.full_like(logs, torch.nan) if weights else None
        scratch = torch.full((compiled.scratch_size(heads, rows, keys),), torch.nan)
        positions = torch.full((heads,), position)
        compiled.add_tile(
            functions.SumCall(
                logs.data_ptr(),
                None if self.weights is None else self.weights.data_ptr(),
                self.entropies.data_ptr(),
                self.distances.data_ptr() if distance else None,
                self.columns.data_ptr(),
                scratch.data_ptr(),
                positions.data_ptr(),
                *(heads, rows, keys, first_key, rows + 3, keys + 5, threads),
            )
        )

    def check(self):
        _, rows, keys = self.logs.shape
        exact, single = self.formulas(self.logs.double()), self.formulas(self.logs)
        for name, sums, count in (
            ("entropies", self.entropies, rows),
            ("distances", self.distances, rows),
            ("columns", self.columns, keys),
        ):
            assert (sums[:, count:] == 0).all()
            assert_matches(sums[:, :count].float(), exact[name], single[name], scale=float(exact[name].abs().max()))

    def formulas(self, logs):
        weights = logs.exp()
        return {
            "entropies": torch.special.entr(weights).sum(dim=-1),
            "distances": (weights * self.offsets.abs()).sum(dim=-1),
            "columns": weights.sum(dim=-2),
        }


@pytest.mark.parametrize("rows", [1, 3, 4, 7, 64, 67, 131])
@pytest.mark.parametrize("keys", [1, 2, 15, 16, 17, 33, 257])
def test_every_size_matches_float64(compiled, rows, keys):
    Tile(compiled, torch.randn(3, rows, keys) - 5, position=11, first_key=5).check()


@pytest.mark.parametrize(("rows", "keys"), [(2, 131_072), (5, 65_537)])
def test_few_rows_of_many_keys_match_float64(compiled, rows, keys):
    """A tile of few rows has many keys, and in a nearly uniform row, rounding errors add up."""
    Tile(compiled, torch.randn(1, rows, keys) / 100 - math.log(keys)).check()


def test_numbers_of_threads_give_the_same_bits(compiled):
    logs = torch.randn(3, 300, 401) - 6
    one, two, seven = (Tile(compiled, logs, threads=threads) for threads in (1, 2, 7))
    for other in (two, seven):
        for name in ("entropies", "distances", "columns"):
            assert torch.equal(getattr(other, name), getattr(one, name))


def test_exponentials_have_an_error_of_about_one_ulp(compiled):
    logs = torch.linspace(-86.99, 88, 2**18).view(1, 512, 512)
    exact = logs.double().exp()
    ulp = torch.nextafter(exact.float(), torch.tensor(torch.inf)) - exact.float()
    tile = Tile(compiled, logs, weights=True)
    assert functions.unsupported_reasons(logs, logs.numel()) == []
    for weights in (tile.weights, exp_(logs.clone(), masked=True, may_underflow=True)):
        assert ((weights - exact) / ulp).abs().max() < 1.2


@pytest.mark.parametrize("count", [1, 15, 16, 17, 1000, 50_000])
def test_exponentials_clamp_their_logarithms(count, monkeypatch):
    monkeypatch.setattr(functions, "MIN_CELLS", 0)
    assert functions.unsupported_reasons(torch.empty(0), count) == []
    logs = torch.linspace(-100, 0, count)
    logs[0] = -math.inf
    clamped, out = logs.clone(), torch.full((count,), torch.nan)
    assert exp_(clamped, masked=True, may_underflow=True, out=out) is out
    assert torch.equal(clamped, logs.clamp(min=-87))
    assert torch.equal(out == 0, logs < -87)
    torch.testing.assert_close(out, torch.where(logs < -87, 0.0, logs.exp()))
    assert torch.equal(exp_(logs, masked=True, may_underflow=True), out)


def test_weights_that_underflow_are_zero_and_do_not_give_nan(compiled):
    logs = torch.tensor([-math.inf, -1e30, -88.0, -87.5, 0.0, -1.0]).expand(1, 5, 6).contiguous()
    tile = Tile(compiled, logs, weights=True, distance=False)
    assert torch.equal(tile.weights[0, 0, :4], torch.zeros(4))
    torch.testing.assert_close(tile.entropies[0, :5], torch.full((5,), math.exp(-1), dtype=torch.float64))
    assert (tile.distances == 0).all()


def test_nan_stays_in_its_row_and_column(compiled):
    logs = torch.randn(2, 9, 37) - 4
    logs[1, 6, 20] = torch.nan
    tile = Tile(compiled, logs)
    for sums, index in ((tile.entropies, 6), (tile.distances, 6), (tile.columns, 20)):
        assert torch.nonzero(sums.isnan()).tolist() == [[1, index]]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": Causal()},
        {"mask": Window(5, 2), "softcap": 3.0},
        {"mask": Causal() & Documents([7, 20, 14])},
        {"mask": Padding([41, 17])},
        {"mask": Causal(), "sinks": torch.linspace(-1, 2, 6), "query_start": torch.tensor([-3, 9])},
        {"bias": torch.linspace(-1, 1, 31 * 41).view(1, 1, 31, 41)},
    ],
)
@pytest.mark.parametrize(("tile", "threads"), [((3, 4), 1), ((3, 4), 5), ((16, 64), 2), ((16, 64), 3)])
def test_calls_match_extended_precision(options, tile, threads, tiles, monkeypatch):
    """The number of threads determines how many heads are in a block."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for name in ("TILE", "NARROW_TILE"):
        monkeypatch.setattr(f"clearhead.ops.tiled.schedule.{name}", tile)
    case = Case(*(torch.randn(2, heads, length, 7) for heads, length in ((6, 31), (2, 41), (2, 41))), **options)
    exact, naive = case.exact(), case.statistics()
    weights = attention(**case.arguments, return_weights=True)[1]
    found = weights.observe(entropy=True, received=True, distance=True, top=3, spans=[(3, 9), (0, 41)])
    assert tiles
    logs = case.terms + np.log(2 + case.shape[3])  # as in tests/weights/test_statistics.py
    for name in NAMES:
        size = max(1.0, float(np.abs(exact[name]).max()))
        assert_matches(getattr(found, name), exact[name], naive[name], scale=logs * size)
    for span, keys in enumerate((slice(3, 9), slice(0, 41))):
        sums = (matrix[..., keys].sum(-1) for matrix in (exact["weights"], naive["weights"]))
        assert_matches(found.mass[..., span], *sums, scale=logs)
    assert torch.equal((found.top.keys >= 0).sum(dim=-1), case.allowed.sum(dim=-1).clamp(max=3))
    assert found.mass.is_contiguous()


@pytest.mark.parametrize("heads", [(1, 1), (6, 6), (6, 1), (5, 5)])
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_heads_of_any_block_add_to_their_own_sums(heads, threads, tiles, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr("clearhead.ops.tiled.schedule.TILE", (8, 8))
    case = Case(*(torch.randn(3, count, 19, 4) for count in (heads[0], heads[1], heads[1])))
    exact, naive = case.exact(), case.statistics()
    found = attention(**case.arguments, return_weights=True)[1].observe(entropy=True, received=True, distance=True)
    assert tiles
    for name in NAMES:
        assert_matches(getattr(found, name), exact[name], naive[name], scale=case.terms + float(exact[name].max()))


def reasons_of(dtype=torch.float32, cells=2**18):
    return functions.unsupported_reasons(torch.empty(0, dtype=dtype), cells)


def test_calls_that_stay_in_torch_have_a_reason():
    assert reasons_of() == []
    assert reasons_of(torch.float64) == ["dtype torch.float64 is not float32"]
    assert reasons_of(cells=1000) == ["1000 cells are fewer than 262144"]


def test_traced_calls_stay_in_torch(tiles):
    x = torch.randn(1, 2, 11, 4)

    def entropies(x):
        return attention(x, x, x, mask=Causal(), return_weights=True)[1].entropy()

    graph = make_fx(entropies)(x)
    assert not tiles
    torch.testing.assert_close(graph(x), entropies(x))


@pytest.mark.slow
def test_compiled_calls_stay_in_torch_and_serve_all_lengths(tiles):
    def entropies(x):
        return attention(x, x, x, mask=Causal(), return_weights=True)[1].entropy()

    compiled, frames = torch.compile(entropies, backend="eager", dynamic=True), []
    for length in (11, 13, 17):
        x = torch.randn(1, 2, length, 4)
        result = compiled(x)
        assert not tiles
        torch.testing.assert_close(result, entropies(x))
        assert tiles
        tiles.clear()
        frames.append(counters["frames"]["ok"])
    assert frames[1] == frames[2]


@pytest.fixture
def uncached():
    functions._load.cache_clear()
    yield
    functions._load.cache_clear()


@pytest.mark.usefixtures("uncached")
def test_no_compiler_leaves_calls_to_torch_without_a_warning(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(library.shutil, "which", lambda name: None)
    assert reasons_of() == ["none of g++, c++, clang++ was found"]


@pytest.mark.usefixtures("uncached")
def test_a_failing_compiler_leaves_calls_to_torch_after_one_warning(monkeypatch):
    monkeypatch.setenv("CXX", "false")
    with pytest.warns(UserWarning, match="runs in torch, because .* functions failed: false") as seen:
        assert [reasons_of()[0] for _ in range(2)] == ["false failed: "] * 2
    assert len(seen) == 1


def test_default_dtype_and_device_change_nothing(tiles):
    x = torch.randn(1, 2, 9, 4)
    weights = attention(x, x, x, return_weights=True)[1]
    expected = weights.observe(entropy=True, received=True, distance=True, spans=[(0, 3)])
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        found = weights.observe(entropy=True, received=True, distance=True, spans=[(0, 3)])
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert len(tiles) == 2
    for name in (*NAMES, "mass"):
        assert torch.equal(getattr(found, name), getattr(expected, name))


def test_requests_without_sums_are_not_added(tiles):
    x = torch.randn(1, 1, 9, 4)
    call = build_call(x, x, x)
    lse = torch.zeros(1, 1, 9)
    tiled.compute_statistics(FoldedCall.from_call(call), lse, StatisticsRequest(top=1))
    assert not tiles
