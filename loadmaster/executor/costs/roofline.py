"""Costs estimated from a catalogue entry: the slower of computing and moving bytes, plus a launch.

time = max(FLOPs / (peak x share), bytes / (bandwidth x share)) + launch. Source: the roofline model (Williams,
Waterman and Patterson, Roofline: an insightful visual performance model, 2009).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from loadmaster.executor.costs.model import CostModel
from loadmaster.executor.costs.traffic import (
    convolution_groups,
    flops,
    generated,
    is_free,
    node_bytes,
    precision,
    slowdown,
    value_of,
)
from loadmaster.executor.costs.workspace import workspace_formula_bytes
from loadmaster.models.hardware import DType, Hardware, hardware

FORMATS: dict[torch.dtype, DType] = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}
CONVOLUTIONS = frozenset({torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default})
# Shares of what matrix products reach, fitted to 240 convolutions of the six networks in examples/ measured on an
# H200, TF32, channels last. Both gradients reach less; few channels leave parts of the tensor cores' tiles empty.
GRADIENT_SHARE = 0.6
FULL_CHANNELS, LEAST_CHANNELS = 128, 16


@dataclass(frozen=True)
class Roofline:
    """Estimated costs on one catalogue entry. The TF32 flags let float32 products run in TF32 where the device has it;
    ``compiled`` is for operators that Inductor runs, which generates faster kernels for some."""

    hardware: Hardware
    tf32_matmul: bool
    tf32_convolution: bool
    compiled: bool = False

    def node_us(self, node: fx.Node) -> float:
        """Time of one operator on its own, us."""
        if is_free(node):
            return 0.0
        made = generated(node) if self.compiled else None
        if made is not None:
            return self.move_us(*made)
        move_us = self._move_us(node_bytes(node)) * slowdown(node)
        return max(self._compute_us(node), move_us) + self.hardware.launch_us

    def workspace_bytes(self, node: fx.Node) -> int:
        """Workspace by the registered formulas, on a device of the entry's type, bytes."""
        if self.compiled and generated(node) is not None:
            return 0
        return workspace_formula_bytes(node, self.hardware.device_type)

    def move_us(self, size_bytes: int, kernels: int = 1) -> float:
        """Time to move the bytes at the entry's bandwidth, and a launch per kernel, us."""
        return self._move_us(size_bytes) + kernels * self.hardware.launch_us

    def _compute_us(self, node: fx.Node) -> float:
        work = flops(node)
        if not work:
            return 0.0
        name = FORMATS.get(precision(node), "float32")
        convolution = node.target in CONVOLUTIONS
        if name == "float32" and (self.tf32_convolution if convolution else self.tf32_matmul):
            name = "tf32"
        share = self.hardware.compute_share * (_convolution_share(node) if convolution else 1.0)
        return work / (self.hardware.tflops_for(name) * share * 1e6)

    def _move_us(self, size_bytes: int) -> float:
        return size_bytes / (self.hardware.dram_gbps * self.hardware.dram_share * 1e3)


def _convolution_share(node: fx.Node) -> float:
    """Share of what matrix products reach that a convolution does, by the smaller number of channels of a group."""
    backward = node.target is torch.ops.aten.convolution_backward.default
    weight: Any = fx.node.map_arg(node.args[2 if backward else 1], value_of)
    channels = min(weight.shape[0] // convolution_groups(node), weight.shape[1])  # turned around where transposed
    full: float = min(1.0, max(channels, LEAST_CHANNELS) / FULL_CHANNELS)
    return GRADIENT_SHARE * full if backward else full


def roofline(hardware_name: str, *, compiled: bool = False) -> CostModel:
    """Estimated costs on a catalogue device under PyTorch's present TF32 settings; InputError if it is not there."""
    return Roofline(
        hardware(hardware_name),
        tf32_matmul=torch.get_float32_matmul_precision() != "highest",
        tf32_convolution=torch.backends.cudnn.allow_tf32,
        compiled=compiled,
    )
