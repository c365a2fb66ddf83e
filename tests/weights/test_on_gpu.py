"""Tests of statistics, heatmaps and divergences by compiled kernels at real sizes, on a GPU.

`pytest -m gpu tests/weights/test_on_gpu.py`
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from clearhead import Causal, Dense, Padding, attention
from support.gpu_calls import HEADS, KEYS, KV_HEADS, SETTINGS, UNION, Setting, normal, on_gpu
from support.numerics import assert_matches

pytestmark = [
    pytest.mark.gpu,
    # of torch.special.entr, if several processes create the folder at the same time
    pytest.mark.filterwarnings("ignore:Specified kernel cache directory could not be created"),
]


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


KERNELS = {  # backend, queries, dtype and mask
    "cudnn": ("sdpa", 160, torch.bfloat16, None),
    "flash": ("sdpa", 100, torch.bfloat16, None),
    "efficient": ("sdpa", 100, torch.float16, Padding([160, 150])),
    "triton": ("triton", 160, torch.bfloat16, None),
    "triton float32": ("triton", 160, torch.float32, Padding([160, 150])),
    "triton decoding": ("triton", 5, torch.bfloat16, None),
}
TRITON = [name for name in KERNELS if name.startswith("triton")]


@pytest.mark.parametrize(
    ("kernel", "source"),
    [(kernel, source) for source in ("query", "key") for kernel in KERNELS]
    + [(kernel, "bias") for kernel in ("cudnn", *TRITON)]
    + [(kernel, "sinks") for kernel in TRITON],
)
def test_statistics_of_rows_with_nan_are_nan(kernel, source):
    backend, queries, dtype, mask = KERNELS[kernel]
    tensors = {
        "query": normal(2, 4, queries, 64, dtype=dtype),
        "key": normal(2, 4, 160, 64, seed=1, dtype=dtype),
        "value": normal(2, 4, 160, 64, seed=2, dtype=dtype),
    }
    tensors |= {"bias": normal(2, 4, queries, 160, dtype=dtype)} if source == "bias" else {}
    tensors |= {"sinks": normal(4)} if source == "sinks" else {}
    cells = {"query": (0, 1, 3, 2), "key": (0, 1, 9, 2), "bias": (0, 1, 3, 9), "sinks": (1,)}
    rows = {"query": (0, 1, 3), "key": (0, 1), "bias": (0, 1, 3), "sinks": (slice(None), 1)}
    tensors[source][cells[source]] = math.nan
    weights = attention(**tensors, mask=mask, return_weights="keep_qk", backend=backend)[1]
    reached = torch.zeros(2, 4, queries, dtype=torch.bool, device="cuda")
    reached[rows[source]] = True
    observed = weights.observe(entropy=True, peak=True, distance=True)
    for name in ("entropy", "peak", "distance"):
        assert torch.equal(getattr(observed, name).isnan(), reached), name
    assert weights.attending().all()


@pytest.mark.parametrize("case", ["mean", "one head", "teacher", "sinks", "softcap", "scale", "mask", "dtype"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_mean_of_divergences_and_its_gradients_match_the_equation(dtype, case):
    """All rows have the same factor. The cases differ from a fixed teacher with the same mask and dtype."""
    mask = Causal()
    if case == "mask":
        visible = torch.rand(300, 300, device="cuda").fill_diagonal_(1) > 0.3
        mask = Dense(visible.tril())
    count = 1 if case == "one head" else HEADS
    shapes = [(HEADS, 64), (KV_HEADS, 64), (count, 32), (count, 32)]
    tensors = [normal(2, n, 300, width, seed=i, dtype=dtype) for i, (n, width) in enumerate(shapes)]

    def run(cast: torch.dtype) -> list[Tensor]:
        backend = "auto" if cast == dtype else "reference"
        leaves = [tensor.to(cast).requires_grad_() for tensor in tensors]
        teacher, student = ([query, key, key.detach()] for query, key in (leaves[:2], leaves[2:]))
        if case != "teacher":
            teacher, leaves = [tensor.detach() for tensor in teacher], leaves[2:]
        if case == "dtype" and cast == torch.bfloat16:
            teacher = [tensor.float() for tensor in teacher]
        options = {
            "sinks": {"sinks": normal(HEADS, dtype=dtype).to(cast)},
            "softcap": {"softcap": 3.0},
            "scale": {"scale": -0.3},
        }
        first = attention(*teacher, mask=Causal(), return_weights="keep_qk", backend=backend)[1]
        _, second = attention(*student, mask=mask, **options.get(case, {}), return_weights="keep_qk", backend=backend)
        result = first.kl(second, ignore=case == "mask")
        gradients = torch.autograd.grad(1000 * result.mean(), leaves)
        return [tensor.detach().cpu() for tensor in (result, *gradients)]

    got, exact, single = (run(cast) for cast in (dtype, torch.float64, torch.float32))
    terms = [20] + [4] * (len(got) - 1)  # logarithms of weights; gradients are differences
    for tensor, truth, plain, size in zip(got, exact, single, terms, strict=True):
        assert_matches(tensor, truth, plain.to(tensor.dtype), scale=size * max(1.0, float(truth.abs().max())))
