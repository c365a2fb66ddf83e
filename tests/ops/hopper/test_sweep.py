"""Tests of the choice and the arguments of the statistics kernel for Hopper GPUs, on a machine without one."""

import ctypes
import re
from importlib.resources import files

import pytest
import torch

from clearhead import ALiBi, Causal, Dense
from clearhead.ops.arguments import build_call
from clearhead.ops.gpu import GPU
from clearhead.ops.hopper import driver, sweep
from clearhead.ops.statistics import StatisticsRequest
from clearhead.ops.triton import statistics

H200, A100 = GPU((9, 0), 232_448), GPU((8, 0), 166_912)
PROCESSORS = 132
C_TYPES = {"float": ctypes.c_float, "int": ctypes.c_int}


def call_of(dim: int = 128, dtype: torch.dtype = torch.bfloat16, heads: int = 2, **options: object):
    query, key = (torch.zeros(1, heads, 7, dim, dtype=dtype) for _ in range(2))
    return build_call(query, key, key, **options)


@pytest.fixture
def on_hopper(monkeypatch):
    """Make the choice treat tensors of the CPU as tensors on an H200 with the bindings installed."""
    monkeypatch.setattr(sweep, "DEVICE_TYPE", "cpu")
    monkeypatch.setattr(sweep, "gpu_of", lambda device: H200)
    monkeypatch.setattr(sweep, "is_installed", lambda: True)
    monkeypatch.setattr(sweep, "MIN_CELLS", 0)


def test_argument_structure_has_the_fields_of_the_kernel():
    source = (files("clearhead.ops.hopper") / "sweep.cu").read_text(encoding="utf-8")
    body = re.sub(r"//.*", "", re.search(r"struct Problem \{(.*?)\};", source, re.DOTALL)[1])
    expected = []
    for declaration in body.split(";"):
        kind, _, names = declaration.strip().removeprefix("const ").replace("long long", "long").partition(" ")
        for name in filter(None, names.split(",")):
            pointer = kind.endswith("*")
            expected.append((name.strip(), ctypes.c_void_p if pointer else C_TYPES[kind]))
    assert sweep.Problem._fields_ == expected


def test_calls_on_other_devices_are_refused(monkeypatch):
    assert sweep.unsupported_reasons(call_of()) == ["the GPU is not an NVIDIA GPU of compute capability 9.0"]
    monkeypatch.setattr(sweep, "DEVICE_TYPE", "cpu")
    monkeypatch.setattr(sweep, "gpu_of", lambda device: A100)
    assert sweep.unsupported_reasons(call_of()) == ["the GPU is not an NVIDIA GPU of compute capability 9.0"]


def test_missing_bindings_are_named(on_hopper, monkeypatch):
    monkeypatch.setattr(sweep, "is_installed", lambda: False)
    assert sweep.unsupported_reasons(call_of()) == ["cuda.bindings is not installed"]


@pytest.mark.parametrize("dim", sweep.WIDTHS)
@pytest.mark.parametrize("options", [{}, {"mask": Causal()}, {"sinks": torch.zeros(2)}, {"query_start": 3}])
def test_plain_and_masked_calls_are_supported(on_hopper, dim, options):
    assert sweep.unsupported_reasons(call_of(dim, **options)) == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"dim": 96}, "key_dim 96 is not 64 or 128"),
        ({"dtype": torch.float32}, "dtype torch.float32 is not bfloat16 or float16"),
        ({"softcap": 2.0}, "softcap is not supported"),
        ({"bias": torch.zeros(7, 7)}, "bias is not supported"),
        ({"bias": ALiBi(torch.ones(2))}, "ALiBi is not supported"),
        ({"mask": Dense(torch.ones(7, 7, dtype=torch.bool))}, "dense mask is not supported"),
    ],
)
def test_other_calls_are_refused_with_the_reason(on_hopper, arguments, reason):
    assert reason in sweep.unsupported_reasons(call_of(**arguments))


def test_rows_that_the_copy_engine_cannot_load_are_refused(on_hopper):
    query = torch.zeros(1, 2, 7, 129, dtype=torch.bfloat16)[..., :128]
    key = torch.zeros(1, 2, 7, 128, dtype=torch.bfloat16)
    reasons = sweep.unsupported_reasons(build_call(query, key, key))
    assert reasons == ["address or strides of query are not positive multiples of 16 bytes"]
    assert not driver.can_map(torch.zeros(1, 1, 7, 128, dtype=torch.bfloat16).expand(1, 2, 7, 128))
    assert driver.can_map(torch.zeros(1, 7, 2, 128, dtype=torch.bfloat16).transpose(1, 2))


def test_small_calls_are_left_to_triton(on_hopper, monkeypatch):
    monkeypatch.setattr(sweep, "MIN_CELLS", 2 * 7 * 7)
    assert sweep.unsupported_reasons(call_of()) == []
    monkeypatch.setattr(sweep, "MIN_CELLS", 2 * 7 * 7 + 1)
    reasons = ["the matrix has 98 cells; expected at least 99"]
    assert sweep.unsupported_reasons(call_of()) == reasons


def test_a_failure_of_the_driver_leaves_calls_to_triton(on_hopper, monkeypatch):
    monkeypatch.setattr(sweep, "_FAILURES", [])

    def fail(*_: object) -> None:
        raise driver.DriverError("CUDA reports CUDA_ERROR_INVALID_SOURCE")

    monkeypatch.setattr(statistics, "sweep", fail)
    monkeypatch.setattr(statistics, "_launch", lambda call, lse, entropies, columns, *_: columns.fill_(3.0))
    call, lse = call_of(), torch.zeros(1, 2, 7)
    request = StatisticsRequest(received=True)
    with pytest.warns(UserWarning, match="failed: CUDA reports CUDA_ERROR_INVALID_SOURCE"):
        found = statistics.compute_statistics(call, lse, request)
    assert torch.equal(found.received, torch.full((1, 2, 7), 3.0))
    assert sweep.unsupported_reasons(call) == ["CUDA reports CUDA_ERROR_INVALID_SOURCE"]
    statistics.compute_statistics(call, lse, request)  # without a second warning, which would be an error


@pytest.mark.parametrize("blocks", [1, 11, 131, 132, 704, 2752])
@pytest.mark.parametrize("tiles", [1, 31, 128, 2048])
def test_parts_of_a_block_have_enough_tiles_and_fill_the_gpu(monkeypatch, blocks, tiles):
    monkeypatch.setattr(sweep, "_processors", lambda device: PROCESSORS)
    device = torch.device("cpu")
    for masked in (False, True):
        chunks = sweep._chunks(blocks, tiles, masked, device)
        assert chunks == 1 or 1 <= chunks <= tiles // sweep.MIN_TILES
        if tiles // sweep.MIN_TILES >= PROCESSORS // blocks + 1:
            assert blocks * chunks >= PROCESSORS * 0.9  # a GPU is not left half idle
