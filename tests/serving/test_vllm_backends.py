"""Tests of the attention backends that replace those of vLLM, with stand-ins for its modules."""

import importlib
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import pytest
import torch

from clearhead.serving import _vllm_worker, plugin
from clearhead.serving._vllm_layers import check_attention, served_layer


class Attention:
    """Implementation of a backend of vLLM."""

    def __init__(self, num_heads, scale=1.0):
        pass

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output):
        return output


class Builder:
    """Builder of the metadata of a backend of vLLM."""

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        return SimpleNamespace()


class FlashAttention:
    """Backend of vLLM."""

    @classmethod
    def full_cls_name(cls):
        return cls.__module__, cls.__qualname__

    @staticmethod
    def get_impl_cls():
        return Attention

    @staticmethod
    def get_builder_cls():
        return Builder


class TritonAttention(FlashAttention):
    """Another backend."""


def resolve(path):
    """Return an object by its path, as vLLM does."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.fixture
def backends(monkeypatch):
    """Register two backends in a vLLM with a configuration, and return the latter."""
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(),
        cache_config=SimpleNamespace(cache_dtype="auto"),
        model_config=SimpleNamespace(),
        speculative_config=None,
        additional_config={"clearhead": {}},
    )
    modules = {
        "vllm.config": {"get_current_vllm_config_or_none": lambda: config},
        "vllm.utils.import_utils": {"resolve_obj_by_qualname": resolve},
        "vllm.v1.attention.backend": {"AttentionCGSupport": SimpleNamespace(NEVER="never")},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(_vllm_worker, "install", lambda: None)
    for name, original in {"FLASH_ATTN": FlashAttention, "TRITON_ATTN": TritonAttention}.items():
        monkeypatch.setitem(plugin._ORIGINALS, name, f"{__name__}.{original.__name__}")
    return config


@pytest.mark.parametrize("dtype", ["auto", "fp8"], ids=["observed", "unobserved"])
def test_names_of_backends_lead_to_them(backends, dtype):
    """CUDA platforms of vLLM import the chosen backend by its full name, and layers are grouped by it."""
    backends.cache_config.cache_dtype = dtype
    first, second = plugin.FLASH_ATTN, plugin.TRITON_ATTN
    assert (first.__base__, second.__base__) == (FlashAttention, TritonAttention)
    assert first.full_cls_name() != second.full_cls_name()
    for backend in (first, second):
        assert resolve(".".join(backend.full_cls_name())) is backend


def test_listeners_receive_the_block_table(backends):
    layer, calls = plugin.FLASH_ATTN.get_impl_cls()(7), []
    assert layer.clearhead_arguments == {"num_heads": 7, "scale": 1.0}
    layer.clearhead_listener = lambda *arguments: calls.append(arguments)
    common = SimpleNamespace(block_table_tensor="table")
    metadata = plugin.FLASH_ATTN.get_builder_cls()().build(0, common_attn_metadata=common)
    # vLLM may copy the known fields of metadata to another object, and profiles without metadata
    for each in (metadata, SimpleNamespace(), None):
        assert layer.forward(None, "query", "key", "value", "cache", each, output="output") == "output"
    assert calls == [("query", "cache", "table"), ("query", "cache", None)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, None),
        ({"kv_cache_dtype": "fp8"}, "KV cache of layers.3 is quantized"),
        ({"use_alibi_sqrt": True}, "layers.3 has square roots"),
        ({"chunk_lookback": 0}, "layers.3 has square roots in ALiBi or chunks"),
    ],
)
def test_layers_with_other_attention_are_refused(backends, arguments, message):
    impl = SimpleNamespace(clearhead_arguments=arguments)
    layer = SimpleNamespace(impl=impl, attn_backend=plugin.FLASH_ATTN)
    with nullcontext() if message is None else pytest.raises(ValueError, match=message):
        check_attention("layers.3", layer)


def test_builders_that_change_the_block_table_are_refused(backends):
    """Chunked local attention derives its backend from the observed one."""

    class ChunkedBuilder(plugin.FLASH_ATTN.get_builder_cls()):
        pass

    derived = type("Chunked", (plugin.FLASH_ATTN,), {"get_builder_cls": lambda: ChunkedBuilder})
    layer = SimpleNamespace(impl=SimpleNamespace(clearhead_arguments={}), attn_backend=derived)
    with pytest.raises(ValueError, match=r"backend of layers.0 is Chunked; expected causal"):
        check_attention("layers.0", layer)


def test_slopes_are_on_the_device_of_the_layer():
    slopes = torch.ones(2, device="meta")
    arguments = {"num_heads": 2, "num_kv_heads": 1, "scale": 1.0, "alibi_slopes": [1.0, 1.0]}
    impl = SimpleNamespace(clearhead_arguments=arguments, alibi_slopes=slopes, sinks=None)
    assert served_layer(0, "layers.0", impl).slopes.device == slopes.device
