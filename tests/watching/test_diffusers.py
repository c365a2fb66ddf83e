"""Tests of `watch` with diffusion models, built from a config with random weights."""

from math import isqrt

import pytest
import torch
from diffusers import DiffusionPipeline, DiTTransformer2DModel, SD3Transformer2DModel
from torch.nn import functional as F  # noqa: N812, as in the documentation

import clearhead
from support.attention_calls import assert_watched_exactly, captured_calls
from support.numerics import assert_matches
from support.tiny_unet import tiny_unet

TEXT_TOKENS = 7


def tiny_dit() -> DiTTransformer2DModel:
    return DiTTransformer2DModel(
        num_attention_heads=3,
        attention_head_dim=4,
        in_channels=4,
        num_layers=2,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=13,
        norm_num_groups=1,
    ).eval()


def tiny_sd3() -> SD3Transformer2DModel:
    return SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=3,
        joint_attention_dim=11,
        caption_projection_dim=24,
        pooled_projection_dim=13,
        out_channels=4,
        pos_embed_max_size=8,
        dual_attention_layers=(0,),  # as in Stable Diffusion 3.5
        qk_norm="rms_norm",
    ).eval()


class UNetPipeline(DiffusionPipeline):
    """Pipeline that denoises in three steps, without a text encoder and an image decoder."""

    def __init__(self, unet):
        super().__init__()
        self.register_modules(unet=unet)

    def __call__(self, text, latents):
        for step in (700, 400, 100):
            latents = latents - 0.1 * self.unet(latents, step, encoder_hidden_states=text).sample
        return latents


class TransformerPipeline(DiffusionPipeline):
    """Pipeline whose denoiser is a transformer."""

    def __init__(self, transformer):
        super().__init__()
        self.register_modules(transformer=transformer)


@pytest.mark.parametrize("with_mask", [False, True])
def test_unet_is_watched_exactly(with_mask):
    unet = tiny_unet(inner="")
    latents, text = torch.randn(2, 4, 8, 8), torch.randn(2, TEXT_TOKENS, 11)
    mask = torch.arange(TEXT_TOKENS) < torch.tensor([[7], [5]]) if with_mask else None
    seen = assert_watched_exactly(
        unet, lambda: unet(latents, 500, encoder_hidden_states=text, encoder_attention_mask=mask).sample
    )
    assert {name.rpartition(".")[2] for name in seen} == {"attn1", "attn2"}
    first = "down_blocks.0.attentions.0.transformer_blocks.0"
    assert list(seen)[:2] == [f"{first}.attn1", f"{first}.attn2"]
    assert seen[f"{first}.attn1"].weights.shape == (2, 3, 64, 64)
    assert seen[f"{first}.attn2"].weights.shape == (2, 3, 64, TEXT_TOKENS)
    if with_mask:
        assert torch.all(seen[f"{first}.attn2"].weights[1, :, :, 5:] == 0)


def test_attention_slices_are_not_observed_and_refused():
    unet = tiny_unet(inner="")
    unet.set_attention_slice(1)  # replaces fused attention by matmul, softmax and matmul
    with (
        pytest.raises(ValueError, match="attention written out as matmul, softmax and matmul is not observed"),
        clearhead.watch(unet),
    ):
        unet(torch.randn(1, 4, 8, 8), 500, encoder_hidden_states=torch.randn(1, TEXT_TOKENS, 11))


def test_dit_is_watched_exactly():
    model = tiny_dit()
    latents, step, label = torch.randn(2, 4, 8, 8), torch.tensor([500, 30]), torch.tensor([3, 11])
    seen = assert_watched_exactly(model, lambda: model(latents, step, label).sample)
    assert list(seen) == ["transformer_blocks.0.attn1", "transformer_blocks.1.attn1"]
    assert seen[1].weights.shape == (2, 3, 16, 16)


def test_sd3_is_watched_exactly():
    model = tiny_sd3()
    latents, text, pooled = torch.randn(2, 4, 8, 8), torch.randn(2, TEXT_TOKENS, 11), torch.randn(2, 13)
    step = torch.tensor([500.0, 30.0])
    seen = assert_watched_exactly(
        model,
        lambda: model(latents, encoder_hidden_states=text, pooled_projections=pooled, timestep=step).sample,
    )
    assert list(seen) == ["transformer_blocks.0.attn", "transformer_blocks.0.attn2", "transformer_blocks.1.attn"]
    assert seen["transformer_blocks.0.attn"].weights.shape == (2, 3, 16 + TEXT_TOKENS, 16 + TEXT_TOKENS)
    assert seen["transformer_blocks.0.attn2"].weights.shape == (2, 3, 16, 16)


def test_pipelines_are_unwrapped_to_their_denoiser():
    unet = tiny_unet(inner="")
    pipe = UNetPipeline(unet)
    text, latents = torch.randn(1, TEXT_TOKENS, 11), torch.randn(1, 4, 8, 8)
    seen = assert_watched_exactly(unet, lambda: pipe(text, latents), watched=pipe)
    assert all(len(watched.calls) == 3 for watched in seen.values())

    transformer = tiny_dit()
    latents, step, label = torch.randn(1, 4, 8, 8), torch.tensor([500]), torch.tensor([3])
    seen = assert_watched_exactly(
        transformer, lambda: transformer(latents, step, label).sample, watched=TransformerPipeline(transformer)
    )
    assert seen.model == "DiTTransformer2DModel"


def direct_map(calls, word, dtype):
    maps = []
    for name in [name for name in calls if name.endswith("attn2")]:
        for call in calls[name]:
            mean = call.weights(dtype)[0].mean(dim=0)[:, word]
            side = {64: 8, 16: 4}[len(mean)]  # the middle block has a quarter of the pixels
            maps.append(F.interpolate(mean.reshape(1, 1, side, side), size=(64, 64), mode="bilinear"))
    return torch.cat(maps).mean(dim=(0, 1))


def test_map_of_one_word_is_the_mean_over_steps_layers_and_heads():
    pipe = UNetPipeline(tiny_unet(inner=""))
    text, latents, word = torch.randn(1, TEXT_TOKENS, 11), torch.randn(1, 4, 8, 8), 4

    # the example of the documentation
    with torch.no_grad(), clearhead.watch(pipe, where="*.attn2") as seen:
        pipe(text, latents)
    maps = []
    for watched in seen.values():
        for call in watched.calls:  # one per step
            pixels = call.weights[0, :, :, word].mean(dim=0)
            grid = pixels.unflatten(0, (isqrt(len(pixels)), -1))
            maps.append(F.interpolate(grid[None, None], size=(64, 64), mode="bilinear"))
    heat = torch.cat(maps).mean(dim=(0, 1))  # [64, 64]

    with torch.no_grad(), captured_calls(pipe.unet) as calls:
        pipe(text, latents)
    exact, naive = direct_map(calls, word, torch.float64), direct_map(calls, word, torch.float32)
    terms = max(call.terms for captured in calls.values() for call in captured)
    assert_matches(heat, exact, naive, scale=terms * float(exact.max()))
    assert len(maps) == 3 * len(seen)

    # without keeping queries and keys: the map of each call is computed while the model runs
    with torch.no_grad(), clearhead.watch(pipe, where="*.attn2", each=lambda name, w: w[0, :, :, word]) as reduced:
        pipe(text, latents)
    for name, watched in seen.items():
        for call, other in zip(watched.calls, reduced[name].calls, strict=True):
            assert torch.equal(other.result, call.weights[0, :, :, word])
