"""MobileNet-V2: inverted residuals of depthwise convolutions.

A factory returns ``(model, batch, loss)``: ``loadmaster capture examples.mobilenet_v2:small`` calls it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

Example = tuple[nn.Module, tuple[Tensor, ...], nn.Module]

# Expansion, channels, repeats and first stride of each stage.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def convolution(channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Convolution, BatchNorm and ReLU6."""
    layer = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(out), nn.ReLU6()]


class InvertedResidual(nn.Module):
    """Widen, filter every channel on its own, narrow; beside a shortcut where the shape allows it."""

    def __init__(self, channels: int, out: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = channels * expansion
        layers = convolution(channels, wide, 1) if expansion != 1 else []
        layers += convolution(wide, wide, 3, stride, groups=wide)
        self.layers = nn.Sequential(*layers, nn.Conv2d(wide, out, 1, bias=False), nn.BatchNorm2d(out))
        self.has_shortcut = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        """[N, channels, H, W] to [N, out, H / stride, W / stride]."""
        return x + self.layers(x) if self.has_shortcut else self.layers(x)


class MobileNetV2(nn.Module):
    """A stem, stages of inverted residuals, and a classifier.

    Args:
        stages: expansion, channels, repeats and first stride of each.
        head: channels before the classifier.
        classes: number of classes.
        dropout: probability of dropping an element before the classifier.
    """

    def __init__(
        self,
        stages: tuple[tuple[int, int, int, int], ...] = STAGES,
        head: int = 1280,
        classes: int = 1000,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        channels = 32
        blocks = convolution(3, channels, 3, stride=2)
        for expansion, width, repeats, stride in stages:
            for repeat in range(repeats):
                blocks.append(InvertedResidual(channels, width, 1 if repeat else stride, expansion))
                channels = width
        self.blocks = nn.Sequential(*blocks, *convolution(channels, head, 1))
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(head, classes))

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] to scores [N, classes]."""
        return self.classifier(self.blocks(images).mean((2, 3)))


def small() -> Example:
    """Four images of 64 x 64, one block less in the long stages."""
    stages = tuple((expansion, width, min(repeats, 2), stride) for expansion, width, repeats, stride in STAGES)
    model = MobileNetV2(stages, head=320, classes=10)
    return model, (torch.randn(4, 3, 64, 64), torch.randint(10, (4,))), nn.CrossEntropyLoss()


def full() -> Example:
    """272 images of 224 x 224: fills a 16 GB GPU."""
    return MobileNetV2(), (torch.randn(272, 3, 224, 224), torch.randint(1000, (272,))), nn.CrossEntropyLoss()
