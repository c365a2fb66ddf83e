"""Our own kernels, in Triton's interpreter where there is no GPU: over many tiles, every mask, every option."""

import pytest
import torch
from hypothesis import given, settings

from clearhead import ALiBi, Causal, Dense, Documents, Padding, Prefix, Window, attention, kernels
from clearhead.kernels import triton_backend
from clearhead.kernels.operation import Inputs
from clearhead.kernels.triton_blocks import seen_by
from clearhead.kernels.triton_tiles import HALF, SINGLE, Tile, tile_for
from clearhead.posing import pose
from strategies import cases
from test_attention import check_forward, check_gradients

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, KEY_DIM, VALUE_DIM = 2, 4, 2, 37, 53, 5, 19
DENSE = torch.rand((BATCH, 1, QUERIES, KEYS), generator=torch.Generator().manual_seed(1)) < 0.5
MASKS = [
    None,
    Causal(),
    Window(before=20, after=3),
    Window(before=2),
    Padding([40, 0]),
    Documents([[7, 30], [53]]),
    Prefix(33),
    Window(before=3) | (Causal() & Prefix(4)),
    Dense(DENSE),
    Dense(DENSE) & Causal(),
]


@given(case=cases((torch.float32, torch.bfloat16, torch.float16)))
@settings(max_examples=50)
def test_forward(case):
    check_forward(case, "triton")


@given(case=cases((torch.float32, torch.bfloat16)))
@settings(max_examples=30)
def test_gradients(case):
    check_gradients(case, "triton")


def both(backend, options, mask):
    """Output, log-sum-exp, gradients and statistics of a problem of many tiles."""
    generator = torch.Generator().manual_seed(2)
    shapes = ((BATCH, HEADS, QUERIES, KEY_DIM), (BATCH, KV_HEADS, KEYS, KEY_DIM), (BATCH, KV_HEADS, KEYS, VALUE_DIM))
    tensors = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    output, weights = attention(*tensors, mask=mask, **options, return_weights=True, backend=backend)
    output.backward(torch.randn(output.shape, generator=generator))
    if backend == "triton":
        problem = pose(*tensors, mask=mask, **options).map(torch.Tensor.detach)
        seen = triton_backend.observe(problem, weights.lse, entropy=True, received=True, distance=True)
    else:
        seen = weights.observe(entropy=True, received=True, distance=True)
    empty = weights.lse == -torch.inf
    lse = torch.where(empty, 0.0, weights.lse)
    return [output, empty.float(), lse, *(t.grad for t in tensors), seen.entropy, seen.received, seen.distance]


OPTIONS = {
    "sinks": {"sinks": torch.linspace(-1, 1, HEADS)},
    "softcap": {"softcap": 1.5},
    "alibi": {"bias": ALiBi(torch.linspace(0.1, 1, HEADS))},
    "bias": {"bias": torch.linspace(-1, 1, KEYS)},
    "starts": {"query_start": torch.tensor([3, -20])},
}


@pytest.mark.parametrize(
    ("mask", "options"),
    [*((mask, {}) for mask in MASKS), *((Window(before=20), options) for options in OPTIONS.values())],
    ids=[*map(repr, MASKS), *OPTIONS],
)
def test_every_mask_and_option_over_many_tiles(mask, options):
    for ours, theirs in zip(both("triton", options, mask), both("streaming", options, mask), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_same_weights_are_dropped():
    tensors = [torch.randn(2, 3, 37, 7, requires_grad=True) for _ in range(3)]
    found = {}
    for name in ("triton", "reference"):
        torch.manual_seed(7)
        output = attention(*tensors, dropout=0.3, backend=name)
        found[name] = [output, *torch.autograd.grad(output.square().sum(), tensors)]
    for ours, theirs in zip(*found.values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_gradients_of_slopes_and_sinks():
    tensors = [torch.randn(2, 3, 23, 7) for _ in range(3)]
    found = []
    for name in ("triton", "reference"):
        slopes, sinks = (
            torch.rand(3, generator=torch.Generator().manual_seed(1)).requires_grad_(),
            torch.zeros(3).requires_grad_(),
        )
        output = attention(*tensors, bias=ALiBi(slopes), sinks=sinks, mask=Causal(), backend=name)
        found.append(torch.autograd.grad(output.square().sum(), [slopes, sinks]))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_any_strides():
    query, key, value = (torch.randn(2, 7, 20, 3).permute(0, 3, 2, 1)[:, :, ::2] for _ in range(3))
    expected = attention(query, key, value, backend="reference")
    torch.testing.assert_close(attention(query, key, value, backend="triton"), expected)


@pytest.mark.parametrize("mask", [mask for mask in MASKS if not isinstance(mask, Dense | None)], ids=repr)
def test_blocks_of_queries_that_see_a_block_of_keys(mask):
    """No block outside start … end sees a key, and every one of the run sees them all."""
    query, key = torch.randn(BATCH, HEADS, QUERIES, 1), torch.randn(BATCH, KV_HEADS, KEYS, 1)
    inputs = Inputs.of(pose(query, key, key, mask=mask), key)
    assert inputs.ranges is not None
    tile = Tile(8, 5, 4, 1)
    for number, places in enumerate(seen_by(inputs.ranges, KEYS, tile)):
        first, last = inputs.ranges[number]
        columns = torch.arange(KEYS)
        allowed = (first[..., None] <= columns) & (columns < last[..., None])  # [batch or 1, queries, keys]
        for b in range(allowed.shape[0]):
            for block in range(-(-KEYS // tile.keys)):
                start, full, partial, end = (int(part[min(b, part.shape[0] - 1), block]) for part in places)
                assert start <= full <= partial <= end or start >= end
                part = allowed[b][:, block * tile.keys : (block + 1) * tile.keys]
                rows = torch.arange(QUERIES) // tile.queries
                assert not part[(rows < start) | (rows >= end)].any()
                assert part[(rows >= full) & (rows < partial)].all()


def test_it_stands_in_a_compiled_graph():
    tensors = [torch.randn(1, 2, 19, 7, requires_grad=True) for _ in range(3)]
    compiled = torch.compile(
        lambda *t: attention(*t, mask=Causal(), backend="triton"), fullgraph=True, backend="aot_eager"
    )
    expected = attention(*tensors, mask=Causal(), backend="triton")
    assert torch.equal(compiled(*tensors), expected)
    torch._dynamo.reset()


def test_refusals():
    x = torch.randn(1, 2, 3, 300)
    reasons = triton_backend.refuse(pose(x.double(), x.double(), x[..., :4].double()))
    assert reasons == ["dtype torch.float64 is not float32, bfloat16 or float16", "key_dim 300 is not from 1 to 256"]
    assert "triton" in kernels.BACKENDS


def test_tiles_are_there_for_every_width(monkeypatch):
    monkeypatch.setattr("clearhead.kernels.triton_tiles.interpreted", lambda: False)
    for table in (HALF, SINGLE):
        assert table.keys() == HALF.keys()
    for kernel in HALF:
        for dim in (1, 16, 40, 64, 65, 128, 129, 256):
            for dtype in (torch.float32, torch.bfloat16):
                tile = tile_for(kernel, dtype, dim, q_len=1000)
                assert all(size >= 16 and size & (size - 1) == 0 for size in tile[:2])
    assert tile_for("forward", torch.bfloat16, 64, q_len=3).queries == 16
