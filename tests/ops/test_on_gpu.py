"""Tests of the compiled kernels at real sizes, on a GPU: `pytest -m gpu tests/ops/test_on_gpu.py`."""

from __future__ import annotations

import copy
import math
import socket
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import adaptive_avg_pool2d

from clearhead import ALiBi, Causal, Dense, Documents, MultiHeadAttention, Padding, Prefix, Window, attention
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
from support.numerics import assert_lse_matches, assert_matches, poisoned

pytestmark = pytest.mark.gpu
BATCH, HEADS, KV_HEADS, QUERIES, KEYS = 2, 6, 2, 523, 787
UNION = Window(before=50) | (Causal() & Prefix(4))


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


@dataclass
class Setting:
    """Inputs of one attention call, and its equation in any dtype."""

    options: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16
    key_dim: int = 64
    value_dim: int = 64
    queries: int = QUERIES
    keys: int = KEYS

    def tensors(self) -> list[Tensor]:
        shapes = ((HEADS, self.queries, self.key_dim), (KV_HEADS, self.keys, self.key_dim))
        shapes += ((KV_HEADS, self.keys, self.value_dim),)
        return [normal(BATCH, *shape, seed=i, dtype=self.dtype).requires_grad_() for i, shape in enumerate(shapes)]

    def plain(self, tensors: list[Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        query, key, value = (tensor.to(dtype) for tensor in tensors)
        key, value = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (key, value))
        options = self.options
        scores = query @ key.mT * options.get("scale", self.key_dim**-0.5)
        if "softcap" in options:
            scores = options["softcap"] * torch.tanh(scores / options["softcap"])
        start = options.get("query_start", self.keys - self.queries)
        start = start.view(-1, 1, 1, 1) if isinstance(start, Tensor) else start
        positions = start + torch.arange(self.queries, device="cuda")[:, None]
        distances = (positions - torch.arange(self.keys, device="cuda")).abs().expand(BATCH, 1, -1, -1)
        bias = options.get("bias")
        if isinstance(bias, ALiBi):
            scores = scores - (bias.slopes.double()[:, None, None] * distances).to(dtype)
        elif bias is not None:
            scores = scores + bias.to(dtype)
        if "mask" in options:
            call = build_call(*(t.detach() for t in tensors), **options)
            allowed = call.lower().allowed(self.queries, torch.arange(self.keys, device="cuda"))
            scores = torch.where(allowed, scores, -math.inf)
        sinks = options.get("sinks")
        sink = [] if sinks is None else [sinks.to(dtype)[:, None, None].expand(*scores.shape[:3], 1)]
        logits = torch.cat([scores, *sink], dim=-1)
        has_key = (logits > -math.inf).any(dim=-1, keepdim=True)
        weights = torch.softmax(torch.where(has_key, logits, 0.0), dim=-1)[..., : self.keys] * has_key
        wide = weights.to(torch.promote_types(dtype, torch.float32))
        return {
            "output": weights @ value,
            "lse": torch.logsumexp(logits.to(wide.dtype), dim=-1),
            "weights": wide,
            "entropy": torch.special.entr(wide).sum(dim=-1),
            "received": wide.sum(dim=-2),
            "distance": (wide * distances).sum(dim=-1),
        }


ALIBI = ALiBi(torch.linspace(0.01, 0.5, HEADS))
SETTINGS = {
    "plain": Setting(),
    "causal": Setting({"mask": Causal()}, key_dim=128, value_dim=128),
    "causal float16": Setting({"mask": Causal(), "query_start": 0}, dtype=torch.float16, key_dim=128, value_dim=128),
    "window": Setting({"mask": Window(before=100, after=3)}, key_dim=128, value_dim=64),
    "documents": Setting({"mask": Documents([[300, 0, 400], [87, 600]]) & Causal()}),
    "padding": Setting({"mask": Padding([787, 0])}, key_dim=40, value_dim=72),
    "union": Setting({"mask": UNION}, dtype=torch.float32, key_dim=32, value_dim=32),
    "dense": Setting({"mask": "dense"}, key_dim=16, value_dim=256),
    "wide": Setting({"mask": Causal()}, key_dim=256, value_dim=256),
    "float32": Setting({"mask": Causal()}, dtype=torch.float32, key_dim=128, value_dim=128),
    "odd width": Setting({"mask": Causal()}, key_dim=13, value_dim=7),
    "alibi": Setting({"bias": ALIBI, "mask": Causal()}),
    "softcap": Setting({"softcap": 2.0, "mask": Window(before=300)}),
    "sinks": Setting({"sinks": torch.linspace(-1, 3, HEADS), "mask": Causal()}),
    "bias": Setting({"bias": (1, HEADS, QUERIES, KEYS)}),
    "starts": Setting({"mask": Causal(), "query_start": torch.tensor([3, -20])}),
    "negative scale": Setting({"scale": -0.3, "mask": Causal()}),
    "one query": Setting({"mask": Padding([3000, 17])}, queries=1, keys=3001, key_dim=128, value_dim=128),
    "few queries": Setting({"mask": Causal(), "bias": ALIBI}, queries=5, keys=3001),
}


def on_gpu(setting: Setting) -> Setting:
    """Return the setting with its tensors created on the GPU or moved to it."""

    def move(value: Any) -> Any:
        if isinstance(value, ALiBi):
            return ALiBi(value.slopes.cuda().requires_grad_())
        if value == "dense":
            return Dense(normal(BATCH, 1, setting.queries, setting.keys) < 0.3)
        if isinstance(value, tuple):
            return normal(*value, dtype=setting.dtype).requires_grad_()
        return value.cuda() if isinstance(value, Tensor) else value

    options = {name: move(value) for name, value in setting.options.items()}
    return Setting(options, setting.dtype, setting.key_dim, setting.value_dim, setting.queries, setting.keys)


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


@pytest.mark.parametrize("name", ["plain", "causal", "union", "sinks", "softcap", "float32"])
def test_statistics_pooling_and_largest_weights_match_the_equation(name):
    setting = on_gpu(SETTINGS[name])
    setting.queries, setting.keys = 512, 1024
    tensors = [t.detach() for t in setting.tensors()]
    weights = attention(*tensors, **setting.options, return_weights=True)[1]
    exact, single = (setting.plain(tensors, dtype) for dtype in (torch.float64, torch.float32))
    logs = float(exact["lse"].nan_to_num(neginf=0).abs().max()) + math.log(1024)
    observed = weights.observe(entropy=True, received=True, distance=True, pool=(32, 16), top=8)
    for key in ("entropy", "received", "distance"):
        size = float(exact[key].abs().max()) * logs
        assert_matches(getattr(observed, key).cpu(), exact[key].cpu(), single[key].cpu(), scale=size)
    for reduce, pooled in (
        ("mean", adaptive_avg_pool2d),
        ("max", torch.nn.functional.adaptive_max_pool2d),
    ):
        for size in ((32, 16), (31, 17), (700, 3)):
            expected = pooled(exact["weights"], size)
            found = weights.pool(*size, reduce=reduce)
            torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-7)
            found = weights.observe(received=True, pool=size, reduce=reduce).pooled
            torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-7)
    window = weights.pool(9, 5, window=((100, 371), (3, 1000)))
    expected = adaptive_avg_pool2d(exact["weights"][:, :, 100:371, 3:1000], (9, 5))
    torch.testing.assert_close(window.double(), expected, rtol=1e-4, atol=1e-7)
    largest = exact["weights"].topk(8).values
    top = observed.top
    torch.testing.assert_close(top.weights.double(), largest, rtol=1e-4, atol=1e-7)
    at_keys = exact["weights"].gather(-1, top.keys.clamp(min=0)) * (top.keys >= 0)
    torch.testing.assert_close(at_keys, largest, rtol=1e-4, atol=1e-7)


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


