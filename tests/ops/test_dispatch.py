"""Tests of the choice of a backend."""

from types import SimpleNamespace

import pytest
import torch

from clearhead import Causal, Documents, Padding, Window
from clearhead.ops import dispatch, gpu, sdpa
from clearhead.ops.arguments import build_call
from clearhead.ops.triton import backend as triton


def test_auto_chooses_the_fused_kernel_if_it_supports_the_call():
    query, key, value = (torch.randn(1, 2, 300, 8) for _ in range(3))
    names = {
        "sdpa": [{}, {"mask": Causal()}, {"mask": Padding([7])}, {"bias": torch.randn(300, 300)}],
        "streaming": [{"mask": Window(9)}, {"mask": Documents([100, 200])}, {"softcap": 1.0}, {"dropout": 0.1}],
    }
    for expected, calls in names.items():
        for options in calls:
            assert dispatch.choose(build_call(query, key, value, **options))[0] == expected, options


@pytest.mark.parametrize(
    ("capability", "width", "queries", "suits"),
    [(9, 128, 512, True), (9, 256, 512, True), (9, 264, 512, False), (9, 256, 64, False), (10, 128, 512, True),
     (10, 256, 512, False), (8, 128, 512, False)],
)  # fmt: skip
def test_cudnn_depends_on_capability_head_width_and_queries(monkeypatch, capability, width, queries, suits):
    monkeypatch.setitem(gpu._GPUS, torch.device("meta"), gpu.GPU((capability, 0), 232_448))
    assert sdpa._suits_cudnn(torch.empty(1, 1, queries, width, device="meta")) == suits


def test_gpus_without_tensor_cores_for_triton_are_refused(monkeypatch):
    device = torch.device("cuda", 7)
    monkeypatch.setattr(triton, "INSTALLED", True)
    monkeypatch.setitem(gpu._GPUS, device, gpu.GPU((7, 5), 65_536))
    query = SimpleNamespace(device=device, dtype=torch.float16, shape=(1, 2, 3, 64))
    call = SimpleNamespace(query=query, value=None)
    expected = "compute capability 7.5 is below 8.0; Triton would not use its tensor cores"
    assert triton.unsupported_reasons(call) == [expected]
