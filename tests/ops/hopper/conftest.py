"""Fixture of a simulated Hopper GPU."""

import pytest

from clearhead.ops.gpu import GPU
from clearhead.ops.hopper import forward, support, sweep, topk

H200 = GPU((9, 0), 232_448)


@pytest.fixture
def on_hopper(monkeypatch):
    """Make the choice treat tensors of the CPU as tensors on an H200 with the bindings installed."""
    monkeypatch.setattr(support, "DEVICE_TYPE", "cpu")
    monkeypatch.setattr(support, "gpu_of", lambda device: H200)
    monkeypatch.setattr(support, "is_installed", lambda: True)
    monkeypatch.setattr(support, "_FAILURES", [])
    monkeypatch.setattr(support, "processor_count", lambda device: 1)
    monkeypatch.setattr(sweep, "MIN_CELLS", 0)
    monkeypatch.setattr(forward, "MIN_CELLS", {})
    monkeypatch.setattr(topk, "MIN_CELLS", 0)
