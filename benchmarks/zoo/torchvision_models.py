"""Models of torchvision: classification, segmentation with its dictionary of outputs, a detector's backbone."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision import models
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

from benchmarks.zoo.entries import Example, entries


def classifier(name: str, size: int = 64) -> Example:
    """Build a classifier by its name."""
    model = _undropped(models.get_model(name, weights=None, num_classes=10))
    return model, (torch.randn(8, 3, size, size), torch.randint(10, (8,))), functional.cross_entropy


def segmentation(name: str) -> Example:
    """Build a segmentation model, a class for each pixel; it returns a dictionary."""
    model = _undropped(models.get_model(name, weights=None, weights_backbone=None, num_classes=5))

    def loss(output: Mapping[str, Tensor], target: Tensor) -> Tensor:
        return functional.cross_entropy(output["out"], target)

    return model, (torch.randn(4, 3, 96, 96), torch.randint(5, (4, 96, 96))), loss


def backbone() -> Example:
    """Build the pyramid of features under torchvision's detectors, compared with features of a teacher."""

    def loss(pyramid: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> Tensor:
        return torch.stack([functional.mse_loss(pyramid[level], target[level]) for level in target]).sum()

    model = resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5)
    target = {str(level): torch.randn(4, 256, 16 >> level, 16 >> level) for level in range(4)}
    return model, (torch.randn(4, 3, 64, 64), target), loss


def _undropped(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout) or type(module).__name__ == "StochasticDepth":
            module.p = 0.0
    return model


_CLASSIFIERS = {"resnet18": 160, "mobilenet_v3_large": 96, "shufflenet_v2_x0_5": 96}
_SEGMENTATION = ("deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large")

MODELS = entries(
    "torchvision",
    {
        **{n: ("classification", functools.partial(classifier, n, size)) for n, size in _CLASSIFIERS.items()},
        **{n: ("segmentation", functools.partial(segmentation, n)) for n in _SEGMENTATION},
        "resnet_fpn_backbone": ("detection's backbone", backbone),
    },
)
