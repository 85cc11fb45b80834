"""Check for GPUDirect Storage, which copies between GPU and disk without host memory. It is reported, not used."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import torch

_DRIVER = Path("/proc/driver/nvidia-fs/version")


@cache
def gpu_direct() -> str:
    """Say why tensors do not go to disk by GPUDirect Storage here, in a sentence."""
    if not torch.cuda.is_available():
        return "no: there is no CUDA device"
    if not _DRIVER.exists():
        return f"no: the nvidia-fs driver is not loaded ({_DRIVER}), and cuFile would copy through host memory too"
    packages = [name for name in ("torch.cuda.gds", "kvikio") if importlib.util.find_spec(name) is not None]
    if not packages:
        return "no: neither torch.cuda.gds nor kvikio is installed"
    return f"no, though this host has it ({', '.join(packages)}): files are copied through pinned host memory"
