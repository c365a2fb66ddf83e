"""Random attention calls for hypothesis. Sizes are distinct primes, so that a swapped axis fails."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from clearhead import ALiBi
from clearhead.ops.masks import Causal, Dense, Documents, Mask, Padding, Prefix, Window
from support.numerics import Case

BATCHES, KV_HEADS, GROUPS = (1, 2), (1, 3), (1, 2)
LENGTHS, DIMS = (1, 5, 7, 11, 17), (3, 13)


def masks(batch: int, heads: int, q_len: int, kv_len: int, *, depth: int = 2) -> st.SearchStrategy[Mask]:
    """Return a strategy for masks, combined up to `depth` times by `&` and `|`."""
    lengths = st.lists(st.integers(0, kv_len + 2), min_size=batch, max_size=batch)
    documents = st.lists(st.integers(0, kv_len), min_size=1, max_size=4).filter(
        lambda lengths: q_len < kv_len or sum(lengths) <= kv_len
    )
    leaves = st.one_of(
        st.just(Causal()),
        st.builds(Window, st.integers(0, kv_len), st.integers(0, 3)),
        st.builds(Padding, lengths),
        st.builds(Padding.left, lengths),
        st.builds(Documents, documents, strict=st.just(False)),
        st.builds(Documents, st.lists(documents, min_size=batch, max_size=batch)),
        st.builds(Prefix, st.integers(0, kv_len + 1)),
        st.builds(_dense, st.integers(0, 2**31), st.sampled_from([1, batch]), st.sampled_from([1, heads])).map(
            lambda draw: Dense(draw(q_len, kv_len))
        ),
    )
    if depth == 0:
        return leaves
    inner = masks(batch, heads, q_len, kv_len, depth=depth - 1)
    pairs = st.tuples(inner, inner, st.booleans()).map(lambda p: p[0] & p[1] if p[2] else p[0] | p[1])
    return st.one_of(leaves, pairs)


def _dense(seed: int, batch: int, heads: int):
    def draw(q_len: int, kv_len: int) -> Tensor:
        return torch.rand((batch, heads, q_len, kv_len), generator=torch.Generator().manual_seed(seed)) < 0.6

    return draw


@st.composite
def cases(draw: st.DrawFn, dtypes: tuple[torch.dtype, ...] = (torch.float32,), *, plain: bool = False) -> Case:
    """Draw a random case. `plain` restricts it to features that torch's fused kernels support."""
    batch, kv_heads, group = (draw(st.sampled_from(sizes)) for sizes in (BATCHES, KV_HEADS, GROUPS))
    heads = kv_heads * group
    q_len, kv_len = draw(st.sampled_from(LENGTHS)), draw(st.sampled_from(LENGTHS))
    key_dim = draw(st.sampled_from(DIMS))
    value_dim = key_dim if plain else draw(st.sampled_from((2, *DIMS)))
    dtype = draw(st.sampled_from(dtypes))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    inputs = (
        draw(st.sampled_from((0.5, 1.0, 3.0))) * normal(batch, heads, q_len, key_dim),
        normal(batch, kv_heads, kv_len, key_dim),
        normal(batch, kv_heads, kv_len, value_dim),
    )
    if plain:
        hidden = st.lists(st.integers(0, kv_len), min_size=batch, max_size=batch)
        mask = draw(
            st.one_of(
                st.none(),
                st.just(Causal()),
                hidden.map(Padding),
                hidden.map(Padding.left),
                hidden.map(lambda lengths: Causal() & Padding(lengths)),
                hidden.map(lambda lengths: Padding.left(lengths) & Causal()),
            )
        )
        return Case(*inputs, mask, scale=draw(st.sampled_from((None, 0.25))), query_start=0)
    mask = draw(st.one_of(st.none(), masks(batch, heads, q_len, kv_len)))
    bias = draw(st.sampled_from(("none", "none", "tensor", "keys", "alibi")))
    start = draw(st.one_of(st.none(), st.integers(-3, kv_len + 2), st.just("each")))
    return Case(
        *inputs,
        mask,
        {
            "none": None,
            "tensor": normal(1, heads, q_len, kv_len),
            "keys": torch.where(torch.rand(kv_len, generator=generator) < 0.2, -torch.inf, normal(kv_len)),
            "alibi": ALiBi(normal(heads).abs()),
        }[bias],
        scale=draw(st.sampled_from((None, 0.25, 0.0, -1.0))),
        softcap=draw(st.sampled_from((None, 2.0))),
        sinks=normal(heads) if draw(st.booleans()) else None,
        query_start=torch.randint(-2, kv_len + 2, (batch,), generator=generator) if start == "each" else start,
    )
