"""Tests of the choice and the arguments of the top-k kernel for Hopper GPUs, on a machine without one."""

import pytest
import torch

from clearhead import Causal, Window
from clearhead.ops.hopper import driver, query_blocks, support, topk
from clearhead.ops.statistics import TopK
from clearhead.ops.triton import topk as triton_topk
from support.hopper_calls import call_of, fields_of_kernel


def test_argument_structure_has_the_fields_of_the_kernel():
    assert topk.Problem._fields_ == fields_of_kernel("topk")


def test_space_for_candidates_is_that_of_the_kernel():
    source = (driver.SOURCES / "topk.cu").read_text(encoding="utf-8")
    assert f"constexpr int ROOM = {topk.CANDIDATES_PER_LIST};" in source
    assert f"constexpr int PART = {topk.SPARE_CANDIDATES};" in source


@pytest.mark.parametrize("dim", support.WIDTHS)
@pytest.mark.parametrize("mask", [None, Causal(), Window(3, 0)], ids=repr)
def test_calls_are_supported_up_to_the_largest_count(on_hopper, mask, dim):
    assert topk.unsupported_reasons(call_of(dim, mask=mask), topk.MAX_TOP_KEYS) == []
    reasons = topk.unsupported_reasons(call_of(dim, mask=mask), topk.MAX_TOP_KEYS + 1)
    assert reasons == ["33 keys are requested; expected at most 32"]


def test_small_matrices_and_many_ranges_of_keys_are_refused(on_hopper, monkeypatch):
    call = call_of(mask=Causal())
    monkeypatch.setattr(query_blocks, "MAX_RANGES", 0)
    assert topk.unsupported_reasons(call, 3) == ["a query has up to 1 ranges of keys; expected at most 0"]
    monkeypatch.setattr(topk, "MIN_CELLS", 2 * 7 * 7 + 1)
    assert topk.unsupported_reasons(call, 3) == ["the matrix has 98 cells; expected at least 99"]


def test_enough_groups_of_keys_have_a_maximum():
    """With as many groups as requested keys, the bound would be the smallest maximum, which many products reach."""
    assert topk.FEW_GROUPS >= 2 * topk.FEW_KEYS
    assert topk.GROUPS >= 2 * topk.MAX_TOP_KEYS


def test_shared_memory_fits_into_a_multiprocessor():
    for width in support.WIDTHS:
        assert topk.shared_bytes(width) + 1024 <= 232_448  # and the block of bounds


def test_the_kernel_takes_the_calls_that_it_supports(on_hopper, monkeypatch):
    found = TopK(torch.zeros(1), torch.zeros(1))
    monkeypatch.setattr(topk, "top_weights", lambda call, lse, count: found)
    assert triton_topk.top_weights(call_of(), torch.zeros(1, 2, 7), 3) is found


@pytest.mark.parametrize(
    ("error", "message"),
    [(driver.UnavailableError("no NVRTC"), "failed: no NVRTC"), (driver.DriverError("no memory"), None)],
)
def test_calls_that_the_driver_refuses_are_left_to_triton(on_hopper, monkeypatch, error, message):
    def fail(call: object, lse: object, count: int) -> None:
        raise error

    class LeftError(Exception):
        pass

    def leave(*arguments: object) -> None:
        raise LeftError

    monkeypatch.setattr(topk, "top_weights", fail)
    monkeypatch.setattr(triton_topk, "launch_with_tile", leave)
    if message is not None:
        with pytest.warns(UserWarning, match=message), pytest.raises(LeftError):
            triton_topk.top_weights(call_of(), torch.zeros(1, 2, 7), 3)
    with pytest.raises(LeftError):
        triton_topk.top_weights(call_of(), torch.zeros(1, 2, 7), 3)
