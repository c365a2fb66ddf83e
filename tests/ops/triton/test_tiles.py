"""Tests of the choice of tiles: they fit into shared memory, and a failed launch leads to a smaller one."""

import itertools

import pytest
import torch
from triton.runtime.errors import OutOfResources

from clearhead import ALiBi, Causal, Dense
from clearhead.cli.diagnosis import tile_choices
from clearhead.ops.arguments import build_call
from clearhead.ops.gpu import GPU
from clearhead.ops.triton import tiles
from clearhead.ops.triton.config import TileConfig
from clearhead.ops.triton.tiles import (
    HALF_PRECISION_TILES,
    MMA_TILES,
    SINGLE_PRECISION_TILES,
    TileProblem,
    launch_with_tile,
)

CPU = torch.device("cpu")
SHARED_MEMORY = {(8, 0): 166_912, (8, 6): 101_376, (9, 0): 232_448, (12, 0): 101_376}
NO_OPTIONS = (False,) * 6


@pytest.fixture(autouse=True)
def compiled_kernels(monkeypatch):
    """Choose tiles as for compiled kernels, and forget the choices of other tests."""
    monkeypatch.setattr(tiles, "is_interpreted", lambda: False)
    monkeypatch.setattr(tiles, "_CHOSEN", {})


def use_gpu(monkeypatch, capability):
    monkeypatch.setattr(tiles, "gpu_of", lambda device: GPU(capability, SHARED_MEMORY[capability]))


def causal_call(dim=128, **options):
    x = torch.empty(1, 2, 300, dim, dtype=torch.bfloat16)
    return build_call(x, x, x, **{"mask": Causal(), **options})


@pytest.mark.parametrize("kernel", HALF_PRECISION_TILES)
@pytest.mark.parametrize("capability", SHARED_MEMORY)
def test_every_problem_has_a_tile_that_fits(monkeypatch, kernel, capability):
    use_gpu(monkeypatch, capability)
    for dtype, width, value_width, queries, cell_bytes in itertools.product(
        (torch.float32, torch.bfloat16), (16, 64, 128, 256), (16, 128, 256), (16, 64, 128), (0, 1, 2, 5)
    ):
        loaded = value_width if kernel in tiles.VALUE_KERNELS else 0
        problem = TileProblem(kernel, CPU, dtype, width, loaded, queries, cell_bytes, NO_OPTIONS)
        tile = tiles.tile_for(problem)
        assert problem.shared_bytes(tile) <= SHARED_MEMORY[capability]
        assert tile.queries <= queries
        assert all(size >= 16 and size & (size - 1) == 0 for size in tile[:2])


def test_all_tables_have_the_same_kernels():
    assert HALF_PRECISION_TILES.keys() == SINGLE_PRECISION_TILES.keys() == MMA_TILES.keys()


def test_tuned_tile_is_used_where_it_fits(monkeypatch):
    use_gpu(monkeypatch, (9, 0))
    tile = tiles.tile_for(TileProblem.from_call("forward", causal_call(), 300))
    assert tile == HALF_PRECISION_TILES["forward"][128]


@pytest.mark.parametrize(
    "options",
    [
        {"mask": Dense(torch.ones(300, 300, dtype=torch.bool))},
        {"bias": torch.zeros(300, 300, dtype=torch.bfloat16)},
        {"bias": torch.zeros(300, 300)},
    ],
    ids=["dense mask", "bias", "float32 bias"],
)
def test_loading_cells_leads_to_a_smaller_tile(monkeypatch, options):
    use_gpu(monkeypatch, (9, 0))
    tile = tiles.tile_for(TileProblem.from_call("forward", causal_call(**options), 300))
    assert tile != HALF_PRECISION_TILES["forward"][128]
    assert tile.stages >= 2


def test_options_that_load_nothing_keep_the_tile(monkeypatch):
    use_gpu(monkeypatch, (9, 0))
    call = causal_call(bias=ALiBi(torch.ones(2)), softcap=3.0, sinks=torch.ones(2))
    assert tiles.tile_for(TileProblem.from_call("forward", call, 300)) == HALF_PRECISION_TILES["forward"][128]


def test_less_shared_memory_leads_to_a_smaller_tile(monkeypatch):
    sizes = []
    for capability in ((9, 0), (8, 0), (8, 6)):
        use_gpu(monkeypatch, capability)
        monkeypatch.setattr(tiles, "_CHOSEN", {})
        tile = tiles.tile_for(TileProblem.from_call("forward", causal_call(dim=256), 300))
        sizes.append(tile.queries * tile.keys * tile.stages)
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3


def test_failed_launch_is_repeated_with_a_smaller_tile_and_remembered(monkeypatch):
    use_gpu(monkeypatch, (9, 0))
    call, tried = causal_call(), []

    def launch(tile):
        tried.append(tile)
        if len(tried) < 3:
            raise OutOfResources(300_000, 232_448, "shared memory")
        return "launched"

    assert launch_with_tile("forward", call, 300, launch) == "launched"
    problem = TileProblem.from_call("forward", call, 300)
    sizes = [problem.shared_bytes(tile) for tile in tried]
    assert sizes == sorted(set(sizes), reverse=True)
    assert tiles.tile_for(problem) == tried[-1]
    launch_with_tile("forward", call, 300, launch)
    assert tried[3:] == [tried[2]]


def test_launch_that_fails_with_every_tile_raises(monkeypatch):
    use_gpu(monkeypatch, (9, 0))

    def launch(tile):
        raise OutOfResources(1024, 512, "threads")

    with pytest.raises(OutOfResources):
        launch_with_tile("forward", causal_call(), 300, launch)


def test_given_tile_is_used_as_it_is():
    tile = TileConfig(32, 16, 4, 1)
    assert launch_with_tile("forward", causal_call(), 300, lambda used: used, tile=tile) == tile


def test_top_keeps_enough_groups_of_keys(monkeypatch):
    use_gpu(monkeypatch, (8, 6))
    for width in (64, 128, 256):
        for dtype in (torch.float32, torch.bfloat16):
            problem = TileProblem("top", CPU, dtype, width, 0, 128, 5, NO_OPTIONS)
            assert all(tile.keys == 64 for tile in problem.candidates())


def test_doctor_shows_tiles_that_are_smaller_than_the_preferred_ones(monkeypatch):
    use_gpu(monkeypatch, (8, 6))
    choices = tile_choices("biased", causal_call(dim=256, bias=torch.zeros(300, 300)))
    assert {choice.kernel for choice in choices} == set(tiles.KERNELS)
    forward = next(choice for choice in choices if choice.kernel == "forward")
    assert forward.preferred == "64 × 64, 8 warps, 2 stages"
    assert forward.tile != forward.preferred
    assert len(tile_choices("plain", causal_call())) == len(tiles.KERNELS) - 1  # without a bias, it has no gradient
