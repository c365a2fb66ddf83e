"""Modules: multi-head attention, position encodings and key-value caches."""

from clearhead.nn.attention import MultiHeadAttention
from clearhead.nn.block_diagonal import BlockDiagonalLinear
from clearhead.nn.head import Head
from clearhead.nn.kv_cache import KVCache, KVCacheView
from clearhead.nn.rope import Rotary
from clearhead.nn.rope_scaling import LinearScaling, Llama3, RopeScaling, YaRN
from clearhead.nn.sinusoidal import sinusoidal
from clearhead.nn.windowed_kv_cache import WindowedKVCache

__all__ = [
    "BlockDiagonalLinear",
    "Head",
    "KVCache",
    "KVCacheView",
    "LinearScaling",
    "Llama3",
    "MultiHeadAttention",
    "RopeScaling",
    "Rotary",
    "WindowedKVCache",
    "YaRN",
    "sinusoidal",
]
