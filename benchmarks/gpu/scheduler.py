"""Scheduler of rows on one GPU: several compile at once, one measures at a time.

Rows compile together with others and first run alone, when Inductor chooses variants of kernels; while one measures the
others stand still, but for planners. A wall limit ends the run in time to measure what waits for it and to write that
down; another run goes on from there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.budgets import Row, budget_bytes, identity
from benchmarks.gpu.process import Process
from benchmarks.gpu.turns import Turns
from benchmarks.gpu.zoo import case

# A row holds the GPU's context and its own workspaces in addition to what it counts.
CONTEXT_GIB = 0.8
ALLOCATOR_FACTOR = 1.15
# A row that is not ready after this long has failed. Three tries of GoogleNet next to eleven other rows took 420 s.
ROW_LIMIT_S = 600.0
# A plan is made before its step is compiled, and sometimes twice.
PLANNED_MARGIN = 1.8
# What measuring a row takes, and what is kept in hand at the end.
MEASURE_S = 2.0
LAST_S = 5.0


@dataclass(frozen=True)
class Limits:
    """Limits on time and memory of a run.

    Attributes:
        wall_s: seconds in all.
        start_margin_s: no row is started when less than this is left; rows that plan need more.
        jobs: rows that compile at once.
        memory_gib: GPU memory of all rows together.
    """

    wall_s: float
    start_margin_s: float
    jobs: int
    memory_gib: float


class Scheduler:
    """Scheduler of one run over the rows wanted.

    Args:
        rows: measured so far, by earlier runs too; this run's are added.
        order: what workers are told (device, folder, small).
        note: called after every finished row.
        run_number: that rows are marked with.
    """

    def __init__(
        self,
        wanted: Sequence[Row],
        rows: list[Row],
        limits: Limits,
        order: dict[str, Any],
        note: Callable[[], None],
        run_number: int,
    ) -> None:
        self.rows = rows
        self.limits = limits
        self.order = order
        self.note = note
        self.run_number = run_number
        self.began = time.monotonic()
        self.pending = self._missing(wanted)
        self.turns = Turns()
        self.started = 0

    def run(self) -> None:
        """Run until every row is measured or the time is up."""
        while True:
            self._start_rows()
            self._end_late()
            if not self.turns.running:
                break
            if (found := self.turns.next()) is not None:
                self._finish(*found)
        for row in self.pending:
            print(f"left for another run: {describe(row)}", flush=True)

    def _missing(self, wanted: Sequence[Row]) -> list[Row]:
        """Rows not measured yet. Where a case has any, it is captured and its plain step measured in this run too:
        costs are in this run's folder then, and what is compared was measured on one machine."""
        self.rows[:] = [row for row in self.rows if "error" not in row]
        done = {identity(row) for row in self.rows}
        missing = [row for row in wanted if identity(row) not in done and row["method"] != "capture"]
        cases = {row["case"] for row in missing}
        again = [r for r in wanted if r["case"] in cases and (r["method"] == "capture" or r.get("knob") == 1.0)]
        return [row for row in wanted if row in missing or row in again]

    @property
    def left_s(self) -> float:
        return self.limits.wall_s - (time.monotonic() - self.began)

    def _start_rows(self) -> None:
        for row in list(self.pending):
            if len(self.turns.running) >= self.limits.jobs:
                return
            margin = PLANNED_MARGIN if row["method"] == "loadmaster" else 1.0
            if self.left_s < margin * self.limits.start_margin_s:
                continue
            order = dict(row)
            captured = any(
                (r["case"], r["method"], r["run"]) == (row["case"], "capture", self.run_number) for r in self.rows
            )
            if row["method"] == "loadmaster":
                found = budget_bytes(row["budget"], row["case"], self.rows)
                if found is None or not captured:
                    continue
                order["budget_bytes"] = found
            if not self._fits(order):
                continue
            self.pending.remove(row)
            self.started += 1
            log = Path(self.order["folder"]) / "logs" / f"{self.run_number}-{self.started}.log"
            log.parent.mkdir(exist_ok=True)
            threads = "2" if self.order["device"] == "cuda" else "1"
            command = ["benchmarks.gpu.worker", json.dumps({"row": order, **self.order})]
            environment = {"TORCHINDUCTOR_COMPILE_THREADS": threads, "OMP_NUM_THREADS": threads}
            self.turns.running.append(Process(order, command, log, self.turns.heard, environment))

    def _fits(self, row: Row) -> bool:
        """Return whether a row fits on the GPU: plans are tried while others run, all else runs alone."""
        rows = [*(p.row for p in self.turns.running), row]
        held = sum(needs_gib(r) if r["method"] == "loadmaster" else rests_gib(r) for r in rows)
        alone = max((needs_gib(r) - rests_gib(r) for r in rows if r["method"] != "loadmaster"), default=0.0)
        return len(rows) == 1 or held + alone <= self.limits.memory_gib

    def _end_late(self) -> None:
        """Stop rows that have run for too long; near the end those with nothing to measure yet, and then all."""
        near = self.left_s < 2 * LAST_S + MEASURE_S * len(self.turns.asking)
        for process in list(self.turns.running):
            waits = process is self.turns.alone or process in self.turns.asking
            if self.left_s < LAST_S or (near and not waits):
                self.turns.forget(process)
                process.stop()
                self.pending.append({k: v for k, v in process.row.items() if k != "budget_bytes"})
            elif process.running_s > ROW_LIMIT_S and not waits:
                process.stop()
                self._finish(process, {"error": f"not there after {ROW_LIMIT_S:.0f} s: {process.last_words()}"})

    def _finish(self, process: Process, facts: dict[str, Any]) -> None:
        self.turns.forget(process)
        process.end(patience_s=1.0 if "error" in facts else 0.0)
        row = {**process.row, **facts, "run": self.run_number}
        row |= {"seconds": round(process.running_s, 1), "frozen_s": round(process.frozen_s, 1)}
        self.rows.append(row)
        print(f"{time.monotonic() - self.began:5.0f} s  {describe(row)}", flush=True)
        self.note()


