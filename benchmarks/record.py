"""Writes a benchmark's figures to ``benchmarks/results/NAME.json``, with what is needed to judge and repeat them."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import loadmaster

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("numpy", "highspy", "ortools", "pulp", "torch", "triton")


def write(name: str, payload: dict[str, Any]) -> Path:
    """Write ``payload`` with date, machine, versions and command; returns the file's path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {
        "benchmark": name,
        "date": now(),
        "command": command(),
        "machine": machine(),
        "versions": versions(),
        **payload,
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path


def read_rows(name: str) -> list[dict[str, Any]]:
    """Read the rows that were written before; none where nothing was."""
    path = RESULTS / f"{name}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    return rows


def now() -> str:
    """Return date and time in words."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def write_whole(path: Path, text: str) -> None:
    """Write a text file whole or not at all, whatever other processes read or write there meanwhile."""
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(text)
    part.replace(path)


def machine() -> dict[str, Any]:
    """Describe the machine: processor, cores that this process may use, system, and the GPU if torch is loaded."""
    found: dict[str, Any] = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name(0)
        found["gpu_count"] = torch.cuda.device_count()
    return found


def versions(*more: str) -> dict[str, str]:
    """Versions of Python, Loadmaster, and the packages concerned that are installed, with ``more`` packages."""
    found = {"python": platform.python_version(), "loadmaster": loadmaster.__version__}
    for package in (*_PACKAGES, *more):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def command() -> str:
    """Command to type in the repository's root to run this again."""
    module = getattr(sys.modules["__main__"].__spec__, "name", sys.argv[0])
    return " ".join(["python", "-m", module, *sys.argv[1:]])


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
