"""Tests of the choice and the arguments of the forward kernel for Hopper GPUs, on a machine without one."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from clearhead import Causal, Documents, Padding, Prefix, Window
from clearhead.ops.arguments import build_call
from clearhead.ops.hopper import driver, forward, query_blocks, support
from clearhead.ops.triton import backend
from support.hopper_calls import call_of, fields_of_kernel

MASKS = [None, Causal(), Window(3, 0), Padding([5]), Causal() & Documents([3, 4]), (Causal() & Window(2)) | Prefix(2)]


def test_argument_structure_has_the_fields_of_the_kernel():
    assert forward.Problem._fields_ == fields_of_kernel("forward")


@pytest.mark.parametrize("dim", support.WIDTHS)
@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_masked_calls_are_supported(on_hopper, mask, dim):
    assert forward.unsupported_reasons(call_of(dim, mask=mask)) == []


def test_values_of_another_width_are_refused(on_hopper):
    query, value = (torch.zeros(1, 2, 7, dim, dtype=torch.bfloat16) for dim in (64, 128))
    reasons = forward.unsupported_reasons(build_call(query, query, value))
    assert reasons == ["value_dim 128 is not key_dim 64"]


def test_dropout_is_refused(on_hopper):
    assert forward.unsupported_reasons(call_of(dropout=0.5)) == ["dropout is not supported"]


def test_values_that_the_copy_engine_cannot_load_are_refused(on_hopper):
    query = torch.zeros(1, 2, 7, 64, dtype=torch.bfloat16)
    value = torch.zeros(1, 2, 7, 65, dtype=torch.bfloat16)[..., :64]
    reasons = forward.unsupported_reasons(build_call(query, query, value))
    assert reasons == ["address or strides of value are not positive multiples of 16 bytes"]


def test_many_ranges_of_keys_are_refused(on_hopper, monkeypatch):
    call = call_of(mask=(Causal() & Window(2)) | Prefix(2))
    count = call.lower().ranges.shape[0]
    assert forward.unsupported_reasons(call) == []
    monkeypatch.setattr(query_blocks, "MAX_RANGES", count - 1)
    reasons = [f"a query has up to {count} ranges of keys; expected at most {count - 1}"]
    assert forward.unsupported_reasons(call) == reasons


def test_number_of_ranges_is_that_of_the_kernel():
    source = (driver.SOURCES / "query_blocks.cuh").read_text(encoding="utf-8")
    assert f"constexpr int MAX_RANGES = {query_blocks.MAX_RANGES};" in source


def test_shared_memory_fits_into_a_multiprocessor():
    for width in support.WIDTHS:
        assert forward.shared_bytes(width) + 1024 <= 232_448  # and the block of bounds


@pytest.fixture
def failing(on_hopper, monkeypatch):
    """Let the kernel raise an error, and count the calls of the two forward functions."""
    counts = Counter()
    errors = []

    def fail(call: object) -> None:
        counts["hopper"] += 1
        raise errors[0]

    triton_forward, decode, *_ = backend._kernels()
    monkeypatch.setattr(forward, "forward", fail)
    monkeypatch.setattr(triton_forward, "forward", lambda call: counts.update(["triton"]))
    monkeypatch.setattr(decode, "MAX_DECODING_QUERIES", 0)
    return errors, counts


def test_a_kernel_that_cannot_run_leaves_all_calls_to_triton(failing):
    errors, counts = failing
    errors.append(driver.UnavailableError("CUDA reports CUDA_ERROR_INVALID_SOURCE"))
    with pytest.warns(UserWarning, match="failed: CUDA reports CUDA_ERROR_INVALID_SOURCE"):
        backend._forward(call_of())
    backend._forward(call_of())  # without a second warning, which would be an error
    assert counts == {"hopper": 1, "triton": 2}


def test_an_error_of_one_call_leaves_only_that_call_to_triton(failing):
    errors, counts = failing
    errors.append(driver.DriverError("CUDA reports CUDA_ERROR_OUT_OF_MEMORY"))
    backend._forward(call_of())
    backend._forward(call_of())
    assert counts == {"hopper": 2, "triton": 2}


@pytest.mark.parametrize(
    ("status", "error"),
    [("CUDA_ERROR_NO_BINARY_FOR_GPU", driver.UnavailableError), ("CUDA_ERROR_OUT_OF_MEMORY", driver.DriverError)],
)
def test_errors_of_the_machine_are_told_from_those_of_a_call(status, error):
    with pytest.raises(driver.DriverError, match=status) as caught:
        driver._call(lambda: (SimpleNamespace(value=1, name=status),))
    assert caught.type is error


def test_kernels_are_not_loaded_into_a_cuda_graph_that_is_being_captured(monkeypatch):
    monkeypatch.setattr(driver, "compile_source", lambda name, options: b"")
    monkeypatch.setattr(driver, "_bindings", lambda name: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(driver.DriverError, match="kernel forward is not loaded, and a CUDA graph is being captured"):
        driver.Kernel("forward", {}).launch(1, 1, 0, ())


def test_tensors_without_an_address_are_refused(on_hopper):
    query = torch.zeros(3, 1, 2, 7, 64, dtype=torch.bfloat16)
    preferred = []

    def compare(query: torch.Tensor) -> torch.Tensor:
        preferred.append(forward.is_faster_than_cudnn(build_call(query, query, query, mask=Causal())))
        return query

    compare(query[0])
    torch.vmap(compare)(query)
    torch.func.grad(lambda x: compare(query[0]).sum() * x)(torch.tensor(1.0))
    with FakeTensorMode():
        compare(torch.zeros(1, 2, 7, 64, dtype=torch.bfloat16))
    assert preferred == [True, False, False, False]


def test_long_calls_without_gradients_prefer_the_kernel(on_hopper, monkeypatch):
    for dim in support.WIDTHS:
        assert forward.is_faster_than_cudnn(call_of(dim, mask=Causal()))
        assert forward.is_faster_than_cudnn(call_of(dim))
    call = call_of(mask=Causal())
    call.query.requires_grad_()
    assert not forward.is_faster_than_cudnn(call)
    assert not forward.is_faster_than_cudnn(call_of(mask=Window(3, 0)))  # cuDNN does not support it
    monkeypatch.setattr(forward, "MIN_CELLS", {128: 2 * 7 * 7 + 1})
    assert not forward.is_faster_than_cudnn(call_of(mask=Causal()))


def test_few_queries_are_left_to_cudnn(on_hopper, monkeypatch):
    monkeypatch.setattr(support, "processor_count", lambda device: 3)  # the call has one block of queries for each head
    assert forward.is_faster_than_cudnn(call_of(heads=3, mask=Causal()))
    assert not forward.is_faster_than_cudnn(call_of(heads=2, mask=Causal()))


def test_bindings_that_cannot_be_loaded_are_an_error_of_the_driver(monkeypatch):
    def fail(name: str) -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(driver.importlib, "import_module", fail)
    with pytest.raises(driver.DriverError, match=r"cuda\.bindings\.driver cannot be loaded: libcuda"):
        driver.row_map(torch.zeros(1, 2, 7, 64, dtype=torch.bfloat16), 64)
