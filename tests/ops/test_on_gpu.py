"""Tests of attention by compiled kernels at real sizes, on a GPU: `pytest -m gpu tests/ops/test_on_gpu.py`."""

from __future__ import annotations

import copy
import math
import socket
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh

from clearhead import ALiBi, Causal, Dense, Documents, MultiHeadAttention, Padding, Window, attention
from clearhead.distributed import (
    ZigzagLayout,
    context_parallel_attention,
    gather,
    parallelize_heads,
    sharded_kv_attention,
)
from clearhead.ops import dispatch
from clearhead.ops.arguments import build_call
from clearhead.ops.masks import Mask
from support.gpu_calls import KEYS, SETTINGS, UNION, Setting, normal, on_gpu
from support.numerics import assert_lse_matches, assert_matches, poisoned

pytestmark = [
    pytest.mark.gpu,
    # of torch.special.entr, if several processes create the folder at the same time
    pytest.mark.filterwarnings("ignore:Specified kernel cache directory could not be created"),
]


@pytest.mark.parametrize("name", SETTINGS)
def test_kernels_match_the_equation(name):
    """Output, log-sum-exp, gradients and statistics, in buffers poisoned with NaN. A second run gives the same bits."""
    setting = on_gpu(SETTINGS[name])
    tensors = setting.tensors()
    bias = setting.options.get("bias")
    leaves = [*tensors, *([] if bias is None else [bias.slopes if isinstance(bias, ALiBi) else bias])]
    statistics = ("entropy", "received", "distance")

    def run() -> dict[str, Tensor]:
        with poisoned():
            output, weights = attention(*tensors, **setting.options, return_weights=True, backend="triton")
            observed = weights.observe(entropy=True, received=True, distance=True)
            cotangent = normal(*output.shape, dtype=setting.dtype)
            gradients = torch.autograd.grad(output, leaves, cotangent)
        results = {"output": output.detach(), "lse": weights.lse} | {n: getattr(observed, n) for n in statistics}
        return results | {f"grad{i}": gradient for i, gradient in enumerate(gradients)}

    def truth(dtype: torch.dtype) -> dict[str, Tensor]:
        results = setting.plain(tensors, dtype)
        gradients = torch.autograd.grad(
            results["output"], leaves, normal(*results["output"].shape, dtype=setting.dtype).to(dtype)
        )
        return {n: t.detach() for n, t in results.items()} | {f"grad{i}": g for i, g in enumerate(gradients)}

    got, exact, naive = run(), truth(torch.float64), truth(setting.dtype)
    single = {n: t.detach() for n, t in setting.plain(tensors, torch.float32).items()}
    logs = float(exact["lse"].nan_to_num(neginf=0).abs().max()) + math.log(KEYS)
    for key, tensor in got.items():
        if key == "lse":
            assert_lse_matches(tensor.cpu(), exact[key].cpu().numpy(), single[key].cpu(), scale=logs)
            continue
        baseline = single[key] if key in statistics else naive[key].to(tensor.dtype)
        # the rounding error of a weight is proportional to its logarithm
        size = max(1.0, float(exact[key].abs().max())) * logs
        assert_matches(tensor.cpu(), exact[key].cpu(), baseline.cpu(), scale=size)
    again = run()
    assert all(torch.equal(tensor, again[key]) for key, tensor in got.items())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("width", [128, 136, 256])
