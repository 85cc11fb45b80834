"""Style that all plots share: colours, names of models and collectives, points and legends.

Colours mean the same everywhere: blue is Loadmaster, orange PyTorch's compiler, green checkpointing, grey eager
PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
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


def panels(titles: Sequence[str], rows: int = 1, size: tuple[float, float] = (9, 3.2), **shared: Any) -> list[Axes]:
    """Make a figure with a panel for each title; returns the panels."""
    figure = Figure(figsize=size, layout="constrained")
    found = list(figure.subplots(rows, -(-len(titles) // rows), squeeze=False, **shared).flat)
    for axes, title in zip(found, titles, strict=True):
        axes.set_title(title)
    return found


def points(
    axes: Axes, pairs: Sequence[tuple[float, float]], style: str, colour: str, label: str, size: int = 4
) -> None:
    """Draw points (x, y), with a line if the style has one; nothing if there are no points."""
    if pairs:
        axes.plot(*zip(*pairs, strict=True), style, color=colour, markersize=size, label=label)


def finished(found: Sequence[Axes], x: str = "", y: str = "", columns: int = 4) -> Figure:
    """Return the figure of these panels, with what its axes show and one legend above: each label once."""
    figure = found[0].get_figure()
    assert isinstance(figure, Figure)
    labels: dict[str, Any] = {}
    for axes in found:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            labels.setdefault(label, handle)
    figure.legend(list(labels.values()), list(labels), loc="outside upper center", ncols=columns)
    figure.supxlabel(x)
    figure.supylabel(y)
    return figure
