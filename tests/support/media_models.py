"""Tiny models of transformers with random weights that read pictures or sound, with processors built from code."""

import numpy as np
from transformers import (
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    SiglipConfig,
    SiglipModel,
    ViTConfig,
    ViTImageProcessorPil,
    ViTModel,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from support.tiny_models import sharpened
from support.tiny_tokenizer import tokenizer

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TEXT = {**SIZES, "vocab_size": 99, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
TOWER = {**SIZES, "image_size": 32, "patch_size": 8}
IMAGE_TOKEN = 10  # the first id after those of the tiny tokenizer

MAKERS = {
    "vit": lambda: ViTModel(ViTConfig(**{**TOWER, "image_size": (32, 48)})),
    "dinov2": lambda: Dinov2WithRegistersModel(
        Dinov2WithRegistersConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8,
            num_register_tokens=3,
        )
    ),
    "clip": lambda: CLIPModel(
        CLIPConfig(text_config={**TEXT, "max_position_embeddings": 16}, vision_config=TOWER, projection_dim=16)
    ),
    "siglip": lambda: SiglipModel(
        SiglipConfig(text_config={**TEXT, "max_position_embeddings": 16}, vision_config=TOWER)
    ),
    "llava": lambda: LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config={"model_type": "clip_vision_model", **TOWER, "projection_dim": 16},
            text_config={"model_type": "llama", **TEXT, "num_key_value_heads": 2},
            image_token_index=IMAGE_TOKEN,
        )
    ),
    "qwen2-vl": lambda: Qwen2VLForConditionalGeneration(
        Qwen2VLConfig(
            vision_config={
                "depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 4, "mlp_ratio": 2,
                "spatial_merge_size": 2, "temporal_patch_size": 2,
            },
            text_config={
                **TEXT, "num_key_value_heads": 2,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
            },
            image_token_id=IMAGE_TOKEN, vision_start_token_id=97, vision_end_token_id=96, video_token_id=95,
        )
    ),
    "qwen2.5-vl": lambda: Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            vision_config={
                "depth": 2, "hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 48, "num_heads": 4,
                "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 16,
                "fullatt_block_indexes": [1],
            },
            text_config={
                **TEXT, "num_key_value_heads": 2,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
            },
            image_token_id=IMAGE_TOKEN, vision_start_token_id=97, vision_end_token_id=96, video_token_id=95,
        )
    ),
    "whisper": lambda: WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=64, num_mel_bins=8, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_source_positions=50,
            max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=63, decoder_start_token_id=2,
            begin_suppress_tokens=[],
        )
    ),
}  # fmt: skip


def make(name: str) -> PreTrainedModel:
    model = sharpened(MAKERS[name])
    if name == "whisper":
        settings = {"alignment_heads": [[0, 1], [1, 2]], "no_timestamps_token_id": 50, "is_multilingual": False}
        settings |= {"suppress_tokens": list(range(50, 64)), "max_length": None}  # only ordinary tokens
        for key, value in settings.items():
            setattr(model.generation_config, key, value)
    return model


def image(height: int = 50, width: int = 70) -> np.ndarray:
    """Return a picture that is red on the left, blue on the right, and brighter below."""
    across, down = np.linspace(0, 1, width), np.linspace(0.2, 1, height)[:, None]
    channels = [(1 - across) * down, 0.3 * down * np.ones(width), across * down]
    return (255 * np.stack(channels, axis=2)).astype(np.uint8)


def vit_processor() -> ViTImageProcessorPil:
    return ViTImageProcessorPil(size={"height": 32, "width": 48})


def clip_processor() -> CLIPImageProcessorPil:
    return CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})


def llava_processor() -> LlavaProcessor:
    words = tokenizer()
    words.add_special_tokens({"additional_special_tokens": ["<image>"]})
    assert words.convert_tokens_to_ids("<image>") == IMAGE_TOKEN
    return LlavaProcessor(
        clip_processor(), words, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )


def sound(seconds: float = 0.6, rate: int = 16_000) -> np.ndarray:
    """Return a tone that becomes louder."""
    time = np.arange(int(seconds * rate)) / rate
    return (time / seconds * np.sin(2 * np.pi * 440 * time)).astype(np.float32)


def whisper_processor() -> WhisperFeatureExtractor:
    return WhisperFeatureExtractor(feature_size=8, chunk_length=1)
