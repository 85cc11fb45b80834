"""Measured times of operators, kept on disk: later captures, of this model or another, need not measure them again.

A file for each device, setting and version; a line for each operator of some shape, strides, types and plain arguments.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import loadmaster
from loadmaster.executor.steps.user_cache import add_line, kept_path, read_lines

ROOM = "operator_times"


@dataclass(frozen=True)
class OperatorMeasurement:
    """One operator's time and workspace on the device."""

    time_us: float
    workspace_bytes: int


class KeptTimes:
    """Measurements of operators in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[Any, OperatorMeasurement] = {}
        for line in read_lines(path):
            time_us, workspace_bytes = line.get("time_us"), line.get("workspace_bytes")
            if not (isinstance(time_us, float) and 0 < time_us < math.inf):
                continue
            if isinstance(workspace_bytes, int) and workspace_bytes >= 0:
                self._known[line.get("operator")] = OperatorMeasurement(time_us, workspace_bytes)

    def get(self, key: Hashable) -> OperatorMeasurement | None:
        """Measurement of an operator; None if there is none yet."""
        return self._known.get(_digest(key))

    def add(self, key: Hashable, measured: OperatorMeasurement) -> None:
        """Store a measurement, in memory and in the file."""
        digest = _digest(key)
        self._known[digest] = measured
        # JSON tells whole numbers from others; times are read as the latter.
        content = {"time_us": float(measured.time_us), "workspace_bytes": measured.workspace_bytes}
        add_line(self.path, {"operator": digest, **content})


def kept_times(device: torch.device, *, compiled: bool, channels_last: bool) -> KeptTimes:
    """Open the measurements of a device under its present settings."""
    if device.type == "cuda":
        convolutions = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        name = f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}, cuDNN {convolutions}"
    else:
        name = f"{platform.machine()}, {platform.processor()}, {os.cpu_count()} processors"
    said = {
        "loadmaster": loadmaster.__version__,
        "torch": torch.__version__,
        "device": name,
        "threads": torch.get_num_threads(),
        "products": torch.get_float32_matmul_precision(),
        "convolutions": (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "compiled": compiled,
        "channels last": channels_last,
    }
    return KeptTimes(kept_path(ROOM, *(f"{what}: {value}" for what, value in said.items())))


def _digest(key: Hashable) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()[:24]
