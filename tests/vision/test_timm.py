"""Tests of `watch` with timm models, built with random weights."""

import pytest
import torch

import clearhead
from support.attention_calls import assert_watched_exactly, captured_calls
from support.numerics import assert_matches

pytestmark = pytest.mark.vision

FUSED = "timm.layers.set_fused_attn(True, experimental=True)"


def swin(timm):
    return timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, window_size=7, depths=(2, 1), embed_dim=24, num_heads=(2, 4)
    ).eval()


def test_vit_is_watched_exactly(timm):
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=(48, 80), depth=2).eval()
    images = torch.randn(2, 3, 48, 80)
    seen = assert_watched_exactly(model, lambda: model(images))
    assert list(seen) == ["blocks.0.attn", "blocks.1.attn"]
    assert seen[1].weights.shape == (2, 3, 1 + 3 * 5, 1 + 3 * 5)


def test_model_with_register_tokens_is_watched_exactly(timm):
    model = timm.create_model("vit_small_patch14_reg4_dinov2", pretrained=False, img_size=(42, 70), depth=2).eval()
    images = torch.randn(2, 3, 42, 70)
    seen = assert_watched_exactly(model, lambda: model(images))
    assert list(seen) == ["blocks.0.attn", "blocks.1.attn"]
    assert model.num_prefix_tokens == 5  # one class token and four registers
    assert seen[0].weights.shape == (2, 6, 5 + 3 * 5, 5 + 3 * 5)


def test_swin_with_fused_attention_is_watched_exactly(timm):
    timm.layers.set_fused_attn(True, experimental=True)
    model = swin(timm)
    images = torch.randn(2, 3, 56, 56)
    seen = assert_watched_exactly(model, lambda: model(images))
    assert list(seen) == ["layers.0.blocks.0.attn", "layers.0.blocks.1.attn", "layers.1.blocks.0.attn"]
    assert seen[0].weights.shape == (2 * 4, 2, 49, 49)  # windows of all images
    assert torch.any(seen[1].weights.dense() < 1e-20)  # shifted windows mask pixels that are not neighbors


def test_swin_without_fused_attention_is_refused_and_the_fix_is_named(timm):
    model = swin(timm)
    with pytest.raises(ValueError, match="multiplies by hand") as error, torch.no_grad(), clearhead.watch(model):
        model(torch.randn(2, 3, 56, 56))
    assert f"layers.0.blocks.0.attn multiplies by hand; call {FUSED}" in str(error.value)
    assert "\n" not in str(error.value)


def test_statistics_are_those_of_the_weights(timm):
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=(48, 80), depth=2).eval()
    images = torch.randn(2, 3, 48, 80)
    with torch.no_grad(), captured_calls(model) as calls:
        model(images)
    with torch.no_grad(), clearhead.watch(model, entropy=True, spans={"class": (0, 1)}) as seen:
        model(images)
    for name, [call] in calls.items():
        exact, naive = call.weights(torch.float64), call.weights(torch.float32)
        entropies = [-torch.special.xlogy(weights, weights).sum(dim=-1) for weights in (exact, naive)]
        assert_matches(seen[name].calls[0].entropy, *entropies, scale=call.terms)
        masses = [weights[..., :1].mean(dim=(0, 2)) for weights in (exact, naive)]
        assert_matches(seen[name].means["mass"].float(), *masses, scale=call.terms * float(exact.max()))


def direct_map(call, dtype):
    return call.weights(dtype)[0, :, 0, 5:].mean(dim=0).reshape(3, 5)


def test_map_of_the_class_token_is_the_mean_over_heads(timm):
    model = timm.create_model("vit_small_patch14_reg4_dinov2", pretrained=False, img_size=(42, 70), depth=2).eval()
    image = torch.randn(1, 3, 42, 70)

    # the example of the documentation
    with torch.no_grad(), clearhead.watch(model) as seen:
        model(image)
    prefix = model.num_prefix_tokens  # the class token, and registers if the model has them
    patches = seen["blocks.1.attn"].weights[0, :, 0, prefix:].mean(dim=0)
    heat = patches.unflatten(0, model.patch_embed.grid_size)  # [rows, columns]

    with torch.no_grad(), captured_calls(model) as calls:
        model(image)
    [call] = calls["blocks.1.attn"]
    exact, naive = direct_map(call, torch.float64), direct_map(call, torch.float32)
    assert_matches(heat, exact, naive, scale=call.terms * float(exact.max()))
