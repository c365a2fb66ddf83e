"""Tests of Whisper's token timestamps: they are those of eager attention, and the model stays on clearhead."""

import pytest
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from clearhead.huggingface import watch

FRAMES, BINS = 3000, 8
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array_wrap__:DeprecationWarning"
)  # transformers passes a tensor to numpy


def whisper(implementation):
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=64, num_mel_bins=BINS, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_target_positions=32, pad_token_id=0,
        bos_token_id=1, eos_token_id=63, decoder_start_token_id=2, begin_suppress_tokens=[],
    )  # fmt: skip
    model = WhisperForConditionalGeneration._from_config(config, attn_implementation=implementation).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)
    settings = {"alignment_heads": [[0, 1], [1, 2]], "no_timestamps_token_id": 50, "is_multilingual": False}
    settings |= {"suppress_tokens": list(range(50, 64)), "max_length": None}  # only ordinary tokens, so no early end
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    return model


def sound():
    features = torch.randn(2, BINS, FRAMES, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, FRAMES, dtype=torch.long)
    mask[0, 2000:] = 0
    return {"input_features": features, "attention_mask": mask}


@pytest.mark.parametrize("beams", [1, 2])
def test_token_timestamps_are_those_of_eager(beams):
    timestamps = []
    for implementation in ("eager", "clearhead"):
        model = whisper(implementation)
        options = {"max_new_tokens": 9, "num_beams": beams, "do_sample": False, "return_token_timestamps": True}
        timestamps.append(model.generate(**sound(), **options))
        assert model.config._attn_implementation == implementation
        assert model.model.decoder.config._attn_implementation == implementation
    eager, ours = timestamps
    assert torch.equal(ours["sequences"], eager["sequences"])
    assert torch.equal(ours["token_timestamps"], eager["token_timestamps"])
    assert ours["token_timestamps"].unique().numel() > 2


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "clearhead"])
def test_watch_observes_generation_with_timestamps(implementation):
    """Whisper computes timestamps from the attentions, for which sdpa is switched to eager."""
    options = {"max_new_tokens": 5, "do_sample": False, "return_token_timestamps": True}
    plain = whisper(implementation).generate(**sound(), **options)
    model = whisper(implementation)
    with watch(model, entropy=True) as seen:
        watched = model.generate(**sound(), **options)
    assert torch.equal(plain["sequences"], watched["sequences"])
    assert torch.equal(plain["token_timestamps"], watched["token_timestamps"])
    assert len(seen["cross", 1].calls) >= 5
    assert len(seen["encoder", 1].calls) == 1


def test_other_implementations_are_not_restored():
    """With sdpa, transformers switches to eager and stays there."""
    model = whisper("sdpa")
    model.generate(**sound(), max_new_tokens=3, do_sample=False, return_token_timestamps=True)
    assert model.config._attn_implementation == "eager"
