"""What the benchmarks on one GPU share on the command line: where rows go, what limits a run, and running one."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.budgets import Row
from benchmarks.gpu.scheduler import Limits, Scheduler

# Of the GPU's memory, what rows may share.
MEMORY_SHARE = 0.92
# What a row takes from its start to its first step.
START_MARGIN_S = 75.0
SMALL_START_MARGIN_S = 15.0


def parser(description: str | None) -> argparse.ArgumentParser:
    """Arguments of every such benchmark."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, required=True, help="folder for rows and costs; kept from run to run")
    p.add_argument("--wall", type=float, default=3600.0, help="seconds; what is ready then is measured and written")
    p.add_argument("--jobs", type=int, default=8, help="rows that compile at once")
    p.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    p.add_argument("--small", action="store_true", help="small models, to try the benchmark itself")
    p.add_argument("--report", action="store_true", help="measure nothing")
    return p


def measured(arguments: argparse.Namespace, wanted: Sequence[Row]) -> list[Row]:
    """All rows there are, once those that are wanted and missing have been measured (unless only a report is asked)."""
    began = time.monotonic()
    arguments.out.mkdir(parents=True, exist_ok=True)
    record: Path = arguments.out / "rows.json"
    rows: list[Row] = json.loads(record.read_text()) if record.exists() else []

    def note() -> None:
        part = record.with_suffix(".part")
        part.write_text(json.dumps(rows, indent=1))
        part.replace(record)

    if not arguments.report:
        order = {"device": arguments.device, "folder": str(arguments.out.resolve()), "small": arguments.small}
        margin_s = SMALL_START_MARGIN_S if arguments.small else START_MARGIN_S
        left_s = arguments.wall - (time.monotonic() - began)
        limits = Limits(left_s, margin_s, arguments.jobs, memory_gib(arguments.device))
        Scheduler(wanted, rows, limits, order, note).run()
    return rows


def is_recorded(arguments: argparse.Namespace) -> bool:
    """Whether what was measured belongs under ``benchmarks/results/``."""
    return arguments.device == "cuda" and not arguments.report


def memory_gib(device: str) -> float:
    """What rows may take together."""
    import torch

    if device != "cuda":
        return 1e9
    return MEMORY_SHARE * torch.cuda.get_device_properties(0).total_memory / 2**30
