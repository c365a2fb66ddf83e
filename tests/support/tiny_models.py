"""Tiny models of transformers with random weights, one per family, and their inputs."""

from collections.abc import Callable

import torch
import transformers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    ModernBertConfig,
    ModernBertModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTModel,
)

import clearhead.huggingface  # noqa: F401

transformers.logging.set_verbosity_error()
VOCABULARY, LENGTH = 99, 11
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WINDOW = 5

MAKERS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**GROUPED)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, pad_token_id=0, eos_token_id=2)
    ),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**GROUPED, sliding_window=WINDOW)),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**GROUPED, head_dim=8, sliding_window=WINDOW, query_pre_attn_scalar=8)
    ),
    "gpt-oss": lambda: GptOssForCausalLM(
        GptOssConfig(**GROUPED, head_dim=8, sliding_window=WINDOW, num_local_experts=2, num_experts_per_tok=1)
    ),
    "llama4": lambda: Llama4ForCausalLM(
        Llama4TextConfig(**GROUPED, head_dim=8, attention_chunk_size=4, num_local_experts=2, intermediate_size_mlp=32)
    ),
    "bert": lambda: BertModel(BertConfig(**SIZES)),
    "modernbert": lambda: ModernBertModel(
        ModernBertConfig(**SIZES, local_attention=6, global_attn_every_n_layers=2, pad_token_id=0)
    ),
    "t5": lambda: T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0,
            pad_token_id=0,
        )
    ),
    "bart": lambda: BartForConditionalGeneration(
        BartConfig(
            vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64,
            pad_token_id=0, decoder_start_token_id=2,
        )
    ),
    "vit": lambda: ViTModel(
        ViTConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=32,
            patch_size=8,
        )
    ),
}  # fmt: skip
DECODERS = ["llama", "gpt2", "mistral", "gemma2", "gpt-oss", "llama4"]
ENCODERS = ["bert", "modernbert"]
PAIRS = ["t5", "bart"]


def sharpened(maker: Callable[[], transformers.PreTrainedModel]) -> transformers.PreTrainedModel:
    """Return a model with random weights, whose attention is sharper than with the initial ones."""
    torch.manual_seed(0)
    model = maker().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4)
    return model


def make(name: str, implementation: str = "clearhead") -> transformers.PreTrainedModel:
    model = sharpened(MAKERS[name])
    model.set_attn_implementation(implementation)
    if name == "gpt-oss":
        model.set_experts_implementation("eager")  # the default does not support float64
    return model


def enable_checkpointing(model: transformers.PreTrainedModel, **options: bool) -> None:
    """Switch gradient checkpointing on, by the name of transformers ≥ 5.23 or the one of earlier versions."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable(options or None)


def inputs_for(name: str, padding: str | None = None) -> dict[str, torch.Tensor]:
    """Return a batch of two inputs. With padding, the first text is three tokens shorter."""
    generator = torch.Generator().manual_seed(1)
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 32, 32, generator=generator)}
    ids = torch.randint(3, VOCABULARY, (2, LENGTH), generator=generator)
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    if padding == "left":
        mask[0, :3] = 0
    elif padding == "right":
        mask[0, -3:] = 0
    inputs = {"input_ids": ids.where(mask.bool(), 0), "attention_mask": mask}
    return inputs | ({"decoder_input_ids": ids[:, :7]} if name in PAIRS else {})
