"""Attention calls that span several tiles, for tests of the Triton kernels, and a check of their statistics."""

import math

import torch

from clearhead import Causal, Dense, Documents, Padding, Prefix, Window, attention
from clearhead.ops.arguments import build_call
from clearhead.ops.statistics import StatisticsRequest
from clearhead.ops.triton import backend as triton_backend
from support.numerics import Case, assert_matches

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, KEY_DIM, VALUE_DIM = 2, 4, 2, 37, 53, 5, 19
DENSE = torch.rand((BATCH, 1, QUERIES, KEYS), generator=torch.Generator().manual_seed(1)) < 0.5
UNION = Window(before=3) | (Causal() & Prefix(4))
DENSE_CAUSAL = Dense(DENSE) & Causal()
MASKS = [
    None,
    Causal(),
    Window(before=20, after=3),
    Window(before=2),
    Padding([40, 0]),
    Documents([[7, 30], [53]]),
    Prefix(33),
    UNION,
    Dense(DENSE),
    DENSE_CAUSAL,
]


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check_statistics(case: Case) -> None:
    """Assert that entropy, received attention and distance are accurate."""
    exact, naive = case.exact(), case.statistics()
    logs = case.terms + math.log(2 + case.shape[3])  # size of the log weights in an entropy
    lse = attention(**case.arguments, return_weights=True, backend="streaming")[1].lse
    request = StatisticsRequest(entropy=True, received=True, distance=True)
    seen = triton_backend.statistics(build_call(**case.arguments), lse, request)
    for name in ("entropy", "received", "distance"):
        size = max(1.0, float(abs(exact[name]).max()))
        assert_matches(getattr(seen, name), exact[name], naive[name], scale=logs * size)
