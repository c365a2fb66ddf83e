"""Layers for each constructor option, for parametrized tests."""

import pytest
import torch

from clearhead import MultiHeadAttention
from clearhead.nn import Rotary

OPTIONS = {
    "defaults": {},
    "grouped": {"kv_heads": 3},
    "one key head": {"kv_heads": 1},
    "key_dim": {"key_dim": 7},
    "value_dim": {"value_dim": 11},
    "both": {"key_dim": 7, "value_dim": 11, "kv_heads": 2},
    "heads that do not divide": {"heads": 7, "key_dim": 3},
    "memory": {"kv_input_dim": 13},
    "memory, grouped": {"kv_input_dim": 13, "kv_heads": 3},
    "output_dim": {"output_dim": 17},
    "no bias": {"bias": False},
    "slices": {"split": "slice"},
    "slices, grouped": {"split": "slice", "kv_heads": 3, "key_dim": 7, "value_dim": 11},
    "slices of memory": {"split": "slice", "kv_input_dim": 18, "bias": False},
    "rope": {"key_dim": 8, "rope": True},
    "rope, interleaved": {"key_dim": 8, "rope": Rotary(base=50.0, layout="interleaved")},
    "rope, partly": {"key_dim": 7, "rope": Rotary(dims=4), "kv_heads": 2},
    "qk_norm": {"qk_norm": True},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 0.7},
    "sinks": {"sinks": True},
    "all": {
        "kv_heads": 3,
        "key_dim": 8,
        "value_dim": 11,
        "output_dim": 17,
        "rope": Rotary(base=100.0),
        "qk_norm": True,
        "scale": 0.9,
        "softcap": 2.0,
        "sinks": True,
    },
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def make(options: dict, dtype: torch.dtype = torch.float32) -> MultiHeadAttention:
    """Return a layer with d_model 30 and 6 heads. No parameter is left at 0 or 1."""
    layer = MultiHeadAttention(**({"d_model": 30, "heads": 6} | options), dtype=dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def inputs(layer: MultiHeadAttention, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """Return random inputs of a layer: x, and memory if its width differs."""
    x = torch.randn(2, 5, layer.d_model, dtype=dtype)
    needs_memory = layer.kv_input_dim != layer.d_model
    return (x, torch.randn(2, 7, layer.kv_input_dim, dtype=dtype)) if needs_memory else (x,)
