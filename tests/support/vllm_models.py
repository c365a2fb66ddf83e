"""Tiny models with random weights in the files of Hugging Face, one for each kind of attention that vLLM serves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

VOCABULARY = 211
WINDOW = 19
NOISE = 0.2  # of biases and weights of normalization
GAIN = 1.6  # of matrices, so that the scores of a layer have a standard deviation of 2 to 4


def _sizes(**sizes: Any) -> dict[str, Any]:
    common = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return common | {"intermediate_size": 48, "max_position_embeddings": 512} | tokens | sizes


def _gemma2() -> Any:
    """Use sliding and full layers in turn, a soft cap that bounds many scores, and a scale that is not head_dim⁻½."""
    from transformers import Gemma2Config

    sizes = _sizes(num_hidden_layers=4, num_key_value_heads=2, head_dim=32, sliding_window=WINDOW)
    return Gemma2Config(**sizes, query_pre_attn_scalar=20, attn_logit_softcapping=3.0, final_logit_softcapping=30.0)


def _gemma3() -> Any:
    """Use two kinds of layers, each with its rotary embedding, and normalized queries and keys."""
    from transformers import Gemma3TextConfig

    sizes = _sizes(num_hidden_layers=4, num_key_value_heads=1, head_dim=64, sliding_window=WINDOW)
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    return Gemma3TextConfig(**sizes, layer_types=kinds, query_pre_attn_scalar=24)


def _mistral() -> Any:
    """Use a sliding window in all layers."""
    from transformers import MistralConfig

    return MistralConfig(**_sizes(num_key_value_heads=2, head_dim=32, sliding_window=WINDOW))


def _gpt_oss() -> Any:
    """Use sinks, in sliding and full layers."""
    from transformers import GptOssConfig

    sizes = _sizes(num_key_value_heads=2, head_dim=32, sliding_window=WINDOW, intermediate_size=64)
    # all experts run for each token, because rounding would change a choice
    return GptOssConfig(**sizes, num_local_experts=2, num_experts_per_tok=2)


def _bloom() -> Any:
    """Use ALiBi, with a number of heads that is not a power of 2."""
    from transformers import BloomConfig

    return BloomConfig(vocab_size=VOCABULARY, hidden_size=192, n_layer=3, n_head=6, bos_token_id=1, eos_token_id=2)


def _gemma3n() -> Any:
    """Use keys and values of an earlier layer in the last two layers, one sliding and one full."""
    from transformers import Gemma3nTextConfig

    sizes = _sizes(num_hidden_layers=6, num_key_value_heads=2, head_dim=32, sliding_window=WINDOW)
    inputs = {"hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": VOCABULARY, "altup_num_inputs": 2}
    kinds = ["sliding_attention", "full_attention"] * 3
    layers = {"layer_types": kinds, "num_kv_shared_layers": 2, "activation_sparsity_pattern": [0.0] * 6}
    return Gemma3nTextConfig(**sizes, **inputs, **layers, laurel_rank=8)


CONFIGS: dict[str, Callable[[], Any]] = {
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3n": _gemma3n,
    "mistral": _mistral,
    "gpt-oss": _gpt_oss,
    "bloom": _bloom,
}


def save_model(kind: str, dtype: torch.dtype, folder: Path) -> None:
    """Write a model with random weights."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind](), attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if "embed_tokens_per_layer" in name:  # vLLM does not add these embeddings of Gemma 3n if the input is text
                parameter.zero_()
            elif name.endswith("sinks"):
                parameter.copy_(2 * noise)
            elif parameter.ndim == 1:  # biases, and weights of normalization
                parameter.add_(NOISE * noise)
            else:
                parameter.copy_(GAIN * parameter.shape[-1] ** -0.5 * noise)
    model.to(dtype).save_pretrained(folder)
