"""GoogleNet: inception modules with BatchNorm, without auxiliary classifiers.

A factory returns ``(model, batch, loss)``: ``loadmaster capture examples.googlenet:small`` calls it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

Example = tuple[nn.Module, tuple[Tensor, ...], nn.Module]

# Channels of the four branches: 1x1; 1x1 before 3x3, and 3x3; the same again; 1x1 after the pool.
Branches = tuple[int, int, int, int, int, int]
STAGES: tuple[tuple[Branches, ...], ...] = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


class Convolution(nn.Sequential):
    """Convolution, BatchNorm and ReLU."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int = 1) -> None:
        layer = nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False)
        super().__init__(layer, nn.BatchNorm2d(out, eps=0.001), nn.ReLU())


class Inception(nn.Module):
    """Four branches side by side, joined along the channels."""

    def __init__(self, channels: int, branches: Branches) -> None:
        super().__init__()
        direct, reduce3, out3, reduce5, out5, pooled = branches
        self.branches = nn.ModuleList(
            (
                Convolution(channels, direct, 1),
                nn.Sequential(Convolution(channels, reduce3, 1), Convolution(reduce3, out3, 3)),
                nn.Sequential(Convolution(channels, reduce5, 1), Convolution(reduce5, out5, 3)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), Convolution(channels, pooled, 1)),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """[N, channels, H, W] to [N, sum of the branches, H, W]."""
        return torch.cat([branch(x) for branch in self.branches], 1)


class GoogleNet(nn.Module):
    """A stem, three stages of inception modules, and a classifier.

    Args:
        stages: the modules of each stage.
        classes: number of classes.
        dropout: probability of dropping an element before the classifier.
    """

    def __init__(
        self, stages: tuple[tuple[Branches, ...], ...] = STAGES, classes: int = 1000, dropout: float = 0.2
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            Convolution(3, 64, 7, 2),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            Convolution(64, 64, 1),
            Convolution(64, 192, 3),
        ]
        channels = 192
        for stage, modules in enumerate(stages):
            # The last pool is the smaller one, as in torchvision.
            layers.append(nn.MaxPool2d(3 if stage < 2 else 2, 2, ceil_mode=True))
            for branches in modules:
                layers.append(Inception(channels, branches))
                channels = branches[0] + branches[2] + branches[4] + branches[5]
        self.blocks = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(channels, classes))

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] to scores [N, classes]."""
        return self.classifier(self.blocks(images).mean((2, 3)))


def small() -> Example:
    """Four images of 64 x 64, one inception module in each stage."""
    model = GoogleNet(tuple(modules[:1] for modules in STAGES), classes=10)
    return model, (torch.randn(4, 3, 64, 64), torch.randint(10, (4,))), nn.CrossEntropyLoss()


def full() -> Example:
    """320 images of 224 x 224: fills a 16 GB GPU."""
    return GoogleNet(), (torch.randn(320, 3, 224, 224), torch.randint(1000, (320,))), nn.CrossEntropyLoss()
