"""Devices with Triton kernels for these implementations; the others run them as PyTorch operators."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any

import torch


@cache
def _triton_is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def has_kernels(device: torch.device) -> bool:
    """Return whether a device is a CUDA device with Triton installed. One that is elsewhere is taken to have it."""
    return device.type == "cuda" and (_triton_is_installed() or not torch.cuda.is_available())


def kernels() -> Any:
    """The Triton kernels' module, imported when it is first used: machines without a GPU have no Triton."""
    return importlib.import_module("loadmaster.executor.memory.implementations.triton_kernels")
