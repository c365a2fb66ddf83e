"""Attention backends of vLLM whose layers report each call, after the original has computed its output unchanged."""

# pyright: reportMissingImports=false
from __future__ import annotations

import functools
import inspect
import logging
from typing import Any, Protocol

from torch import Tensor

from clearhead.serving import plugin

logger = logging.getLogger("clearhead.serving")
# backends whose caches are read; they store keys and values of one token in a row of [blocks, kv_heads, block, 2 · d]
OBSERVABLE = ("CPU_ATTN", "FLASH_ATTN", "TRITON_ATTN", "FLASHINFER")
BLOCK_TABLE = "clearhead_block_table"  # attribute of attention metadata
OBSERVED = "clearhead_observed"  # attribute of builders that add the block table
FULL_PRECISION_CACHES = ("auto", "bfloat16", "float16", "half", "float", "float32")


class CallListener(Protocol):
    """Receiver of the attention calls of one layer."""

    def __call__(self, query: Tensor, kv_cache: Tensor, block_table: Tensor | None) -> None: ...


def observed_backend(name: str, original: Any, config: Any) -> Any:
    """Return a subclass of a backend that can be observed.

    If it cannot, return one that logs the reason when a layer uses it. vLLM also imports backends that it does not use.
    """
    attach_log_handler()
    reasons = unsupported_reasons(name, config)
    return _unobserved(name, original, "; ".join(reasons)) if reasons else _observed(name, original)


def unsupported_reasons(name: str, config: Any) -> list[str]:
    """Return why requests of an engine cannot be observed."""
    if config is None:
        return ["vLLM has no configuration"]
    parallel, cache = config.parallel_config, config.cache_config
    sizes = [f"{kind}_parallel_size" for kind in ("tensor", "pipeline", "decode_context", "prefill_context")]
    reasons = [
        f"{size} is {getattr(parallel, size)}; expected 1" for size in sizes if (getattr(parallel, size, 1) or 1) > 1
    ]
    if name not in OBSERVABLE:
        reasons.append(f"the attention backend is {name}; expected one of {', '.join(OBSERVABLE)}")
    if cache.cache_dtype not in FULL_PRECISION_CACHES:
        reasons.append(f"the KV cache is quantized ({cache.cache_dtype}); expected the dtype of the model")
    if config.speculative_config is not None:
        reasons.append("speculative decoding is on; expected it to be off")
    if getattr(config.model_config, "rswa_window", None) is not None:
        reasons.append("the model has reference sliding windows; expected causal or sliding attention")
    if getattr(cache, "kv_sharing_fast_prefill", False):
        reasons.append("kv_sharing_fast_prefill is on, which skips queries of some layers; expected it to be off")
    if getattr(parallel, "distributed_executor_backend", None) == "ray":
        reasons.append("the executor is ray, which calls the model runner directly; expected mp or uni")
    if getattr(parallel, "enable_dbo", False):
        reasons.append("dual-batch overlap is on; expected it to be off")
    return reasons


@functools.cache
def _observed(name: str, original: Any) -> Any:
    from clearhead.serving._vllm_worker import install  # its imports take seconds

    install()
    from vllm.v1.attention.backend import AttentionCGSupport

    class ObservedImpl(original.get_impl_cls()):
        """Attention of one layer. The listener is called after each call."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            arguments = inspect.signature(super().__init__).bind(*args, **kwargs)
            arguments.apply_defaults()
            self.clearhead_arguments: dict[str, Any] = dict(arguments.arguments)
            self.clearhead_listener: CallListener | None = None

        def forward(self, layer, query, key, value, kv_cache, attn_metadata, *args: Any, **kwargs: Any) -> Any:
            result = super().forward(layer, query, key, value, kv_cache, attn_metadata, *args, **kwargs)
            if self.clearhead_listener is not None and attn_metadata is not None:
                self.clearhead_listener(query, kv_cache, getattr(attn_metadata, BLOCK_TABLE, None))
            return result

    class ObservedBuilder(original.get_builder_cls()):
        """Builder of attention metadata, to which it adds the block table."""

        # a full CUDA graph would replay the attention without calling `forward`
        _cudagraph_support = AttentionCGSupport.NEVER

        @classmethod
        def get_cudagraph_support(cls, *args: Any, **kwargs: Any) -> AttentionCGSupport:
            return AttentionCGSupport.NEVER

        def build(self, common_prefix_len, common_attn_metadata, *args: Any, **kwargs: Any) -> Any:
            metadata = super().build(common_prefix_len, common_attn_metadata, *args, **kwargs)
            setattr(metadata, BLOCK_TABLE, common_attn_metadata.block_table_tensor)
            return metadata

        def update_block_table(self, metadata, blk_table, *args: Any, **kwargs: Any) -> Any:
            updated = super().update_block_table(metadata, blk_table, *args, **kwargs)
            setattr(updated, BLOCK_TABLE, blk_table)
            return updated

    class ObservedBackend(original):
        """Backend with the name and the capabilities of the original."""

        @staticmethod
        def get_impl_cls() -> Any:
            return ObservedImpl

        @staticmethod
        def get_builder_cls() -> Any:
            return ObservedBuilder

    setattr(ObservedBuilder, OBSERVED, True)
    return _importable(name, ObservedBackend)


@functools.cache
def _unobserved(name: str, original: Any, reason: str) -> Any:
    class UnobservedBackend(original):
        """Original backend, which logs why it is not observed."""

        @staticmethod
        def get_impl_cls() -> Any:
            log_once(f"clearhead observes no requests: {reason}")
            return original.get_impl_cls()

    return _importable(name, UnobservedBackend)


def _importable(name: str, backend: Any) -> Any:
    """Let module and name of a class lead to it. vLLM imports backends by them on GPUs, and groups layers by them."""
    backend.__module__, backend.__qualname__, backend.__name__ = plugin.__name__, name, name
    return backend


def attach_log_handler() -> None:
    """Let messages of clearhead appear in the log of the server, whose handlers serve vLLM's loggers only."""
    served = logging.getLogger("vllm")
    if not logger.handlers:
        for handler in served.handlers:
            logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = not served.handlers


@functools.cache
def log_once(message: str) -> None:
    """Log a warning, once per process."""
    logger.warning(message)
