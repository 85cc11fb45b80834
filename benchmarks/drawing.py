"""Style that all plots share: colours, names of models and collectives, points and legends.

Colours mean the same everywhere: blue is Loadmaster, orange PyTorch's compiler, green checkpointing, grey eager
PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

Result = Mapping[str, Any]

OURS, COMPILE, CHECKPOINT, EAGER = "#1f5fbf", "#d9822b", "#2e8b57", "#8a8a8a"
GIB, KIB, MIB = 1 << 30, 1 << 10, 1 << 20
TITLES = {
    "bert_large": "BERT-large",
    "gpt_1_4b": "GPT, 1.4 B",
    "googlenet": "GoogleNet",
    "gpt2_medium": "GPT-2-medium",
    "llama_1b": "Llama, 1 B",
    "mobilenet_v2": "MobileNet-V2",
    "resnet50": "ResNet-50",
    "unet": "U-Net",
    "unet3d": "3D-UNet",
    "vgg16": "VGG-16",
    "wide": "GPT, width 8192",
}
COLLECTIVES = {
    "allreduce": "AllReduce",
    "allgather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "alltoall": "AllToAll",
}


def peaks_and_steps(rows: Iterable[Result]) -> list[tuple[float, float]]:
    """Points (peak in GiB, step in ms) of rows."""
    return [(row["peak_bytes"] / GIB, row["step_us"] / 1e3) for row in rows]


def columns(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Split points into the two lists that matplotlib takes."""
    return [x for x, _ in pairs], [y for _, y in pairs]


def legend(figure: Figure) -> tuple[list[Any], list[str]]:
    """Handles and labels of all panels' legends, each label once."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)
