"""Tests of transposed products, span mass and gradients of weights in Triton, against plain torch over tiles."""

import pytest
import torch

from clearhead import ALiBi, Causal, Window, attention
from clearhead.ops.gradients import CellGradient
from clearhead.ops.spans import Spans
from clearhead.ops.statistics import StatisticsRequest
from clearhead.ops.tiled import backend as tiled
from clearhead.ops.triton import backend as triton
from support.parameters import slow_except
from support.triton_calls import BATCH, DENSE_CAUSAL, HEADS, KEY_DIM, KEYS, KV_HEADS, QUERIES, UNION, random

TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 3e-2}
OPTIONS = {
    "plain": {},
    "causal": {"mask": Causal()},
    "union": {"mask": UNION},
    "dense": {"mask": DENSE_CAUSAL},
    "softcap and sinks": {"softcap": 1.5, "sinks": torch.linspace(-1, 1, HEADS), "mask": Window(before=9)},
    "bias": {"bias": torch.linspace(-1, 1, KEYS)},
    "alibi": {"bias": ALiBi(torch.linspace(0.1, 1, HEADS)), "query_start": torch.tensor([3, -20])},
    "negative scale": {"scale": -0.5},
}
PRODUCTS = {f"float32, {name}": (torch.float32, options) for name, options in OPTIONS.items()} | {
    "bfloat16, causal": (torch.bfloat16, OPTIONS["causal"])
}


def weights_of(options, dtype=torch.float32):
    query = random(BATCH, HEADS, QUERIES, KEY_DIM, dtype=dtype)
    key = random(BATCH, KV_HEADS, KEYS, KEY_DIM, dtype=dtype, seed=1)
    return attention(query, key, key, return_weights="keep_qk", backend="streaming", **options)[1]


def assert_close(actual, expected, dtype):
    size = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0, atol=TOLERANCE[dtype] * size)


@pytest.mark.parametrize(("dtype", "options"), slow_except(PRODUCTS, "float32, causal", "float32, softcap and sinks"))
def test_transposed_product_matches_tiles(dtype, options):
    weights = weights_of(options, dtype)
    rows = random(BATCH, HEADS, QUERIES, 20, dtype=dtype, seed=2)
    expected = tiled.transposed_product(weights._call, weights.lse, rows)
    assert_close(triton.transposed_product(weights._call, weights.lse, rows), expected, dtype)


def test_transposed_product_of_many_columns_takes_several_launches():
    weights, rows = weights_of({}), random(BATCH, HEADS, QUERIES, 150, seed=2)
    expected = tiled.transposed_product(weights._call, weights.lse, rows)
    assert_close(triton.transposed_product(weights._call, weights.lse, rows), expected, torch.float32)


@pytest.mark.parametrize(
    "name", slow_except({"softcap and sinks": "softcap and sinks", "union": "union"}, "softcap and sinks")
)
def test_mass_of_spans_matches_tiles_in_float32(name):
    pairs = [(start, min(KEYS, start + 7)) for start in range(0, KEYS, 3)] + [(0, KEYS)] * 20  # more than one launch
    segments = torch.arange(BATCH * KEYS).view(BATCH, KEYS) % 5 - 1
    for dtype in TOLERANCE:
        weights = weights_of(OPTIONS[name], dtype)
        for spans in (Spans.checked(pairs), Spans.checked(segments)):
            request = StatisticsRequest(spans=spans)
            expected = tiled.statistics(weights._call, weights.lse, request).mass
            actual = triton.statistics(weights._call, weights.lse, request).mass
            assert_close(actual, expected, torch.float32)


ALL_TERMS = ("log", "distance", "left", "right")
GRADIENTS = {
    f"all terms, {name}": (OPTIONS[name], ALL_TERMS)
    for name in ("softcap and sinks", "union", "dense", "bias", "alibi")
} | {
    "log, causal": (OPTIONS["causal"], ("log",)),
    "distance, causal": (OPTIONS["causal"], ("distance",)),
    "product, causal": (OPTIONS["causal"], ("left", "right")),
    "none, causal": (OPTIONS["causal"], ()),
}


@pytest.mark.parametrize(("options", "terms"), slow_except(GRADIENTS, "all terms, softcap and sinks", "log, causal"))
def test_gradients_of_weights_match_tiles(options, terms):
    rows = (BATCH, HEADS, QUERIES)
    given = {
        "log": random(*rows, seed=3),
        "distance": random(*rows, seed=4) / KEYS,
        "left": random(*rows, 3, seed=5),
        "right": random(BATCH, KV_HEADS, KEYS, 3, seed=6),
    }
    gradient = CellGradient(random(*rows, seed=7), **{name: given[name] for name in terms})
    weights = weights_of(options)
    call, need_bias = weights._call, weights._call.tensor_bias is not None
    expected = tiled.score_gradients(call, weights.lse, gradient, need_bias)
    actual = triton.score_gradients(call, weights.lse, gradient, need_bias)
    for name in ("query", "key", "tensor_bias", "slopes", "sinks"):
        got, wanted = getattr(actual, name), getattr(expected, name)
        if wanted is None:
            assert got is None
        else:
            assert_close(got, wanted, torch.float32)
