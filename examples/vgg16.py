"""VGG-16: five stages of 3x3 convolutions and three wide linear layers.

A factory returns ``(model, batch, loss)``: ``loadmaster capture examples.vgg16:small`` calls it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

Example = tuple[nn.Module, tuple[Tensor, ...], nn.Module]

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


class VGG(nn.Module):
    """Stages of convolutions with a max-pool after each, then a classifier with dropout.

    Args:
        stages: channels and number of convolutions of each stage.
        hidden: width of the two hidden linear layers.
        classes: number of classes.
        dropout: probability of dropping an element of a hidden layer.
    """

    def __init__(
        self,
        stages: tuple[tuple[int, int], ...] = STAGES,
        hidden: int = 4096,
        classes: int = 1000,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, depth in stages:
            for _ in range(depth):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7))
        self.classifier = nn.Sequential(
            nn.Linear(channels * 7 * 7, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] to scores [N, classes]."""
        return self.classifier(self.features(images).flatten(1))


def small() -> Example:
    """Four images of 64 x 64, an eighth of the width."""
    model = VGG(tuple((width // 8, depth) for width, depth in STAGES), hidden=128, classes=10)
    return model, (torch.randn(4, 3, 64, 64), torch.randint(10, (4,))), nn.CrossEntropyLoss()


def full() -> Example:
    """176 images of 224 x 224: fills a 16 GB GPU."""
    return VGG(), (torch.randn(176, 3, 224, 224), torch.randint(1000, (176,))), nn.CrossEntropyLoss()
