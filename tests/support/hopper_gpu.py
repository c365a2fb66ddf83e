"""Marks of tests that need a Hopper GPU, and a list of the kernels that a test launches."""

from __future__ import annotations

import pytest
import torch

from clearhead.ops.hopper import driver, support

MARKS = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != support.CAPABILITY,
        reason="needs a GPU of compute capability 9.0",
    ),
]


def list_launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the name of each kernel is appended that is launched from now on."""
    launched: list[str] = []
    launch = driver.Kernel.launch
    monkeypatch.setattr(
        driver.Kernel, "launch", lambda kernel, *args: (launched.append(kernel.name), launch(kernel, *args))
    )
    return launched