@pytest.mark.parametrize("queries", [1, 523])
def test_fused_kernels_of_torch_match_the_equation(causal, width, queries):
    """The kernels are cuDNN and flash attention, with their log-sum-exp: rows of the lazy matrix sum to 1."""
    setting = on_gpu(
        Setting(
            {"mask": Causal()} if causal else {},
            key_dim=width,
            value_dim=width,
            queries=queries,
            keys=queries if causal else KEYS,
        )
    )
    tensors = setting.tensors()
    call = build_call(*tensors, **setting.options)
    assert dispatch.choose(call)[0] == "sdpa"
    output, weights = attention(*tensors, **setting.options, return_weights=True, backend="sdpa")
    exact, naive = setting.plain(tensors, torch.float64), setting.plain(tensors, torch.bfloat16)
    assert_matches(output.detach().cpu(), exact["output"].detach().cpu(), naive["output"].detach().cpu())
    sums = weights.detach()[0].sum(dim=-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=2e-5, atol=0)
    gradients = torch.autograd.grad(output.float().square().sum(), tensors)
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_more_than_two_to_the_31_elements_are_supported():
    """Each tensor has 3 · 2³⁰ elements, so that 32-bit offsets of the last head would overflow."""
    heads, queries, dim = 96, 131072, 256
    tensors = [torch.empty((1, heads, queries, dim), dtype=torch.bfloat16, device="cuda") for _ in range(3)]
    for tensor in tensors:
        tensor[:, -1].normal_()
        tensor[:, :-1] = 0
        tensor.requires_grad_()
    mask = Window(before=63)
    output, weights = attention(*tensors, mask=mask, return_weights=True, backend="triton")
    last = [tensor[:, -1:].detach().clone().requires_grad_() for tensor in tensors]
    expected, last_weights = attention(*last, mask=mask, return_weights=True, backend="triton")
    assert torch.equal(output[:, -1:], expected)
    assert torch.equal(weights.lse[:, -1:], last_weights.lse)
    gradients = torch.autograd.grad(output[:, -1:].sum(), tensors)
    for got, wanted in zip(gradients, torch.autograd.grad(expected.sum(), last), strict=True):
        assert torch.equal(got[:, -1:], wanted)


@pytest.mark.parametrize("queries", [1, 64])
def test_log_sum_exp_does_not_drift_over_many_tiles(queries):
    """With many queries, a rounding error in each step of the online softmax would add up to 7e-4 here."""
    query, key = 3 * normal(1, 2, queries, 64, dtype=torch.float16), normal(1, 1, 2**17, 64, dtype=torch.float16)
    _, weights = attention(query, key, key, return_weights="keep_qk", backend="triton")
    exact = torch.logsumexp(query.double() @ key.double().mT / 8, dim=-1)
    torch.testing.assert_close(weights.lse.double(), exact, rtol=0, atol=3e-5)


def test_compiled_graphs_match_eager():
    tensors = [normal(1, 2, 300, 64, seed=i, dtype=torch.bfloat16).requires_grad_() for i in range(3)]
    for mask in (None, Causal(), Window(before=50), UNION):
        compiled = torch.compile(lambda *t, m=mask: attention(*t, mask=m), fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(*tensors), attention(*tensors, mask=mask), rtol=2e-2, atol=2e-2)
        compiled(*tensors).sum().backward()


def test_deterministic_algorithms_give_reproducible_gradients():
    tensors = [normal(1, 8, 2048, 128, seed=i, dtype=torch.bfloat16).requires_grad_() for i in range(3)]
    torch.use_deterministic_algorithms(True)
    try:
        assert dispatch.choose(build_call(*tensors, mask=Causal()))[0] == "triton"
        runs = [torch.autograd.grad(attention(*tensors, mask=Causal()).sum(), tensors) for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(first, other) for run in runs[1:] for first, other in zip(runs[0], run, strict=True))
    assert dispatch.choose(build_call(*(t.detach() for t in tensors), mask=Causal()))[0] == "sdpa"


def check_fused_kernel(tensors: list[Tensor], **options: Any) -> Tensor:
    """Compare output, gradients and log-sum-exp of `sdpa`, which `auto` has to choose; return the output."""
    assert dispatch.choose(build_call(*tensors, **options))[0] == "sdpa"
    dtype = tensors[0].dtype
    results = {}
    for name, backend, cast in (
        ("got", "sdpa", dtype),
        ("naive", "reference", dtype),
        ("exact", "reference", torch.float64),
    ):
        leaves = [tensor.detach().clone().to(cast).requires_grad_() for tensor in tensors]
        output, weights = attention(*leaves, **options, return_weights=True, backend=backend)
        output.backward(normal(*output.shape, seed=7).to(cast))
        results[name] = [output.detach().cpu(), *(tensor.grad.cpu() for tensor in leaves)], weights.lse.cpu()
    for got, exact, naive in zip(results["got"][0], results["exact"][0], results["naive"][0], strict=True):
        assert_matches(got, exact, naive)
    got, naive, exact = (results[name][1] for name in ("got", "naive", "exact"))
    assert_lse_matches(got, exact.numpy(), naive, scale=10.0)
    return results["got"][0][0]


