"""Tests of the Triton kernels over many tiles, with every mask and option; without a GPU, in Triton's interpreter."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from triton.tools.tensor_descriptor import TensorDescriptor

from clearhead import ALiBi, Causal, Dense, Padding, Prefix, Window, attention
from clearhead.ops import dispatch, gpu
from clearhead.ops.arguments import build_call
from clearhead.ops.triton import backend as triton_backend
from clearhead.ops.triton import block_ranges, decode
from clearhead.ops.triton.block_ranges import transpose_block_ranges
from clearhead.ops.triton.config import TileConfig
from clearhead.ops.triton.logits import LogitParams, StridedTensor, row_reader
from support.backend_checks import check_forward, check_gradients
from support.numerics import Case
from support.parameters import slow_except
from support.peers import assert_agrees
from support.strategies import cases
from support.triton_calls import (
    BATCH,
    DENSE,
    HEADS,
    KEY_DIM,
    KEYS,
    KV_HEADS,
    MASKS,
    QUERIES,
    UNION,
    VALUE_DIM,
    check_statistics,
)


@pytest.fixture(params=["split over keys", pytest.param("one program per block", marks=pytest.mark.slow)])
def few_queries(request, monkeypatch):
    """Both kernels that support few queries: the decoding kernel and the usual one."""
    if request.param == "one program per block":
        monkeypatch.setattr(decode, "MAX_DECODING_QUERIES", 0)


@given(case=cases((torch.float32, torch.bfloat16, torch.float16)))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_forward_matches_the_equation(few_queries, case):
    check_forward(case, "triton")


@pytest.mark.slow
@given(case=cases((torch.float32, torch.bfloat16)))
@settings(max_examples=12)
def test_gradients_match_the_equation(case):
    check_gradients(case, "triton")


def by_reference(query, key, value, options=None):
    return attention(query, key, value, **(options or {}), backend="reference")


OPTIONS = {
    "sinks": {"sinks": torch.linspace(-1, 1, HEADS)},
    "softcap": {"softcap": 1.5},
    "alibi": {"bias": ALiBi(torch.linspace(0.1, 1, HEADS))},
    "bias": {"bias": torch.linspace(-1, 1, KEYS)},
    "starts": {"query_start": torch.tensor([3, -20])},
    "start 1": {"query_start": 1, "bias": ALiBi(torch.linspace(0.1, 1, HEADS))},
}


@pytest.mark.parametrize(
    ("mask", "options"),
    slow_except(
        {repr(mask): (mask, {}) for mask in MASKS}
        | {name: (Window(before=20), options) for name, options in OPTIONS.items()},
        repr(UNION),
        "alibi",
    ),
)
def test_every_mask_and_option_matches_over_many_tiles(mask, options):
    shapes = ((BATCH, HEADS, QUERIES, KEY_DIM), (BATCH, KV_HEADS, KEYS, KEY_DIM), (BATCH, KV_HEADS, KEYS, VALUE_DIM))
    case = Case(*map(torch.randn, shapes), mask, **options)
    check_forward(case, "triton")
    check_gradients(case, "triton")
    check_statistics(case)


def test_dropout_drops_the_same_weights_as_the_reference():
    tensors = [torch.randn(2, 3, 37, 7, requires_grad=True) for _ in range(3)]

    def dropped(*tensors, backend="reference"):
        torch.manual_seed(7)
        output = attention(*tensors, dropout=0.3, backend=backend)
        return [output, *torch.autograd.grad(output.square().sum(), tensors)]

    assert_agrees(dropped(*tensors, backend="triton"), dropped, *tensors)


def test_gradients_of_slopes_and_sinks_match_the_equation():
    tensors = [torch.randn(2, 3, 23, 7) for _ in range(3)]
    check_gradients(Case(*tensors, Causal(), ALiBi(torch.rand(3)), sinks=torch.zeros(3)), "triton")


@pytest.mark.parametrize("q_len", [3, 20])
def test_sinks_slopes_and_query_starts_may_have_any_strides(q_len):
    query, key = torch.randn(2, 4, q_len, 16), torch.randn(2, 4, 23, 16)
    choices = [
        {"sinks": torch.randn(4, 2)[:, 0]},
        {"sinks": torch.randn(1).expand(4)},
        {"bias": ALiBi(torch.rand(4, 2)[:, 0])},
        {"bias": ALiBi(torch.rand(4)), "query_start": torch.tensor(3)},
        {"bias": ALiBi(torch.rand(4)), "query_start": torch.tensor([3, 9, 5, 7])[::2]},
    ]
    for options in choices:
        assert_agrees(attention(query, key, key, **options, backend="triton"), by_reference, query, key, key, options)


@pytest.mark.parametrize("scale", [1e-46, -1e-46, 1e-30])
def test_scale_that_underflows_in_float32_matches_the_reference(scale):
    x = torch.randn(1, 2, 20, 16)
    options = {"mask": Causal(), "scale": scale}
    assert_agrees(attention(x, x, x, **options, backend="triton"), by_reference, x, x, x, options)


@pytest.mark.parametrize("q_len", [3, 20])
def test_lowest_finite_bias_is_not_minus_infinity(q_len):
    """Additive masks often contain this number: a row of it attends to all keys."""
    query, key = torch.randn(1, 2, q_len, 16), torch.randn(1, 2, 23, 16)
    bias = torch.where(torch.rand(q_len, 23) < 0.5, torch.finfo(torch.float32).min, 0.0)
    bias[1] = torch.finfo(torch.float32).min
    found = attention(query, key, key, bias=bias, backend="triton")
    assert_agrees(found, by_reference, query, key, key, {"bias": bias})
    assert (found[:, :, 1] != 0).all()


def test_empty_keys_give_zero_output():
    """The width would suit the copy engine, which does not support empty tensors."""
    query, key = torch.randn(2, 2, 20, 16), torch.randn(2, 2, 0, 16)
    assert (attention(query, key, key, backend="triton") == 0).all()


def test_inputs_may_have_any_strides():
    query, key, value = (torch.randn(2, 7, 20, 3).permute(0, 3, 2, 1)[:, :, ::2] for _ in range(3))
    assert_agrees(attention(query, key, value, backend="triton"), by_reference, query, key, value)


@pytest.mark.parametrize("mask", [mask for mask in MASKS if not isinstance(mask, Dense | None)], ids=repr)
def test_transposed_block_ranges_match_the_mask(mask):
    """No query block outside `[start, end)` attends to a key; those in `[full, partial)` attend to all keys."""
    query, key = torch.randn(BATCH, HEADS, QUERIES, 1), torch.randn(BATCH, KV_HEADS, KEYS, 1)
    call = build_call(query, key, key, mask=mask)
    ranges = call.ranges
    assert ranges is not None
    tile = TileConfig(8, 4, 4, 1)
    transposed = transpose_block_ranges(call, LogitParams.from_call(call), tile)
    assert transposed is not None
    for index, bounds in enumerate(transposed):
        first, last = ranges[index]
        columns = torch.arange(KEYS)
        allowed = (first[..., None] <= columns) & (columns < last[..., None])  # [batch or 1, queries, keys]
        for b in range(allowed.shape[0]):
            for block in range(-(-KEYS // tile.keys)):
                start, full, partial, end = (int(part[min(b, part.shape[0] - 1), block]) for part in bounds)
                assert start <= full <= partial <= end or start >= end
                part = allowed[b][:, block * tile.keys : (block + 1) * tile.keys]
                rows = torch.arange(QUERIES) // tile.queries
                assert not part[(rows < start) | (rows >= end)].any()
                assert part[(rows >= full) & (rows < partial)].all()


def test_transposed_block_ranges_are_computed_once_for_a_mask(monkeypatch):
    computed = []
    transpose = block_ranges._transpose_ranges
    monkeypatch.setattr(block_ranges, "_transpose_ranges", lambda *a: computed.append(a) or transpose(*a))
    query, mask = torch.randn(1, 2, 37, 16, requires_grad=True), Causal()
    for _ in range(3):
        attention(query, query, query, mask=mask, backend="triton").sum().backward()
    assert len(computed) == 1
    attention(query[:, :, :19], query, query, mask=mask, backend="triton").sum().backward()
    assert len(computed) == 2


def test_gradients_by_torch_func_are_refused():
    x = torch.randn(1, 2, 5, 8)
    with pytest.raises(ValueError, match="gradients by torch.func are not supported"):
        torch.func.grad(lambda query: attention(query, x, x, backend="triton").sum())(x)


def test_compiled_graph_gives_the_same_bits():
    tensors = [torch.randn(1, 2, 19, 7, requires_grad=True) for _ in range(3)]
    compiled = torch.compile(
        lambda *t: attention(*t, mask=Causal(), backend="triton"), fullgraph=True, backend="aot_eager"
    )
    expected, output = attention(*tensors, mask=Causal(), backend="triton"), compiled(*tensors)
    assert torch.equal(output, expected)
    for got, wanted in zip(*(torch.autograd.grad(x.sum(), tensors) for x in (output, expected)), strict=True):
        assert torch.equal(got, wanted)
    torch._dynamo.reset()


def test_unsupported_dtype_and_key_dim_are_refused():
    x = torch.randn(1, 2, 3, 300)
    reasons = triton_backend.unsupported_reasons(build_call(x.double(), x.double(), x[..., :4].double()))
    assert reasons == [
        "dtype torch.float64 is not float32, bfloat16 or float16",
        "key_dim 300 is not between 1 and 256",
    ]
    assert "triton" in dispatch.BACKENDS


DECODED = {
    "plain": {},
    "ragged": {"mask": Padding([300, 61])},
    "empty row": {"mask": Padding([0, 300])},
    "causal": {"mask": Causal(), "query_start": torch.tensor([40, 200])},
    "window": {"mask": Window(before=70)},
    "union": {"mask": Window(before=3) | (Causal() & Prefix(4))},
    "dense": {"mask": Dense(torch.rand((2, 4, 3, 300), generator=torch.Generator().manual_seed(3)) < 0.3)},
    "alibi": {"bias": ALiBi(torch.linspace(0.01, 0.1, 4)), "softcap": 2.0},
    "bias": {"bias": torch.linspace(-1, 1, 2 * 4 * 3 * 300).view(2, 4, 3, 300)},
    "sinks": {"sinks": torch.linspace(-1, 1, 4), "mask": Padding([300, 0])},
}


@pytest.mark.parametrize("options", slow_except(DECODED, "causal", "union", "alibi", "sinks"))
def test_decoding_matches_the_equation(options):
    """Merges many pieces of keys, some of them empty; heads that share keys run in one program."""
    query = torch.randn(2, 4, 3, 16)
    key, value = torch.randn(2, 2, 300, 16), torch.randn(2, 2, 300, 19)
    check_forward(Case(query, key, value, **options), "triton")


def test_dropout_in_decoding_matches_the_reference():
    query, key = torch.randn(2, 4, 3, 16), torch.randn(2, 2, 200, 16)

    def dropped(query, key, backend="reference"):
        torch.manual_seed(7)
        return attention(query, key, key, dropout=0.3, backend=backend)

    assert_agrees(dropped(query, key, "triton"), dropped, query, key)


@pytest.mark.parametrize(
    ("shape", "mask"),
    slow_except(
        {
            "per cell": ((2, 2, 19, 23), None),
            "per head": ((1, 2, 19, 23), Dense(DENSE[..., :19, :23])),
            "per text": ((2, 1, 19, 23), UNION),
            "per key": ((1, 1, 1, 23), Causal()),
            "per query": ((2, 1, 19, 1), Window(before=4)),
            "one number": ((1, 1, 1, 1), Causal()),
        },
        "per text",
        "per key",
    ),
)
def test_gradient_of_a_bias_matches_the_equation(shape, mask):
    tensors = [torch.randn(2, 2, 19, 16), torch.randn(2, 1, 23, 16), torch.randn(2, 1, 23, 5)]
    bias = torch.linspace(-1, 1, math.prod(shape)).view(shape)
    check_gradients(Case(*tensors, mask, bias, softcap=3.0), "triton")


@pytest.mark.parametrize("dim", [16, 24])
def test_rows_loaded_by_the_copy_engine_match_the_equation(dim):
    """Rows of a multiple of 16 bytes in half precision are loaded by descriptors, padded to a power of 2."""
    tensors = [torch.randn(1, 2, 37, dim, dtype=torch.bfloat16) for _ in range(3)]
    assert isinstance(row_reader(tensors[0], 16), TensorDescriptor)
    assert isinstance(row_reader(tensors[0][..., 1:], 16), StridedTensor)
    assert isinstance(row_reader(tensors[0].float(), 16), StridedTensor)
    check_forward(Case(*tensors, Window(before=9)), "triton")
    check_gradients(Case(*tensors, Window(before=9)), "triton")


def test_gpus_without_wgmma_load_rows_by_pointers(monkeypatch):
    tensor = torch.randn(1, 2, 37, 16, dtype=torch.bfloat16)
    for capability in ((8, 0), (8, 9), (12, 0)):
        monkeypatch.setitem(gpu._GPUS, torch.device("cpu"), gpu.GPU(capability, 101_376))
        assert isinstance(row_reader(tensor, 16), StridedTensor)
