"""Devices that run the Triton kernels; the others run the same operators in plain PyTorch."""

from __future__ import annotations

import importlib.util
from functools import cache

import torch


@cache
def _triton_is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def has_kernels(device: torch.device) -> bool:
    """Return whether a device runs the Triton kernels: CUDA devices, where Triton is installed."""
    return device.type == "cuda" and _triton_is_installed()
