"""Run of rows that can be cut short, and continued in its folder or, on another machine, from what was recorded."""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.gpu.budgets import Row, identity
from benchmarks.gpu.scheduler import Limits, Scheduler

# Of the GPU's memory, what rows may share.
MEMORY_SHARE = 0.92


def parser(description: str | None) -> argparse.ArgumentParser:
    """Parser of the options that every benchmark made of rows has."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, required=True, help="folder for rows, costs and logs; kept from run to run")
    p.add_argument("--wall", type=float, default=3600.0, help="seconds; what is there by then is written")
    p.add_argument("--jobs", type=int, default=8, help="rows that compile at once")
    p.add_argument("--margin", type=float, default=75.0, help="seconds a row takes from its start to its first step")
    p.add_argument("--refused", action="store_true", help="measure again what was refused")
    p.add_argument("--again", action="store_true", help="measure again all that is asked for")
    p.add_argument("--fresh", action="store_true", help="begin with no rows, whatever was recorded")
    p.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    p.add_argument("--small", action="store_true", help="small models, to try the benchmark itself")
    p.add_argument("--report", action="store_true", help="measure nothing")
    p.add_argument("--join", type=Path, nargs="+", default=[], help="folders of runs beside this one, on other GPUs")
    return p


class Session:
    """Rows of one benchmark, kept from run to run.

    They are those of ``--out``; if it has none, those of ``benchmarks/results`` where these were measured on the same
    kind of GPU; or none.

    Args:
        name: of the benchmark and its result.
        arguments: as :func:`parser` makes them.
    """

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        self.name = name
        self.arguments = arguments
        self.began = time.monotonic()
        self.path = arguments.out / "rows.json"
        arguments.out.mkdir(parents=True, exist_ok=True)
        kept = {} if arguments.fresh else self._found()
        self.rows: list[Row] = [r for r in kept.get("rows", []) if not (arguments.refused and "refused" in r)]
        self.runs: list[dict[str, Any]] = kept.get("runs", [])
        for folder in arguments.join:
            self._join(json.loads((folder / "rows.json").read_text()))

    def _found(self) -> dict[str, Any]:
        if self.path.exists():
            return dict(json.loads(self.path.read_text()))
        recorded = record.RESULTS / f"{self.name}.json"
        if self.arguments.small or self.arguments.device != "cuda" or not recorded.exists():
            return {}
        kept = dict(json.loads(recorded.read_text()))
        if kept["machine"].get("gpu") != record.machine().get("gpu"):
            return {}
        print(f"goes on from {len(kept['rows'])} recorded rows")
        return kept

    def _join(self, other: dict[str, Any]) -> None:
        """Take in another run's rows, its runs numbered on. What it planned takes the place of earlier plans for the
        same; earlier rows of PyTorch's stay, for the plans that were measured together with them."""
        last = self._last_run()
        replaced = {identity(row) for row in other["rows"] if row["method"] in ("capture", "loadmaster")}
        self.rows[:] = [row for row in self.rows if identity(row) not in replaced]
        self.rows += [{**row, "run": last + row["run"]} for row in other["rows"]]
        self.runs += [{**run, "run": last + run["run"]} for run in other["runs"]]

    def _last_run(self) -> int:
        """Number of the last run, also of one whose rows are all to be measured again."""
        return max((run["run"] for run in self.runs), default=0)

    def note(self) -> None:
        """Write rows and runs to the session's folder."""
        record.write_whole(self.path, json.dumps({"runs": self.runs, "rows": self.rows}, indent=1))

    def measure(self, wanted: Sequence[Row]) -> None:
        """Measure the rows that are missing, as far as the time goes."""
        a = self.arguments
        if a.report:
            return
        if a.again:
            asked = {identity(row) for row in wanted}
            self.rows[:] = [row for row in self.rows if identity(row) not in asked]
        order = {"device": a.device, "folder": str(a.out.resolve()), "small": a.small}
        limits = Limits(a.wall - (time.monotonic() - self.began), a.margin, a.jobs, _memory_gib(a.device))
        run_number = self._last_run() + 1
        scheduler = Scheduler(wanted, self.rows, limits, order, self.note, run_number)
        date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        versions = ", ".join(f"{name} {number}" for name, number in record.versions().items())
        self.runs.append({"run": run_number, "date": date, "command": record.command(), "versions": versions})
        scheduler.run()
        self.note()

    def write(self, tables: dict[str, Any]) -> None:
        """Record figures in ``benchmarks/results``, with rows for another machine to go on from; trials are not."""
        if self.arguments.device == "cuda" and not self.arguments.small:
            kept = {"runs": self.runs, "rows": self.rows}
            print(record.write(self.name, {**tables, **kept, "not_shown": ["rows"]}))


def _memory_gib(device: str) -> float:
    """GPU memory in GiB that rows may take together."""
    import torch

    if device != "cuda":
        return 1e9
    return MEMORY_SHARE * torch.cuda.get_device_properties(0).total_memory / 2**30
