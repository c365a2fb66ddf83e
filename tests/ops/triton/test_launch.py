"""Tests of repeated launches, with a kernel that records how it is launched."""

import pytest
import torch

from clearhead import Causal, Dense
from clearhead.ops import gpu
from clearhead.ops.arguments import build_call
from clearhead.ops.triton import launch as launch_module
from clearhead.ops.triton import tiles
from clearhead.ops.triton.config import TileConfig
from clearhead.ops.triton.launch import (
    MAX_LAUNCHES,
    launch,
    launch_on_grid,
    layout_of,
    layout_of_call,
    specialization_of,
)
from clearhead.ops.triton.logits import StridedTensor

SHAPE = (1, 2, 32, 16)


class CompiledKernel:
    def __init__(self, launches):
        self.launches = launches

    def __getitem__(self, grid):
        return lambda *arguments: self.launches.append(("compiled", grid, arguments))


class Kernel:
    arg_names = ("pointer", "BLOCK_Q", "num_stages")

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        def run(*arguments, **constants):
            self.launches.append(("triton", grid, arguments))
            return CompiledKernel(self.launches)

        return run


@pytest.fixture(autouse=True)
def compiled_mode(monkeypatch):
    for module in (launch_module, tiles):
        monkeypatch.setattr(module, "is_interpreted", lambda: False)
    monkeypatch.setattr(launch_module, "_LAUNCHES", {})


def launch_once(kernel, call, layout, argument, tile=None):
    def arguments(tile: TileConfig):
        return 7, (argument,)

    def constants(tile: TileConfig):
        return {"num_warps": 4, "num_stages": 3, "BLOCK_Q": tile.queries}

    launch("forward", kernel, call, layout, arguments, constants, tile=tile)


def call_of(*, mask=None, dtype=torch.float16, **options):
    query = torch.zeros(SHAPE, dtype=dtype)
    return build_call(query, query, query, mask=mask, **options)


def test_second_launch_of_a_layout_uses_the_compiled_kernel():
    kernel, call = Kernel(), call_of()
    layout = layout_of_call(call)
    launch_once(kernel, call, layout, "first")
    launch_once(kernel, call, layout, "second")
    launch_once(kernel, call, (layout, "other"), "third")
    assert [way for way, *_ in kernel.launches] == ["triton", "compiled", "triton"]
    _, grid, arguments = kernel.launches[1]
    rows = tiles.tile_for(tiles.TileProblem.from_call("forward", call, SHAPE[2])).queries
    assert (grid, arguments) == ((7, 1, 1), ("second", rows, 3))  # constants in the order of the signature


def test_matrices_are_converted_again_at_each_launch(monkeypatch):
    monkeypatch.setitem(gpu._GPUS, torch.device("cpu"), gpu.GPU((9, 0), 232_448))
    kernel, call = Kernel(), call_of()
    kernel.arg_names = ("query", "output", *Kernel.arg_names)
    for _ in range(2):
        matrices = (torch.zeros(SHAPE, dtype=torch.float16), torch.zeros(SHAPE))
        launch(
            "forward",
            kernel,
            call,
            "layout",
            lambda tile: (7, ("argument",)),
            lambda tile: {"num_warps": 4, "num_stages": 3, "BLOCK_Q": tile.queries},
            matrices=matrices,
            rows=("queries",),
        )
        _, _, (query, output, argument, *_) = kernel.launches[-1]
        assert query.base is matrices[0]
        assert query.block_shape[2] == tiles.tile_for(tiles.TileProblem.from_call("forward", call, SHAPE[2])).queries
        assert output == StridedTensor.from_tensor(matrices[1])
        assert argument == "argument"
    assert [way for way, *_ in kernel.launches] == ["triton", "compiled"]


def test_given_tile_is_neither_looked_up_nor_kept():
    kernel, call = Kernel(), call_of()
    for _ in range(2):
        launch_once(kernel, call, "layout", "argument", tile=TileConfig(16, 16, 4, 1))
    assert [way for way, *_ in kernel.launches] == ["triton", "triton"]


def test_number_of_kept_launches_is_bounded(monkeypatch):
    monkeypatch.setattr(launch_module, "MAX_LAUNCHES", 3)
    kernel, call = Kernel(), call_of()
    for layout in range(10):
        launch_once(kernel, call, layout, "argument")
        assert len(launch_module._LAUNCHES) <= 3
    assert MAX_LAUNCHES > 3


def test_layout_of_a_tensor_tells_strides_dtype_and_alignment_apart():
    tensor = torch.zeros(4, 64, dtype=torch.float16)
    assert layout_of(tensor) == layout_of(torch.ones(4, 64, dtype=torch.float16))
    different = [tensor.mT, tensor[:3], tensor.float(), torch.zeros(4 * 64 + 1, dtype=torch.float16)[1:].view(4, 64)]
    assert len({layout_of(tensor), *map(layout_of, different)}) == 5
    assert layout_of(None) is None


def test_layout_of_a_call_tells_options_apart():
    dense = Dense(torch.ones(32, 32, dtype=torch.bool))
    calls = [
        call_of(),
        call_of(mask=Causal()),
        call_of(mask=dense),
        call_of(softcap=2.0),
        call_of(sinks=torch.zeros(2)),
        call_of(bias=torch.zeros(1, 1, 32, 32)),
        call_of(dropout=0.5),
        call_of(dtype=torch.float32),
        call_of(query_start=2**30),
        call_of(query_start=torch.tensor([3])),
    ]
    assert len({layout_of_call(call) for call in calls}) == len(calls)
    assert layout_of_call(calls[0]) == layout_of_call(call_of(query_start=5, scale=0.3))


def test_kernels_run_on_the_gpu_of_the_queries(monkeypatch):
    used = []

    class Device:
        def __init__(self, device):
            used.append(device)

        def __enter__(self): ...
        def __exit__(self, *error): ...

    class Query:
        device = torch.device("cuda", 1)

    class Call:
        query = Query()

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", Device)
    assert gpu.on_device_of_query(lambda call, value: value)(Call(), 5) == 5
    assert used == [torch.device("cuda", 1)]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    gpu.on_device_of_query(lambda call: None)(Call())
    assert len(used) == 1


def test_second_launch_on_a_grid_uses_the_compiled_kernel(monkeypatch):
    monkeypatch.setattr(launch_module, "_GRID_LAUNCHES", {})
    kernel = Kernel()
    kernel.__name__ = "kernel"
    constants = {"num_warps": 4, "num_stages": 3, "BLOCK_Q": 16}
    for argument, layout, options in (
        ("first", 1, constants),
        ("second", 1, constants),
        ("third", 2, constants),
        ("fourth", 1, {**constants, "num_warps": 8}),
    ):
        launch_on_grid(kernel, layout, (5, 2, 3), (argument,), options)
    assert [way for way, *_ in kernel.launches] == ["triton", "compiled", "triton", "triton"]
    assert kernel.launches[1][1:] == ((5, 2, 3), ("second", 16, 3))


def test_specialization_depends_on_strides_and_alignment_but_not_on_shapes():
    tensor = torch.zeros(7, 32)
    assert specialization_of(tensor, None) == specialization_of(tensor[:3], None)
    for other in (tensor[:, ::2], tensor.half(), tensor.flatten()[1:].as_strided((6, 32), (32, 1))):
        assert specialization_of(tensor) != specialization_of(other)
