"""Tests of the transfer of finished requests from a GPU: `pytest -m gpu tests/serving/test_transfer_on_gpu.py`."""

import threading
from dataclasses import replace

import pytest
import torch

from clearhead.serving.transfer import PendingTransfer
from support.served_requests import finished_request

pytestmark = pytest.mark.gpu
CYCLES = 2_000_000_000  # about a second


def test_another_thread_waits_for_the_kernels_that_compute_the_tensors():
    """A kernel delays the computation. A copy on another stream without waiting would read the NaN before it."""
    expected = finished_request(seed=3)
    delayed = {name: torch.full_like(tensor, torch.nan, device="cuda") for name, tensor in expected.statistics.items()}
    sources = {name: tensor.cuda() for name, tensor in expected.statistics.items()}
    layers = tuple(replace(each, key=each.key.cuda(), lse=each.lse.cuda()) for each in expected.recording)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)
        for name, tensor in delayed.items():
            tensor.copy_(sources[name])
        pending = PendingTransfer(replace(expected, statistics=delayed, recording=layers))
    assert not stream.query()  # the kernel is still running
    results = []
    thread = threading.Thread(target=lambda: results.append(pending.to_cpu()))
    thread.start()
    thread.join()
    (finished,) = results
    for name, tensor in expected.statistics.items():
        assert torch.equal(finished.statistics[name], tensor), name
    for layer, original in zip(finished.recording, expected.recording, strict=True):
        assert torch.equal(layer.key, original.key)
        assert torch.equal(layer.lse, original.lse)
        assert layer.query.device.type == "cpu"
