"""Tests of `word_maps`: cross-attention of a UNet to the words of its text, on the picture."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812, as in the documentation

import clearhead
from clearhead.watching import word_maps
from support.attention_calls import captured_calls
from support.numerics import assert_matches
from support.tiny_unet import tiny_unet

TEXT_TOKENS = 7
SIZES = {8: (64, (8, 8)), 4: (16, (4, 4))}


def run(unet, batch=1, height=8, width=8):
    generator = torch.Generator().manual_seed(1)
    latents = torch.randn(batch, 4, height, width, generator=generator)
    text = torch.randn(batch, TEXT_TOKENS, 11, generator=generator)
    with torch.no_grad():
        for step in (700, 400, 100):
            latents = latents - 0.1 * unet(latents, step, encoder_hidden_states=text).sample


def direct_maps(calls, dtype, size, grids, row=0):
    """Return the mean of the enlarged maps, from the calls of the plain model."""
    maps = []
    for name in [name for name in calls if name.endswith("attn2")]:
        for call in calls[name]:
            pixels = call.weights(dtype)[row].mean(dim=0).T  # [tokens, pixels]
            maps.append(F.interpolate(pixels.unflatten(1, grids[pixels.shape[1]])[None], size=size, mode="bilinear")[0])
    return torch.stack(maps).mean(dim=0)


@pytest.mark.parametrize("height", [8, 16])
def test_maps_are_means_over_steps_heads_and_resolutions(height):
    unet = tiny_unet()
    with torch.no_grad(), clearhead.watch(unet) as seen:
        run(unet, height=height)
    with captured_calls(unet) as calls:
        run(unet, height=height)
    grids = {pixels * height // 8: (rows * height // 8, columns) for pixels, (rows, columns) in SIZES.values()}
    size = (8 * height, 64)
    maps = word_maps(seen, size=size)
    assert maps.shape == (TEXT_TOKENS, *size)
    exact, naive = (direct_maps(calls, dtype, size, grids) for dtype in (torch.float64, torch.float32))
    assert_matches(maps, exact, naive, scale=float(exact.max()) * 11)
    torch.testing.assert_close(maps.sum(dim=0), torch.ones(size))  # weights of a pixel sum to 1
    torch.testing.assert_close(word_maps(seen, [4, 2], size=size), maps[[4, 2]])


def test_the_default_is_the_largest_grid_and_a_batch_is_chosen():
    unet = tiny_unet()
    with torch.no_grad(), clearhead.watch(unet, where="*.attn2") as seen:
        run(unet, batch=2)
    with captured_calls(unet) as calls:
        run(unet, batch=2)
    maps = word_maps(seen, batch=1)
    assert maps.shape == (TEXT_TOKENS, 8, 8)
    exact, naive = (
        direct_maps(calls, dtype, (8, 8), dict(SIZES.values()), row=1) for dtype in (torch.float64, torch.float32)
    )
    assert_matches(maps, exact, naive, scale=float(exact.max()) * 11)
    with pytest.raises(ValueError, match="ran on 2 pictures; choose one with batch=, such as batch=1"):
        word_maps(seen)
    with pytest.raises(ValueError, match="batch is 2; expected at most 1"):
        word_maps(seen, batch=2)


def test_wrong_arguments_and_models_are_refused():
    unet = tiny_unet()
    with torch.no_grad(), clearhead.watch(unet) as seen:
        run(unet, height=16)
    with pytest.raises(
        ValueError, match="attends from 128 pixels, which are not a grid of these proportions; pass size="
    ):
        word_maps(seen)
    with pytest.raises(ValueError, match="tokens is .7.; expected positions from 0 to 6"):
        word_maps(seen, [7], size=(16, 8))
    with pytest.raises(ValueError, match="size is .3.; expected .height, width."):
        word_maps(seen, size=[3])
    with pytest.raises(TypeError, match="seen is 3; expected the result of watch"):
        word_maps(3)
    with torch.no_grad(), clearhead.watch(unet, where="*.attn1") as own:
        run(unet)
    with pytest.raises(ValueError, match="no cross-attention was kept; expected that of a UNet with a text"):
        word_maps(own)
