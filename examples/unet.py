"""U-Net: an encoder and a decoder joined by a skip at every resolution.

A factory returns ``(model, batch, loss)``: ``loadmaster capture examples.unet:small`` calls it.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Example = tuple[nn.Module, tuple[Tensor, ...], nn.Module]


class DoubleConvolution(nn.Sequential):
    """Twice a 3x3 convolution, BatchNorm and ReLU."""

    def __init__(self, channels: int, out: int) -> None:
        layers: list[nn.Module] = []
        for width in (channels, out):
            layers += [nn.Conv2d(width, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
        super().__init__(*layers)


class UNet(nn.Module):
    """Halve the resolution ``depth`` times, then come back up by transposed convolutions.

    Args:
        channels: of the image.
        classes: scores for each pixel.
        width: channels at full resolution; they double at each level.
        depth: levels below full resolution.
    """

    def __init__(self, channels: int = 3, classes: int = 2, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.stem = DoubleConvolution(channels, width)
        self.down = nn.ModuleList(DoubleConvolution(before, after) for before, after in pairwise(widths))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[-2::-1])
        self.up = nn.ModuleList(DoubleConvolution(2 * w, w) for w in widths[-2::-1])
        self.classifier = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, channels, H, W] to scores [N, classes, H, W]; H and W are multiples of 2 ** depth."""
        x = self.stem(images)
        skips = []
        for block in self.down:
            skips.append(x)
            x = block(F.max_pool2d(x, 2))
        for grow, block, skip in zip(self.grow, self.up, reversed(skips), strict=True):
            x = block(torch.cat((skip, grow(x)), 1))
        return self.classifier(x)


def unet(batch: int, height: int, width: int, channels: int = 64) -> Example:
    """Two classes for every pixel of ``batch`` images."""
    inputs = (torch.randn(batch, 3, height, width), torch.randint(2, (batch, height, width)))
    return UNet(width=channels), inputs, nn.CrossEntropyLoss()


def small() -> Example:
    """Two images of 32 x 48, an eighth of the width."""
    return unet(batch=2, height=32, width=48, channels=8)


def full() -> Example:
    """Eleven images of 608 x 416: fills a 16 GB GPU."""
    return unet(batch=11, height=608, width=416)
