"""ResNet-50, and the factories that ``loadmaster capture examples.resnet50:small`` calls.

A factory returns ``(model, batch, loss)``: the last input is the target, and one training step computes
``loss(model(*inputs[:-1]), inputs[-1])``. Yours can live in any module of your own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Example = tuple[nn.Module, tuple[Tensor, ...], nn.Module]


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """[N, channels, H, W] to [N, 4 * width, H / stride, W / stride]."""
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, four stages of bottlenecks, and a classifier.

    Args:
        depths: blocks in each stage.
        width: channels of the stem.
        classes: number of classes.
    """

    def __init__(self, depths: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks: list[nn.Module] = []
        channels = width
        for stage, depth in enumerate(depths):
            for block in range(depth):
                blocks.append(Bottleneck(channels, width << stage, 2 if stage and not block else 1))
                channels = 4 * (width << stage)
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] to scores [N, classes]."""
        return self.classifier(self.blocks(self.stem(images)).mean((2, 3)))


def resnet50(batch: int, image: int, classes: int = 1000) -> Example:
    """ResNet-50 on ``batch`` square images of ``image`` pixels a side."""
    model = ResNet(classes=classes)
    inputs = (torch.randn(batch, 3, image, image), torch.randint(classes, (batch,)))
    return model, inputs, nn.CrossEntropyLoss()


def small() -> Example:
    """Eight images of 64 x 64: a step takes about a second on a laptop."""
    return resnet50(batch=8, image=64)


def full() -> Example:
    """184 images of 224 x 224: fills a 16 GB GPU."""
    return resnet50(batch=184, image=224)