@pytest.mark.parametrize(("queries", "keys"), [(48, 45), (33, 512), (512, 7)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_texts_with_hidden_keys_use_the_kernel_of_torch(queries, keys, dtype):
    """Outputs, gradients and log-sum-exp of a batch of sentences, including empty rows."""
    tensors = [normal(5, 6, length, 32, seed=i, dtype=dtype) for i, length in enumerate((queries, keys, keys))]
    mask = Padding([keys, 0, 1, keys // 2, keys])
    assert check_fused_kernel(tensors, mask=mask)[1].abs().max() == 0


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0), reason="cuDNN is not used"
)
@pytest.mark.parametrize("kind", ["mask", "bias"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (5, 1), (5, 6)], ids=str)
@pytest.mark.parametrize(("kv_heads", "dim", "dtype"), [(6, 64, torch.bfloat16), (2, 128, torch.float16)])
def test_dense_masks_and_biases_use_cudnn(kind, shape, kv_heads, dim, dtype):
    """Outputs, gradients and log-sum-exp, with a query that may attend to no key."""
    queries, keys = 203, 328
    query = normal(5, 6, queries, dim, dtype=dtype)
    tensors = [query, *(normal(5, kv_heads, keys, dim, seed=i, dtype=dtype) for i in (1, 2))]
    numbers = normal(*shape, queries, keys, seed=3)
    numbers[:, :, 11] = math.inf
    if kind == "mask":
        output = check_fused_kernel(tensors, mask=Dense(numbers < 0.3))
    else:
        output = check_fused_kernel(tensors, bias=-numbers.to(dtype))
    assert output[:, :, 11].abs().max() == 0


def results_of_reference(tensors: list[Tensor], cotangent: Tensor, dtype: torch.dtype, mask: Mask) -> list[Tensor]:
    """Return output and gradients of the dense equation in a dtype, on the CPU."""
    leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]
    output = attention(*leaves, mask=mask, backend="reference")
    return [output.detach().cpu(), *(g.cpu() for g in torch.autograd.grad(output, leaves, cotangent.to(dtype)))]


def test_one_rank_over_nccl_matches_a_single_process():
    """The collectives run with a world size of 1; no machine with more GPUs is available."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.cuda.set_device(0)
    distributed.init_process_group("cpu:gloo,cuda:nccl", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    try:
        for device in ("cpu", "cuda"):  # `ProcessGroup.all_reduce` supports tensors on both
            ones = torch.ones(3, dtype=torch.float64, device=device)
            distributed.all_reduce(ones)
            assert ones.tolist() == [1, 1, 1]
        whole = MultiHeadAttention(256, 8, kv_heads=2, qk_norm=True, sinks=True, device="cuda")
        sharded = copy.deepcopy(whole)
        mesh = init_device_mesh("cuda", (1,))
        parallelize_heads(sharded, mesh)
        x = normal(2, 200, 256)
        expected, weights = whole(x, mask=Causal(), return_weights=True)
        got, sharded_weights = sharded(x, mask=Causal(), return_weights=True)
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(gather(sharded_weights.entropy(), mesh), weights.entropy(), atol=1e-5, rtol=1e-5)
        query, key, value = (normal(1, heads, 500, 64, dtype=torch.bfloat16) for heads in (8, 2, 2))
        mask = Causal() & Documents([200, 300])
        for tensor in (query, key, value):
            tensor.requires_grad_()
        output, rows = context_parallel_attention(
            query, key, value, ZigzagLayout(500, 1), mask=mask, return_weights=True
        )
        cotangent = torch.randn_like(output)
        output.backward(cotangent)
        gradients = [tensor.grad for tensor in (query, key, value)]
        # two correct results in bfloat16 may differ by more than a rounding error, so each is compared with float64
        weights = attention(query, key, value, mask=mask, return_weights=True)[1]
        exact, naive = (
            results_of_reference([query, key, value], cotangent, dtype, mask)
            for dtype in (torch.float64, torch.bfloat16)
        )
        for one, other, baseline in zip([output.detach(), *gradients], exact, naive, strict=True):
            assert_matches(one.cpu(), other, baseline)
        torch.testing.assert_close(rows.received(), weights.received(), atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(rows.pool(16, 16), weights.pool(16, 16), atol=1e-4, rtol=1e-3)
        merged, lse = sharded_kv_attention(
            query[:, :, -2:].detach(), key.detach(), value.detach(), ZigzagLayout(500, 1)
        )
        expected, weights = attention(query[:, :, -2:].detach(), key.detach(), value.detach(), return_weights=True)
        torch.testing.assert_close(merged, expected, atol=1e-2, rtol=1e-2)
        torch.testing.assert_close(lse, weights.lse, atol=1e-3, rtol=1e-3)
    finally:
        distributed.destroy_process_group()
