"""Models that are measured: their batches, their precision, which blocks a user would checkpoint, their budgets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from examples import bert, googlenet, gpt, llama, mobilenet_v2, resnet50, unet, unet3d, vgg16

Example = tuple[nn.Module, tuple[torch.Tensor, ...], Any]


@dataclass(frozen=True)
class Case:
    """One model and batch.

    Attributes:
        full, small: factories; the small one is for trials on a CPU.
        autocast: whether it trains under bfloat16 autocast; in float32 with tf32 products otherwise.
        blocks: attributes that hold the blocks a user would checkpoint.
        budgets: that plans are compared at (see :mod:`benchmarks.gpu.budgets`).
        tight: one where plans that may offload are held against those that may not.
    """

    full: Callable[[], Example]
    small: Callable[[], Example]
    autocast: bool
    blocks: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ("best knob", "below knobs")
    tight: str | None = None


CASES = {
    "gpt2_medium": Case(gpt.gpt2_medium, gpt.small, True, ("blocks",), ("knob 0.1", "12 GiB"), "6 GiB"),
    "resnet50": Case(resnet50.full, resnet50.small, False, ("blocks",), ("8.3 GiB", "5.7 GiB")),
    "bert_large": Case(bert.full, bert.small, True, ("blocks",)),
    "llama_1b": Case(llama.full, llama.small, True, ("blocks",)),
    "vgg16": Case(vgg16.full, vgg16.small, False, ("features",)),
    "unet": Case(unet.full, unet.small, False, ("stem", "down", "up")),
    "googlenet": Case(googlenet.full, googlenet.small, False, ("blocks",)),
    "mobilenet_v2": Case(mobilenet_v2.full, mobilenet_v2.small, False, ("blocks",)),
    "unet3d": Case(unet3d.full, unet3d.small, False, ("down", "up")),
}

COMPARED = ("gpt2_medium", "resnet50", "bert_large", "llama_1b", "vgg16", "unet")
# What the published results took at 10 % overhead, as a share of plain PyTorch: Table 4.2 and appendix A.3 (8.86 %).
PUBLISHED_SHARES = {
    "resnet50": 0.38,
    "googlenet": 0.46,
    "unet": 0.36,
    "vgg16": 0.39,
    "mobilenet_v2": 0.33,
    "unet3d": 0.54,
}
# Where a budget above the peak is held against plain torch.compile.
ROOMY = ("gpt2_medium", "resnet50")
ABLATED = ("resnet50", "googlenet", "vgg16")


def build(
    case: Case, device: str, *, small: bool
) -> tuple[nn.Module, tuple[torch.Tensor, ...], Any, Callable[[], Any]]:
    """Build model, inputs, loss and the precision context of a case, from a fixed seed."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    precision: Callable[[], Any] = contextlib.nullcontext
    if case.autocast:
        precision = lambda: torch.autocast(torch.device(device).type, torch.bfloat16)  # noqa: E731
    with torch.device(device):
        model, inputs, loss = case.small() if small else case.full()
    return model, inputs, loss, precision


class Checkpointed(nn.Module):
    """A block whose activations are dropped and computed again in the backward pass."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Run the block under ``torch.utils.checkpoint``."""
        return checkpoint(self.block, *inputs, use_reentrant=False)


def checkpoint_blocks(model: nn.Module, blocks: tuple[str, ...]) -> None:
    """Put every block under ``torch.utils.checkpoint``; a plain sequence of layers is cut after its max-pools."""
    for name in blocks:
        held = getattr(model, name)
        if any(list(block.children()) for block in held):
            for n, block in enumerate(held):
                if list(block.children()):
                    held[n] = Checkpointed(block)
        else:
            setattr(model, name, nn.Sequential(*map(Checkpointed, _stages(held))))


def _stages(layers: nn.Sequential) -> list[nn.Sequential]:
    """Split a sequence of layers after each max-pool."""
    stages: list[list[nn.Module]] = [[]]
    for layer in layers:
        stages[-1].append(layer)
        if isinstance(layer, nn.MaxPool2d):
            stages.append([])
    return [nn.Sequential(*stage) for stage in stages if stage]
