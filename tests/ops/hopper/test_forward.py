"""Tests of the choice and the arguments of the forward kernel for Hopper GPUs, on a machine without one."""

import pytest
import torch

from clearhead import Causal, Documents, Padding, Prefix, Window
from clearhead.ops.arguments import build_call
from clearhead.ops.hopper import driver, forward, support
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
    monkeypatch.setattr(forward, "MAX_RANGES", count - 1)
    reasons = [f"a query has up to {count} ranges of keys; expected at most {count - 1}"]
    assert forward.unsupported_reasons(call) == reasons


def test_number_of_ranges_is_that_of_the_kernel():
    source = (driver.SOURCES / "forward.cu").read_text(encoding="utf-8")
    assert f"constexpr int MAX_RANGES = {forward.MAX_RANGES};" in source


def test_shared_memory_fits_into_a_multiprocessor():
    for width in support.WIDTHS:
        assert forward.shared_bytes(width) + 1024 <= 232_448  # and the block of bounds


def test_a_failure_of_the_driver_leaves_calls_to_triton(on_hopper, monkeypatch):
    calls = []

    def fail(call: object) -> None:
        raise driver.DriverError("CUDA reports CUDA_ERROR_INVALID_SOURCE")

    triton_forward, decode, *_ = backend._kernels()
    monkeypatch.setattr(forward, "forward", fail)
    monkeypatch.setattr(triton_forward, "forward", lambda call: calls.append(call))
    monkeypatch.setattr(decode, "MAX_DECODING_QUERIES", 0)
    with pytest.warns(UserWarning, match="failed: CUDA reports CUDA_ERROR_INVALID_SOURCE"):
        backend._forward(call_of())
    backend._forward(call_of())  # without a second warning, which would be an error
    assert len(calls) == 2


def test_long_causal_calls_without_gradients_prefer_the_kernel(on_hopper, monkeypatch):
    assert forward.is_faster_than_cudnn(call_of(mask=Causal()))
    assert forward.is_faster_than_cudnn(call_of(dim=64))
    assert not forward.is_faster_than_cudnn(call_of(dim=128))  # cuDNN is as fast without a mask
    call = call_of(mask=Causal())
    call.query.requires_grad_()
    assert not forward.is_faster_than_cudnn(call)
    monkeypatch.setattr(forward, "MIN_CELLS", {128: 2 * 7 * 7 + 1})
    assert not forward.is_faster_than_cudnn(call_of(mask=Causal()))


def test_bindings_that_cannot_be_loaded_are_an_error_of_the_driver(monkeypatch):
    def fail(name: str) -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(driver.importlib, "import_module", fail)
    with pytest.raises(driver.DriverError, match=r"cuda\.bindings\.driver cannot be loaded: libcuda"):
        driver.row_map(torch.zeros(1, 2, 7, 64, dtype=torch.bfloat16), 64)