@pytest.mark.parametrize("mask", [None, Causal(), UNION], ids=str)
@pytest.mark.parametrize(("mean", "heads"), [(False, HEADS), (False, 1), (True, 1)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_divergence_and_its_gradients_match_the_equation(dtype, mean, heads, mask):
    query, key = normal(2, HEADS, 300, 64, dtype=dtype), normal(2, KV_HEADS, 300, 64, seed=1, dtype=dtype)
    leaves = [normal(2, count, 300, 32, seed=seed, dtype=dtype) for seed, count in ((2, heads), (3, 1))]
    cotangent = normal(2, 1 if mean else HEADS, 300, seed=4)

    def run(cast: torch.dtype) -> list[Tensor]:
        backend = "triton" if cast == dtype else "reference"
        pair = [leaf.detach().to(cast).requires_grad_() for leaf in leaves]
        tensors = (query.to(cast), key.to(cast), key.to(cast))
        teacher = attention(*tensors, mask=mask, return_weights="keep_qk", backend=backend)[1]
        student = attention(*pair, pair[1].detach(), mask=mask, return_weights="keep_qk", backend=backend)[1]
        result = (teacher.mean_heads() if mean else teacher).kl(student)
        gradients = torch.autograd.grad(result, pair, cotangent.to(result.dtype))
        return [tensor.detach().cpu() for tensor in (result, *gradients)]

    got, exact, single = (run(cast) for cast in (dtype, torch.float64, torch.float32))
    # a divergence adds logarithms of weights, up to 20; gradients are differences
    for tensor, truth, plain, terms in zip(got, exact, single, (20, 4, 4), strict=True):
        assert_matches(tensor, truth, plain.to(tensor.dtype), scale=terms * max(1.0, float(truth.abs().max())))


@pytest.mark.parametrize("queries", [1, 64])
def test_log_sum_exp_does_not_drift_over_many_tiles(queries):
    """A rounding error in each step of the online softmax would add up to 1e-3 here."""
    query, key = normal(1, 2, queries, 64, dtype=torch.float16), normal(1, 1, 2**17, 64, dtype=torch.float16)
    _, weights = attention(3 * query, key, key, return_weights="keep_qk", backend="triton")
    exact = torch.logsumexp(3 * query.double() @ key.double().mT / 8, dim=-1)
    torch.testing.assert_close(weights.lse.double(), exact, rtol=0, atol=3e-5)


@pytest.mark.parametrize("shape", [(0, 7), (7, 0), (1, 1)])
def test_empty_and_single_cell_matrices_are_supported(shape):
    query, key = normal(2, 4, shape[0], 16), normal(2, 4, shape[1], 16)
    output, weights = attention(query, key, key, return_weights=True)
    observed = weights.observe(entropy=True, received=True, distance=True, top=2, pool=(3, 3))
    assert output.shape == query.shape
    assert observed.top is not None
    assert observed.top.keys.shape == (2, 4, shape[0], 2)
    assert observed.pooled is not None
    assert observed.pooled.isfinite().all()


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


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_rows_sum_to_one_in_float32(precision):
    """For both settings of torch's float32 matmul precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        tensors = [normal(1, 2, 500, 64, seed=i) for i in range(3)]
        _, weights = attention(*tensors, return_weights=True, backend="triton")
        rows, columns = weights[0].sum(dim=-1), weights.received().sum(dim=-1) / 500
    finally:
        torch.set_float32_matmul_precision(before)
    for sums in (rows, columns):
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=1e-5 if precision == "highest" else 1e-3, atol=0)


@pytest.mark.parametrize("mask", [None, Causal(), UNION], ids=repr)
def test_part_and_hiding_match_indexing(mask):
    """The viewer uses parts of the queries, and hidden keys."""
    query, key, value = (tensor.detach() for tensor in Setting().tensors())
    _, weights = attention(query, key, value, mask=mask, return_weights=True)
    part = weights.part(heads=[1, 4], queries=slice(100, 300))
    expected = weights[:, :, 100:300][:, [1, 4]]
    torch.testing.assert_close(part.pool(200, KEYS), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(part.received(), expected.sum(dim=2), rtol=0, atol=1e-3)
    hidden = weights.hiding([0, KEYS - 1])
    masked = weights.dense().clone()
    masked[..., [0, KEYS - 1]] = 0
    for reduce, pooled in (("max", torch.nn.functional.adaptive_max_pool2d), ("mean", adaptive_avg_pool2d)):
        torch.testing.assert_close(hidden.pool(64, 64, reduce=reduce), pooled(masked, (64, 64)), rtol=0, atol=1e-5)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [(1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (32, 32), (2, 8), (16, 4)], ids=str)
def test_bins_of_any_size_match_indexing(size, dtype):
    """Each size compiles to a different kernel, and Triton has miscompiled some of them."""
    query, key = (normal(1, 2, 256, 64, seed=seed, dtype=dtype) for seed in range(2))
    weights = attention(query, key, key, return_weights=True)[1]
    rows, keys = (256 // length for length in size)
    cells = weights.dense().double().view(1, 2, rows, size[0], keys, size[1])
    torch.testing.assert_close(weights.pool(rows, keys, reduce="max").double(), cells.amax((3, 5)), rtol=0, atol=1e-6)
    torch.testing.assert_close(weights.pool(rows, keys).double(), cells.mean((3, 5)), rtol=0, atol=1e-6)


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
