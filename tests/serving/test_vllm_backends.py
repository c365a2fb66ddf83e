"""Tests of the attention backends that replace those of vLLM, with stand-ins for its modules."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest

from clearhead.serving import _vllm_worker, plugin


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
