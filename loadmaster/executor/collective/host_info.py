"""Host information of a rank: what it can see of the machine it runs on, and what is hidden from it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class HostInfo:
    """Host and device as one rank sees them.

    Attributes:
        gpu, pci: name and bus address of its GPU; None: none, or not told.
        numa: node of the GPU, or of the cores that the process may use; None: hidden, or several.
        matrix: what ``nvidia-smi topo -m`` says; None: not there.
    """

    host: str
    gpu: str | None
    pci: str | None
    numa: int | None
    cores: int
    matrix: str | None


def host_info(device: torch.device) -> HostInfo:
    """Read the host information of this process and its device."""
    gpu = pci = matrix = None
    numa = _numa_of_cores()
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        gpu, pci = properties.name, _pci(properties)
        numa = None if pci is None else _number(Path(f"/sys/bus/pci/devices/{pci}/numa_node"))
        matrix = _matrix()
    return HostInfo(socket.gethostname(), gpu, pci, numa, len(os.sched_getaffinity(0)), matrix)


def _pci(properties: object) -> str | None:
    """PCI address of a GPU as Linux writes it; releases of PyTorch before 2.8 do not tell it."""
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if not all(isinstance(part, int) for part in parts):
        return None
    domain, bus, device = parts
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def _numa_of_cores() -> int | None:
    mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    nodes = [
        int(node.name.removeprefix("node"))
        for node in Path("/sys/devices/system/node").glob("node[0-9]*")
        if mine & {entry.name for entry in node.glob("cpu[0-9]*")}
    ]
    return nodes[0] if len(nodes) == 1 else None


def _number(path: Path) -> int | None:
    """Number of a NUMA node in a file under /sys; None where it is not told: virtual machines often say -1."""
    try:
        found = int(path.read_text())
    except (OSError, ValueError):
        return None
    return found if found >= 0 else None


def _matrix() -> str | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    said = subprocess.run([tool, "topo", "-m"], capture_output=True, text=True, timeout=60, check=False)
    return said.stdout.rstrip() if said.returncode == 0 else None
