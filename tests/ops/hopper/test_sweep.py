"""Tests of the choice and the arguments of the statistics kernel for Hopper GPUs, on a machine without one."""

import pytest
import torch

from clearhead import ALiBi, Causal, Dense
from clearhead.ops.arguments import build_call
from clearhead.ops.gpu import GPU
from clearhead.ops.hopper import driver, support, sweep
from clearhead.ops.statistics import StatisticsRequest
from clearhead.ops.triton import statistics
from support.hopper_calls import call_of, fields_of_kernel

A100 = GPU((8, 0), 166_912)
PROCESSORS = 132


def test_argument_structure_has_the_fields_of_the_kernel():
    assert sweep.Problem._fields_ == fields_of_kernel("sweep")


def test_calls_on_other_devices_are_refused(monkeypatch):
    assert sweep.unsupported_reasons(call_of()) == ["the GPU is not an NVIDIA GPU of compute capability 9.0"]
    monkeypatch.setattr(support, "DEVICE_TYPE", "cpu")
    monkeypatch.setattr(support, "gpu_of", lambda device: A100)
    assert sweep.unsupported_reasons(call_of()) == ["the GPU is not an NVIDIA GPU of compute capability 9.0"]


def test_missing_bindings_are_named(on_hopper, monkeypatch):
    monkeypatch.setattr(support, "is_installed", lambda: False)
    assert sweep.unsupported_reasons(call_of()) == ["cuda.bindings is not installed"]


@pytest.mark.parametrize("dim", support.WIDTHS)
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
    monkeypatch.setattr(support, "_FAILURES", [])

    def fail(*_: object) -> None:
        raise driver.UnavailableError("CUDA reports CUDA_ERROR_INVALID_SOURCE")

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
    monkeypatch.setattr(support, "processor_count", lambda device: PROCESSORS)
    device = torch.device("cpu")
    for masked in (False, True):
        chunks = sweep._chunks(blocks, tiles, masked, device)
        assert chunks == 1 or 1 <= chunks <= tiles // sweep.MIN_TILES
        if tiles // sweep.MIN_TILES >= PROCESSORS // blocks + 1:
            assert blocks * chunks >= PROCESSORS * 0.9  # a GPU is not left half idle


@pytest.mark.parametrize(("head_bytes", "heads"), [(1, 32), (2**22, 4), (3 * 2**21, 2), (2**24, 1), (2**30, 1)])
def test_heads_in_flight_fit_into_the_cache(head_bytes, heads):
    assert support.heads_in_flight(head_bytes, 32) == heads
    assert support.heads_in_flight(head_bytes, 32, least=16) == max(heads, 16)
    assert support.heads_in_flight(head_bytes, 1, least=16) == 1
