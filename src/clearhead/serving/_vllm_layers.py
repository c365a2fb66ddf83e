"""Layers and caches of vLLM as clearhead describes them."""

# pyright: reportMissingImports=false
from __future__ import annotations

import functools
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from clearhead.serving._vllm_backends import FULL_PRECISION_CACHES, OBSERVED
from clearhead.serving.layers import ServedLayer
from clearhead.serving.paged import PagedCache

HALF = 128  # integers up to 256 are exact in bfloat16


def observed_attention_layers(config: Any) -> list[tuple[str, Any]]:
    """Return the names and attention modules of the observed layers, in the order in which the model built them."""
    layers = config.compilation_config.static_forward_context
    return [
        (name, layer)
        for name, layer in layers.items()
        if hasattr(getattr(layer, "impl", None), "clearhead_arguments")
        and layer.impl.clearhead_arguments.get("attn_type", "decoder") == "decoder"
    ]


def check_attention(name: str, layer: Any) -> None:
    """Raise for a layer with attention that `ServedLayer` does not describe."""
    given, backend = layer.impl.clearhead_arguments, layer.attn_backend
    dtype = given.get("kv_cache_dtype", "auto")
    if dtype not in FULL_PRECISION_CACHES:
        raise ValueError(f"the KV cache of {name} is quantized ({dtype}); expected the dtype of the model")
    # chunked local attention, static sinks and prefix language models derive builders that change the block table
    # or the mask
    if OBSERVED not in vars(backend.get_builder_cls()):
        raise ValueError(f"the attention backend of {name} is {backend.__name__}; expected causal or sliding attention")
    if given.get("use_alibi_sqrt") or given.get("chunk_lookback", -1) > -1:
        raise ValueError(f"{name} has square roots in ALiBi or chunks; expected causal or sliding attention")


def served_layer(index: int, name: str, impl: Any) -> ServedLayer:
    """Return the options of a layer, from the arguments that its implementation was built with."""
    given = impl.clearhead_arguments
    # the tensor of the implementation is on its device
    slopes, sinks = getattr(impl, "alibi_slopes", given.get("alibi_slopes")), getattr(impl, "sinks", None)
    return ServedLayer(
        index,
        name,
        given["num_heads"],
        given["num_kv_heads"] or given["num_heads"],
        float(given["scale"]),
        given.get("logits_soft_cap") or None,  # vLLM writes 0 for no soft cap
        given.get("sliding_window"),
        None if slopes is None else torch.as_tensor(slopes, dtype=torch.float32),
        None if sinks is None else sinks.detach(),
    )


def paged_cache(layer: Any, cache: Tensor) -> PagedCache:
    """Return the keys and values of a cache [blocks, kv_heads, block, 2 · d]."""
    if cache.device.type != "cpu":
        return PagedCache.interleaved(cache)
    _, _, block, columns = cache.shape
    return PagedCache.halves(cache, _cpu_key_order(layer.isa, cache.dtype, block, columns // 2))


@functools.cache
def _cpu_key_order(isa: str, dtype: torch.dtype, block: int, key_dim: int) -> Int[Tensor, " packed"]:
    """Return the index in a block of each (token, dim) of its keys, which depends on the instruction set.

    It is measured: keys that contain their index are written to a block. bfloat16 cannot represent all indices, so the
    quotients and the remainders by 128 are written one after the other.
    """
    count = block * key_dim
    indices = torch.arange(count)
    stored = HALF * _written_keys(indices // HALF, isa, dtype, block, key_dim) + _written_keys(
        indices % HALF, isa, dtype, block, key_dim
    )
    order = torch.empty(count, dtype=torch.long)
    order[stored] = indices
    if not torch.equal(stored.sort().values, indices):
        raise ValueError(f"the keys of vLLM's CPU backend ({isa}) are not a permutation; expected {count} numbers")
    return order


def _written_keys(keys: Tensor, isa: str, dtype: torch.dtype, block: int, key_dim: int) -> Int[Tensor, " packed"]:
    from vllm import _custom_ops

    if int(keys.max()) > 2 * HALF:
        raise ValueError(f"block · key_dim is {block * key_dim}; expected at most {2 * HALF * HALF}")
    cache = torch.zeros(1, 1, 2 * block, key_dim, dtype=dtype)
    key_half, value_half = cache.chunk(2, dim=2)
    rows = keys.view(block, 1, key_dim).to(dtype)
    slots = torch.arange(block)
    _custom_ops.cpu_attn_reshape_and_cache(
        rows, rows.clone(), key_half, value_half, slots, isa, k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto"
    )
    return key_half.flatten().round().long()
