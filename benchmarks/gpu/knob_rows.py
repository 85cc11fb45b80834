"""Rows of ``benchmarks.memory_knob``: their list, models measured side by side on one GPU, and the summary."""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks import record
from benchmarks.gpu.budgets import Row
from benchmarks.gpu.process import run_row

ROW_LIMIT_S = 900
AT_KNOB, HALF_WAY = "knob ", "half-way"
# Peaks of one compiled step differ by up to 2 MiB from process to process; people write budgets like 3.36 GiB.
UNIT_BYTES = (1 << 30) // 100
LEAST_LEFT_S = 90  # of --wall: no row begins with less


@dataclass(frozen=True)
class Wanted:
    """Rows wanted of each model.

    Attributes:
        knobs: of torch.compile, highest first.
        shares: of eager's peak, to fit to instead of the knobs' peaks.
        asked: budgets to fit to, by name; if empty, all shares, or all but the first knob's.
        mode: of torch.compile and of fit, if not the default.
    """

    device: str
    knobs: Sequence[float]
    shares: Sequence[str] = ()
    asked: Sequence[str] = ()
    small: bool = False
    once: bool = False
    mode: str | None = None


class Rows:
    """Rows of a folder: each is measured once.

    Args:
        jobs: models at once.
    """

    def __init__(self, folder: Path, stop_at: float, jobs: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.path = folder.resolve(), folder / "rows.json"
        self.stop_at, self.jobs = stop_at, jobs
        self.rows: list[Row] = json.loads(self.path.read_text()) if self.path.exists() else []
        self._writing = threading.Lock()

    def join(self, rows: Sequence[Row]) -> None:
        """Take in what another run measured."""
        for row in rows:
            self.rows = [r for r in self.rows if not _is_row(r, row)] + [row]

    def measure(self, models: Sequence[str], wanted: Wanted) -> None:
        """Measure what is missing of these models, as far as the time goes."""
        with ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(lambda model: self._measure_model(model, wanted), models))

    def _measure_model(self, name: str, wanted: Wanted) -> None:
        base = {"case": name, "device": wanted.device, "small": wanted.small}
        mode = {} if wanted.mode is None else {"mode": wanted.mode}
        eager = self._sitting([{**base, "method": "eager"}]) if wanted.shares else []
        if wanted.shares and not any("peak_bytes" in row for row in eager):
            return
        peaks = []
        for knob in wanted.knobs:
            found = self._sitting([{**base, **mode, "method": "compile", "knob": knob}])
            peaks += [row["peak_bytes"] for row in found if "peak_bytes" in row]
        if len(peaks) < len(wanted.knobs):
            return
        budgets = {
            f"{AT_KNOB}{knob}": -(-peak // UNIT_BYTES) * UNIT_BYTES
            for knob, peak in zip(wanted.knobs, peaks, strict=True)
        }
        below = [*budgets][1:] or [*budgets]
        for row, share in itertools.product(eager, wanted.shares):
            budgets[share] = int(float(share.removesuffix("%")) / 100 * row["peak_bytes"])
        for asked in wanted.asked or wanted.shares or (*below, HALF_WAY):
            fit = {**base, **mode, "method": "fit", "asked": asked, "budget_bytes": budgets.get(asked)}
            fit["lowest_bytes"] = min(peaks)
            self._sitting([{**fit, "again": again} for again in ((False,) if wanted.once else (False, True))])

    def _sitting(self, wanted: Sequence[Row]) -> list[Row]:
        """Measure rows one after another, each with what those before it left in the caches, unless all are known.

        Returns fewer when the time is up.
        """
        known = [next((r for r in self.rows if "failed" not in r and _is_row(r, row)), None) for row in wanted]
        if None not in known:
            return [row for row in known if row is not None]
        found: list[Row] = []
        with tempfile.TemporaryDirectory() as caches:
            for row in wanted:
                if time.monotonic() < self.stop_at - LEAST_LEFT_S and (result := self._measure(row, caches)):
                    found.append(result)
        return found

    def _measure(self, row: Row, caches: str) -> Row | None:
        """Measure a row in a process of its own; None if the time is up before it is."""
        environment = {
            "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
            "TRITON_CACHE_DIR": f"{caches}/triton",
            "LOADMASTER_MEASUREMENT_CACHE": f"{caches}/loadmaster",
        }
        lock = None
        if self.jobs > 1:
            lock = str(self.folder / "gpu.lock")
            environment["TORCHINDUCTOR_COMPILE_THREADS"] = str(max(1, record.machine()["cores"] // self.jobs))
        log = self.folder / "logs" / f"{time.time_ns()}.log"
        limit_s = min(ROW_LIMIT_S, self.stop_at - time.monotonic())
        facts = run_row(["benchmarks.memory_knob", "--row"], {**row, "lock": lock}, log, limit_s, environment)
        if "error" in facts:
            if time.monotonic() > self.stop_at:
                return None
            facts = {"failed": facts["error"]}
        found = row | facts
        with self._writing:
            self.join([found])
            record.write_whole(self.path, json.dumps(self.rows))
            print(shown(found), flush=True)
        return found


def _is_row(row: Row, wanted: Row) -> bool:
    """Return whether a row is the one wanted; what it refers to may have been measured again since."""
    own = "again" if wanted["method"] == "fit" else "knob"  # fit's rows tell which knob it took
    return all(row.get(key) == wanted.get(key) for key in ("case", "device", "small", "method", "mode", "asked", own))


def shown(row: Row) -> str:
    """Format one row in a line."""
    what = {
        "eager": lambda: "eager",
        "compile": lambda: f"knob {row['knob']}",
        "fit": lambda: f"fit {row['asked']}{' again' * row['again']}",
    }[row["method"]]()
    what += f", {row['mode']}" if "mode" in row else ""
    if "failed" in row:
        return f"{row['case']}, {what}: {row['failed']}"
    peak = (
        f"{row['peak_bytes'] / 2**30:.2f} GiB, {row['step_us'] / 1e3:.1f} ms, there after {row['first_step_s']:.0f} s"
    )
    return f"{row['case']}, {what}: {peak}. {row.get('report', '')}"


def _is_of(row: Row, other: Row) -> bool:
    return row["case"] == other["case"] and row.get("mode") == other.get("mode")


def summary(rows: Sequence[Row]) -> Row:
    """Summarize all rows of ``fit``: its step over that of the fastest peer within the budget, and its wait.

    Where both were timed in turns, that is what counts; else those peers do that ran on the same GPU. Under a share of
    eager's peak its step is held against the fastest peer's, whatever that takes.
    """
    steps, of_fastest, waits, broken = [], [], [], 0
    for row in (r for r in rows if r["method"] == "fit" and not r["again"] and "step_us" in r):
        peers = [r for r in rows if r["method"] == "compile" and _is_of(r, row) and "step_us" in r]
        is_share = "%" in row["asked"]
        beside = [p for p in peers if p.get("gpu") == row.get("gpu")]
        took = [p["step_us"] for p in beside if is_share or p["peak_bytes"] <= row["budget_bytes"]]
        step_us, peer_us = row.get("turns_us") or (row["step_us"], min(took, default=None))
        if peer_us is not None:
            (of_fastest if is_share else steps).append(step_us / peer_us)
        broken += row["peak_bytes"] > row["budget_bytes"]
        waits.append(row["first_step_s"] / statistics.median(p["first_step_s"] for p in peers))
    return {
        "fits": len(waits),
        "budgets_broken": broken,
        "failed": sum("failed" in r for r in rows),
        "slowest_of_peer": max(steps, default=None),
        "geometric_mean_of_peer": statistics.geometric_mean(steps) if steps else None,
        "slowest_share_of_fastest": max(of_fastest, default=None),
        "median_wait_of_peer": statistics.median(waits) if waits else None,
    }
