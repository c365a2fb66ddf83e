"""Tests of `watch` with an open_clip model, whose towers consist of `nn.MultiheadAttention`."""

from unittest import mock

import pytest
import torch

import clearhead
from support.attention_calls import assert_watched_exactly
from support.numerics import assert_matches

pytestmark = pytest.mark.vision

NAMES = [
    "visual.transformer.resblocks.0.attn",
    "visual.transformer.resblocks.1.attn",
    "transformer.resblocks.0.attn",
    "transformer.resblocks.1.attn",
]
VISION_HEADS, TEXT_HEADS, TEXT_TOKENS = 4, 3, 7


@pytest.fixture
def clip(open_clip):
    vision = {"image_size": 32, "layers": 2, "width": 32, "head_width": 8, "patch_size": 16}
    text = {"context_length": TEXT_TOKENS, "vocab_size": 97, "width": 24, "heads": TEXT_HEADS, "layers": 2}
    return open_clip.CLIP(embed_dim=16, vision_cfg=vision, text_cfg=text).eval()


def similarity(clip, images, texts):
    return torch.cat([part.flatten() for part in clip(images, texts)[:2]])


@pytest.fixture
def slow_path():
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def test_towers_are_watched_exactly_without_the_fast_path(clip, slow_path):
    images, texts = torch.randn(2, 3, 32, 32), torch.randint(1, 97, (2, TEXT_TOKENS))
    seen = assert_watched_exactly(clip, lambda: similarity(clip, images, texts))
    assert list(seen) == NAMES
    assert seen[0].weights.shape == (2, VISION_HEADS, 1 + 4, 1 + 4)
    assert seen[2].weights.shape == (2, TEXT_HEADS, TEXT_TOKENS, TEXT_TOKENS)


def direct_weights(arguments, dtype):
    query, _, _, _, heads, weight, bias, *_ = arguments
    projected = query.to(dtype) @ weight.to(dtype).mT + bias.to(dtype)
    batch, length, width = query.shape
    query, key = (
        part.reshape(batch, length, heads, width // heads).transpose(1, 2) for part in projected.chunk(3, dim=-1)[:2]
    )
    return (query @ key.mT * (width // heads) ** -0.5).softmax(dim=-1)


def test_vision_tower_is_watched_exactly_on_the_fast_path(clip):
    images, texts = torch.randn(2, 3, 32, 32), torch.randint(1, 97, (2, TEXT_TOKENS))
    native, calls = torch._native_multi_head_attention, []

    def capture(*arguments):
        calls.append(arguments)
        return native(*arguments)

    with torch.no_grad():
        plain = similarity(clip, images, texts)
        with mock.patch.object(torch, "_native_multi_head_attention", capture):
            similarity(clip, images, texts)
        with clearhead.watch(clip) as seen:
            output = similarity(clip, images, texts)
    assert torch.equal(output, plain)
    assert list(seen) == NAMES
    # the text tower has a mask of floating-point numbers, for which torch has no fast path
    for name, arguments in zip(NAMES[:2], calls, strict=True):
        [call] = seen[name].calls
        exact, naive = direct_weights(arguments, torch.float64), direct_weights(arguments, torch.float32)
        assert_matches(call.weights.dense(), exact, naive)


def test_factory_model_of_open_clip_is_watched(open_clip):
    model = open_clip.create_model("RN50", pretrained=None).eval()
    with torch.no_grad(), clearhead.watch(model, where="transformer.*", entropy=True) as seen:
        model.encode_text(torch.randint(1, 97, (1, 77)))
    assert [*seen] == [f"transformer.resblocks.{layer}.attn" for layer in range(12)]