def needs_gib(row: Row) -> float:
    """Estimate the GPU memory in GiB that a row takes while it runs."""
    model = case(row["case"])
    if row["method"] == "capture":
        return model.resident_gib + model.eager_gib / 4 + CONTEXT_GIB
    own = model.eager_gib
    if "budget_bytes" in row:
        own = min(own, row["budget_bytes"] / 2**30)
    return ALLOCATOR_FACTOR * own + model.resident_gib + CONTEXT_GIB


def rests_gib(row: Row) -> float:
    """Estimate the GPU memory in GiB that a row holds before it runs."""
    return case(row["case"]).resident_gib + CONTEXT_GIB


def describe(row: Row) -> str:
    """Format a row's result in one line."""
    method = " ".join(str(row[k]) for k in ("method", "knob", "budget", "implementations") if k in row)
    start = f"{row['case']:12} {method:34}"
    if "error" in row or "refused" in row:
        return f"{start} {'failed: ' + row['error'] if 'error' in row else 'refused: ' + row['refused']}"
    if "step_us" not in row:
        facts = {k: row[k] for k in ("capture_s", "least_bytes", "forward_operators") if k in row}
        return f"{start} {json.dumps(facts)}" if facts else start
    low, high = row["quartiles_us"]
    line = f"{start} {row['step_us'] / 1e3:8.2f} ms ({low / 1e3:.2f}..{high / 1e3:.2f})"
    line += f" {row['peak_bytes'] / 2**30:6.2f} GiB"
    if row.get("planned_peak_bytes"):
        kept = "kept" if row["peak_bytes"] <= row["budget_bytes"] else "BROKEN"
        line += f" of {row['budget_bytes'] / 2**30:.2f}, {kept}; planned {row['planned_step_us'] / 1e3:.2f} ms"
        line += f" {row['planned_peak_bytes'] / 2**30:.2f} GiB"
    return line
