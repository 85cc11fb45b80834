"""Run of rows that can be cut short, and continued in its folder or, on another machine, from what was recorded."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.gpu.budgets import Row, budget_bytes, identity
from benchmarks.gpu.process import run_row

# A row that is not ready after this long, turns of others included, has failed.
ROW_LIMIT_S = 900.0
# A plan is made before its step is compiled, and sometimes twice.
PLANNED_MARGIN = 1.8
# What is kept in hand at the end.
LAST_S = 5.0


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
        versions = ", ".join(f"{name} {number}" for name, number in record.versions().items())
        run = self._last_run() + 1
        self.runs.append({"run": run, "date": record.now(), "command": record.command(), "versions": versions})
        pending = self._missing(wanted)
        running: dict[Future[Row], Row] = {}
        with ThreadPoolExecutor(a.jobs) as pool:
            while True:
                for row in list(pending):
                    if len(running) < a.jobs and (order := self._order(row, run)) is not None:
                        pending.remove(row)
                        running[pool.submit(self._found_by, order)] = row
                if not running:
                    break
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    row = running.pop(done)
                    if "error" in done.result() and self._left_s <= LAST_S:
                        pending.append(row)
                        continue
                    self.rows.append({**done.result(), "run": run})
                    print(f"{time.monotonic() - self.began:5.0f} s  {describe(self.rows[-1])}", flush=True)
                    self.note()
        for row in pending:
            print(f"left for another run: {describe(row)}", flush=True)
        self.note()

    @property
    def _left_s(self) -> float:
        return float(self.arguments.wall) - (time.monotonic() - self.began)

    def _missing(self, wanted: Sequence[Row]) -> list[Row]:
        """Rows not measured yet. Where a case has any, it is captured and its plain step measured in this run too:
        costs are in this run's folder then, and what is compared was measured on one machine."""
        self.rows[:] = [row for row in self.rows if "error" not in row]
        done = {identity(row) for row in self.rows}
        missing = [row for row in wanted if identity(row) not in done and row["method"] != "capture"]
        cases = {row["case"] for row in missing}
        again = [r for r in wanted if r["case"] in cases and (r["method"] == "capture" or r.get("knob") == 1.0)]
        return [row for row in wanted if row in missing or row in again]

    def _order(self, row: Row, run: int) -> dict[str, Any] | None:
        """Make the order to measure a row; None as long as it cannot be."""
        is_planned = row["method"] == "loadmaster"
        if self._left_s < LAST_S + self.arguments.margin * (PLANNED_MARGIN if is_planned else 1.0):
            return None
        if is_planned:
            captured = (row["case"], "capture", run)
            size = budget_bytes(row["budget"], row["case"], self.rows)
            if size is None or all((r["case"], r["method"], r.get("run")) != captured for r in self.rows):
                return None
            row = {**row, "budget_bytes": size}
        folder = self.arguments.out.resolve()
        lock = str(folder / "gpu.lock") if self.arguments.jobs > 1 else None
        return {
            "row": row,
            "device": self.arguments.device,
            "folder": str(folder),
            "small": self.arguments.small,
            "lock": lock,
        }

    def _found_by(self, order: dict[str, Any]) -> Row:
        """Measure a row, its budget with it."""
        began, row = time.monotonic(), order["row"]
        log = Path(order["folder"]) / "logs" / f"{time.time_ns()}.log"
        threads = {}
        if self.arguments.jobs > 1 or self.arguments.device == "cpu":
            number = "2" if self.arguments.device == "cuda" else "1"
            threads = {"TORCHINDUCTOR_COMPILE_THREADS": number, "OMP_NUM_THREADS": number}
        limit_s = min(ROW_LIMIT_S, self._left_s - LAST_S)
        found = run_row(["benchmarks.gpu.worker"], order, log, limit_s, threads)
        return {**row, **found, "seconds": round(time.monotonic() - began, 1)}

    def write(self, tables: dict[str, Any]) -> None:
        """Record figures in ``benchmarks/results``, with rows for another machine to go on from; trials are not."""
        if self.arguments.device == "cuda" and not self.arguments.small:
            kept = {"runs": self.runs, "rows": self.rows}
            print(record.write(self.name, {**tables, **kept, "not_shown": ["rows"]}))


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
