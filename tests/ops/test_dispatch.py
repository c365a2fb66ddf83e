"""Tests of the choice of a backend."""

from types import SimpleNamespace

import pytest
import torch

from clearhead import Causal, Dense, Documents, Padding, Window
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


@pytest.fixture
def hopper(monkeypatch):
    """Let the meta device stand for a Hopper GPU."""
    monkeypatch.setitem(gpu._GPUS, torch.device("meta"), gpu.GPU((9, 0), 232_448))


def reasons_on_cuda(*, queries=512, keys=512, key_dim=64, dtype=torch.bfloat16, **options):
    query, key = (torch.empty(2, 4, length, key_dim, device="meta", dtype=dtype) for length in (queries, keys))
    return list(map(str, sdpa._unsupported_cuda(build_call(query, key, key, **options))))


def allowed(*shape):
    return torch.ones(shape, device="meta", dtype=torch.bool)


def bias(*shape, dtype=torch.bfloat16, **options):
    return torch.zeros(shape, device="meta", dtype=dtype, **options)


@pytest.mark.parametrize("shape", [(512, 512), (4, 512, 512), (2, 1, 512, 512), (2, 4, 512, 512)])
def test_cudnn_takes_a_dense_mask_or_a_bias(hopper, shape):
    assert reasons_on_cuda(mask=allowed(*shape)) == []
    assert reasons_on_cuda(bias=bias(*shape)) == []


CUDNN = (
    "on CUDA a bias or dense mask requires cuDNN: compute capability 9.0 or higher, at least 128 queries, key_dim up to"
    " 128, and no compiled graph"
)
ROWS = "; cuDNN requires one row per query and kv_len to be a multiple of 8"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mask": allowed(64, 512), "queries": 64}, CUDNN),
        ({"mask": allowed(512, 512), "key_dim": 256}, CUDNN),
        ({"bias": bias(512, 512), "key_dim": 136}, CUDNN),
        ({"mask": allowed(512, 508), "keys": 508}, f"bias or dense mask has shape (1, 1, 512, 508){ROWS}"),
        ({"bias": bias(1, 512)}, f"bias or dense mask has shape (1, 1, 1, 512){ROWS}"),
        ({"bias": bias(512, 1)}, f"bias or dense mask has shape (1, 1, 512, 1){ROWS}"),
        ({"bias": bias(512, 512, dtype=torch.float32)}, "bias has dtype torch.float32, but query has torch.bfloat16"),
        (
            {"bias": bias(512, 512, requires_grad=True)},
            "bias requires a gradient, which torch's kernel does not compute",
        ),
        ({"bias": bias(512, 512), "mask": allowed(512, 512)}, "on CUDA bias and mask together are not supported"),
        ({"bias": bias(512, 512), "mask": Causal()}, "on CUDA bias and mask together are not supported"),
        (
            {"mask": Causal() & Documents([500, 12])},
            "mask Causal() & Documents([500, 12]) is not supported, only None, Causal with query_start=0, Padding or"
            " Prefix, or one Dense, on CUDA",
        ),
        (
            {"mask": Causal() & Dense(allowed(512, 512))},
            "mask Causal() & Dense(<bool [1, 1, 512, 512]>) is not supported, only None, Causal with query_start=0,"
            " Padding or Prefix, or one Dense, on CUDA",
        ),
        (
            {"mask": Padding([3, 5]), "keys": 520},
            "on CUDA hidden keys are supported up to 512 tokens, and not in compiled graphs",
        ),
    ],
    ids=str,
)
def test_unsupported_masks_and_biases_on_cuda_are_refused(hopper, options, reason):
    assert reasons_on_cuda(**options) == [reason]


def test_older_gpus_take_no_dense_mask_through_cudnn(monkeypatch):
    monkeypatch.setitem(gpu._GPUS, torch.device("meta"), gpu.GPU((8, 0), 166_912))
    assert reasons_on_cuda(mask=allowed(512, 512)) == [CUDNN]


def test_choosing_a_backend_does_not_format_a_mask(monkeypatch):
    def fail(self):
        raise AssertionError("formatted")

    monkeypatch.setattr(Documents, "__repr__", fail)
    x = torch.randn(1, 2, 300, 8)
    assert dispatch.choose(build_call(x, x, x, mask=Documents([100, 200])))[0] == "streaming"


class TestCudnnBias:
    """Conversion of masks and biases for cuDNN, on the CPU."""

    def bias_of(self, **options):
        x = torch.zeros(1, 2, 8, 16, dtype=torch.bfloat16)
        call = build_call(x, x, x, **options)
        return sdpa._cudnn_bias(call, call.mask)

    def test_dense_mask_is_converted_once_until_it_changes(self):
        mask = Dense(torch.rand(8, 8).mT < 0.5)
        bias = self.bias_of(mask=mask)
        assert torch.equal(bias == 0, mask.allowed)
        assert torch.equal(bias == -torch.inf, ~mask.allowed)
        assert bias.is_contiguous()
        assert self.bias_of(mask=mask) is bias
        mask.allowed.fill_(True)
        assert self.bias_of(mask=mask).count_nonzero() == 0

    def test_mask_of_an_inference_tensor_is_converted_at_each_call(self):
        with torch.inference_mode():
            mask = Dense(torch.zeros(8, 8, dtype=torch.bool))
            self.bias_of(mask=mask)
            mask.allowed.fill_(True)
            assert self.bias_of(mask=mask).count_nonzero() == 0

    def test_aligned_bias_is_not_copied(self):
        bias = torch.randn(2, 8, 16).bfloat16()[..., :8]
        assert self.bias_of(bias=bias).data_ptr() == bias.data_ptr()

    @pytest.mark.parametrize("view", ["offset", "odd rows", "transposed", "expanded"])
    def test_other_bias_is_copied(self, view):
        numbers = torch.randn(8, 24).bfloat16()
        bias = {
            "offset": numbers[:, 1:9],
            "odd rows": numbers.view(-1)[: 8 * 9].view(8, 9)[:, :8],
            "transposed": numbers[:, :8].mT,
            "expanded": numbers[0, :8].expand(8, 8),
        }[view]
        copied = self.bias_of(bias=bias)
        assert torch.equal(copied[0, 0], bias)
        assert copied.is_contiguous()


def test_gpus_without_tensor_cores_for_triton_are_refused(monkeypatch):
    device = torch.device("cuda", 7)
    monkeypatch.setattr(triton, "INSTALLED", True)
    monkeypatch.setitem(gpu._GPUS, device, gpu.GPU((7, 5), 65_536))
    query = SimpleNamespace(device=device, dtype=torch.float16, shape=(1, 2, 3, 64))
    call = SimpleNamespace(query=query, value=None)
    expected = "compute capability 7.5 is below 8.0; Triton would not use its tensor cores"
    assert triton.unsupported_reasons(call) == [expected]
