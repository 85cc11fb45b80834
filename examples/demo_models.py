"""The two models of ``loadmaster demo``, in sizes at which activations outweigh parameters on a laptop."""

from __future__ import annotations

from examples import gpt as gpt_model
from examples import resnet50 as resnet_model


def resnet50() -> resnet_model.Example:
    """ResNet-50 on 96 images of 64 x 64."""
    return resnet_model.resnet50(batch=96, image=64)


def gpt() -> gpt_model.Example:
    """A GPT of four layers on eight sequences of 128 tokens, without dropout: its gradients can be compared exactly."""
    return gpt_model.gpt(batch=8, length=128, vocabulary=2048, layers=4, width=128, heads=4)
