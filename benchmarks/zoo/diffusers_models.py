"""Models of diffusers: noisy samples and timesteps in, an output with ``.sample`` back, the noise as the target."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.zoo.entries import Example, entries

BATCH = 4


def loss(output: Any, target: Tensor) -> Tensor:
    """Mean square error of the predicted noise."""
    return functional.mse_loss(output.sample, target)


def steps() -> Tensor:
    """Draw random timesteps for a batch."""
    return torch.randint(1000, (BATCH,))


def unet() -> Example:
    """Build a U-Net that makes images from noise."""
    model = diffusers.UNet2DModel(
        sample_size=32,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        norm_num_groups=8,
    )
    noisy, noise = torch.randn(2, BATCH, 3, 32, 32)
    return model, (noisy, steps(), noise), loss


def conditional_unet() -> Example:
    """Build a U-Net that makes latents from noise and a text."""
    model = diffusers.UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        norm_num_groups=8,
        cross_attention_dim=32,
        attention_head_dim=8,
    )
    noisy, noise = torch.randn(2, BATCH, 4, 32, 32)
    return model, (noisy, steps(), torch.randn(BATCH, 16, 32), noise), loss


def dit() -> Example:
    """Build a diffusion transformer that makes latents from noise and a class."""
    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=16,
        in_channels=4,
        num_layers=3,
        sample_size=32,
        patch_size=2,
        num_embeds_ada_norm=1000,
        norm_num_groups=8,
    )
    noisy, noise = torch.randn(2, BATCH, 4, 32, 32)
    return model, (noisy, steps(), torch.randint(1000, (BATCH,)), noise), loss


def stable_diffusion_3() -> Example:
    """Build a transformer that makes latents from noise and a text, both through it."""
    model = diffusers.SD3Transformer2DModel(
        sample_size=32,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        caption_projection_dim=64,
        pooled_projection_dim=32,
        out_channels=4,
        pos_embed_max_size=16,
    )
    noisy, noise = torch.randn(2, BATCH, 4, 32, 32)
    return model, (noisy, torch.randn(BATCH, 16, 32), torch.randn(BATCH, 32), steps(), noise), loss


def flux() -> Example:
    """Build a Flux that makes packed latents from noise and a text."""
    model = diffusers.FluxTransformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 6, 6),
    )
    noisy, noise = torch.randn(2, BATCH, 256, 16)
    texts, pooled, times = torch.randn(BATCH, 16, 32), torch.randn(BATCH, 32), torch.rand(BATCH)
    return model, (noisy, texts, pooled, times, torch.zeros(256, 3), torch.zeros(16, 3), noise), loss


def autoencoder() -> Example:
    """Build an autoencoder: images through latents and back."""
    model = diffusers.AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
        sample_size=32,
    )
    images = torch.randn(BATCH, 3, 32, 32)
    return model, (images, images.clone()), loss


MODELS = entries(
    "diffusers",
    {
        "UNet2DModel": ("2-D", unet),
        "UNet2DConditionModel": ("2-D", conditional_unet),
        "AutoencoderKL": ("autoencoder", autoencoder),
        "DiTTransformer2DModel": ("transformer", dit),
        "SD3Transformer2DModel": ("transformer", stable_diffusion_3),
        "FluxTransformer2DModel": ("transformer", flux),
    },
)
