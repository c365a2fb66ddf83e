"""Valid calls of the public functions for pictures and sounds, for `public_calls.py`."""

from __future__ import annotations

import torch
from diffusers import UNet2DConditionModel

import clearhead
from clearhead import record
from clearhead.recording import Frames, Patches, Timestamps, frame_tokens, patch_tokens, picture_of
from clearhead.watching import Seen, word_maps
from support import media_models
from support.wrong_calls import Call


def media_calls() -> list[Call]:
    vit, whisper, seen = media_models.make("vit"), media_models.make("whisper"), _seen_unet()
    return [
        Call(
            "record of a picture",
            record,
            lambda: {
                "model": vit,
                "pixel_values": torch.randn(3, 32, 48),
                "image": None,
                "audio": None,
                "text": None,
            },
            {"pixel_values": ("ViTModel raised",)},
            ("model",),
        ),
        Call(
            "record of a sound",
            record,
            lambda: {
                "model": whisper,
                "audio": torch.zeros(800),
                "sampling_rate": 8000,
                "decoder_input_ids": [2, 4],
                "processor": None,
            },
            {"audio": ("sampling_rate",), "decoder_input_ids": ("WhisperForConditionalGeneration raised",)},
            ("model",),
        ),
        Call(
            "picture_of",
            picture_of,
            lambda: {"source": media_models.image(), "name": "image"},
            {"source": ("image", "No such file")},
            ("name",),
        ),
        Call("patch_tokens", patch_tokens, lambda: {"rows": 2, "columns": 4, "picture": 0, "block": 2}),
        Call("frame_tokens", frame_tokens, lambda: {"count": 5, "seconds": 0.02, "sound": 0}),
        Call("Patches", Patches, lambda: {"start": 1, "rows": 2, "columns": 4, "picture": 0, "block": 2}),
        Call("Frames", Frames, lambda: {"start": 1, "count": 2, "seconds": 0.02, "sound": 0}),
        Call("Timestamps", Timestamps, lambda: {"start": 1, "seconds": (0.5, 1.0), "sound": 0}),
        Call(
            "word_maps",
            word_maps,
            lambda: {"seen": seen, "tokens": [1, 2], "batch": 0, "size": (16, 16)},
            {"size": ("attends from",)},
        ),
    ]


def _seen_unet() -> Seen:
    blocks = {"down_block_types": ("CrossAttnDownBlock2D",), "up_block_types": ("CrossAttnUpBlock2D",)}
    unet = UNet2DConditionModel(8, block_out_channels=(12,), cross_attention_dim=11, norm_num_groups=3, **blocks)
    with torch.no_grad(), clearhead.watch(unet, where="*.attn2") as seen:
        unet(torch.randn(1, 4, 8, 8), 5, encoder_hidden_states=torch.randn(1, 7, 11))
    return seen
