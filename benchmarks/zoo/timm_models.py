"""Models of timm: images and labels, cross entropy on the scores."""

from __future__ import annotations

import functools
from typing import Any

import timm
import torch
from torch.nn import functional

from benchmarks.zoo.entries import Example, entries


def classifier(name: str, size: int = 64, **configuration: Any) -> Example:
    """Build a classifier by its name, without dropout."""
    model = timm.create_model(name, pretrained=False, num_classes=10, drop_rate=0.0, **configuration)
    return model, (torch.randn(8, 3, size, size), torch.randint(10, (8,))), functional.cross_entropy


def vision_transformer() -> Example:
    """Build a vision transformer of four layers."""
    return classifier("vit_tiny_patch16_224", 128, img_size=128, depth=4)


def swin_transformer() -> Example:
    """Build a narrow and shallow Swin transformer, without stochastic depth."""
    narrow = {"embed_dim": 32, "depths": (2, 2), "num_heads": (2, 4), "drop_path_rate": 0.0}
    return classifier("swin_tiny_patch4_window7_224", 112, img_size=112, **narrow)


MODELS = entries(
    "timm",
    {
        "efficientnet_b0": ("classification", functools.partial(classifier, "efficientnet_b0", 96)),
        "convnext_atto": ("classification", functools.partial(classifier, "convnext_atto", 96)),
        "mobilenetv3_small_100": ("classification", functools.partial(classifier, "mobilenetv3_small_100", 128)),
        "densenet121": ("classification", functools.partial(classifier, "densenet121", 64)),
        "vit_tiny_patch16_224": ("classification", vision_transformer),
        "swin_tiny_patch4_window7_224": ("classification", swin_transformer),
        "regnety_002": ("classification", functools.partial(classifier, "regnety_002", 96)),
    },
)
