"""3D-UNet: a U-Net over volumes, with GroupNorm before every convolution.

A factory returns ``(model, batch, loss)``: ``loadmaster capture examples.unet3d:small`` calls it.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Example = tuple[nn.Module, tuple[Tensor, ...], nn.Module]

GROUPS = 8


class DoubleConvolution(nn.Sequential):
    """Twice GroupNorm, a 3x3x3 convolution and ReLU."""

    def __init__(self, channels: int, middle: int, out: int) -> None:
        layers: list[nn.Module] = []
        for width, after in ((channels, middle), (middle, out)):
            groups = GROUPS if width >= GROUPS else 1
            layers += [nn.GroupNorm(groups, width), nn.Conv3d(width, after, 3, padding=1, bias=False), nn.ReLU()]
        super().__init__(*layers)


class UNet3D(nn.Module):
    """Halve the resolution ``depth`` times, then come back up to the nearest neighbour.

    Args:
        channels: of the volume.
        width: channels at full resolution; they double at each level.
        depth: levels below full resolution.
    """

    def __init__(self, channels: int = 1, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        widths = [channels, *(width << level for level in range(depth + 1))]
        # The encoder widens in its second convolution, the decoder narrows in its first.
        self.down = nn.ModuleList(
            DoubleConvolution(before, max(after // 2, before), after) for before, after in pairwise(widths)
        )
        self.up = nn.ModuleList(
            DoubleConvolution(widths[level] + widths[level + 1], widths[level], widths[level])
            for level in range(depth, 0, -1)
        )
        self.last = nn.Conv3d(width, 1, 1)

    def forward(self, volumes: Tensor) -> Tensor:
        """Volumes [N, channels, D, H, W] to scores [N, 1, D, H, W]; sizes are multiples of 2 ** depth."""
        skips: list[Tensor] = []
        x = volumes
        for level, block in enumerate(self.down):
            x = block(F.max_pool3d(x, 2) if level else x)
            skips.append(x)
        for block, skip in zip(self.up, skips[-2::-1], strict=True):
            x = block(torch.cat((skip, F.interpolate(x, scale_factor=2.0)), 1))
        return self.last(x)


def unet3d(batch: int, size: tuple[int, int, int], width: int = 32) -> Example:
    """One boundary score for every voxel of ``batch`` volumes."""
    inputs = (torch.randn(batch, 1, *size), torch.rand(batch, 1, *size).round())
    return UNet3D(width=width), inputs, nn.BCEWithLogitsLoss()


def small() -> Example:
    """Two volumes of 8 x 16 x 16, a quarter of the width."""
    return unet3d(batch=2, size=(8, 16, 16), width=8)


def full() -> Example:
    """22 volumes of 32 x 96 x 96: fills a 16 GB GPU."""
    return unet3d(batch=22, size=(32, 96, 96))
