"""Tiny UNet of diffusers with random weights, for tests."""

from diffusers import UNet2DConditionModel


def tiny_unet(inner: str = "CrossAttn") -> UNet2DConditionModel:
    """Return a UNet of two resolutions with 3 heads. `inner=""` has cross-attention at the higher one only."""
    return UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(12, 24),
        down_block_types=("CrossAttnDownBlock2D", f"{inner}DownBlock2D"),
        up_block_types=(f"{inner}UpBlock2D", "CrossAttnUpBlock2D"),
        norm_num_groups=3,
        cross_attention_dim=11,
        attention_head_dim=3,  # number of heads, for historical reasons
    ).eval()
