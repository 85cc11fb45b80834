"""Rows of ``benchmarks.memory_knob``: their list, models compiled together on one GPU, and the summary."""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from benchmarks import record
from benchmarks.gpu.budgets import Row
from benchmarks.gpu.process import Process
from benchmarks.gpu.turns import Turns

ROW_LIMIT_S = 900
AT_KNOB, HALF_WAY = "knob ", "half-way"
# Peaks of one compiled step differ by up to 2 MiB from process to process; people write budgets like 3.36 GiB.
UNIT_BYTES = (1 << 30) // 100
LEAST_LEFT_S = 90  # of --wall: no row begins with less
Sitting = list[Row]
"""Rows that are measured one after another, each with what those before it left in the caches."""


def sittings(
    name: str,
    device: str,
    knobs: Sequence[float],
    shares: Sequence[str] = (),
    *,
    asked: Sequence[str] = (),
    small: bool,
    once: bool,
    mode: str | None = None,
) -> Generator[Sitting, list[Row], None]:
    """Yield all rows of a model; each sitting is sent what was found in it.

    Args:
        shares: of eager's peak, to fit to instead of the knobs' peaks.
        asked: budgets to fit to, by name; if empty, all shares, or all but the first knob's.
        mode: of torch.compile and of fit, if not the default.
    """
    base = {"case": name, "device": device, "small": small}
    asked_mode = {} if mode is None else {"mode": mode}
    peers: list[Row] = []
    eager = (yield [{**base, "method": "eager"}]) if shares else []
    if not all("peak_bytes" in row for row in eager):
        return
    for knob in knobs:
        peers += yield [{**base, **asked_mode, "method": "compile", "knob": knob}]
    peaks = [p["peak_bytes"] for p in peers if "peak_bytes" in p]
    if len(peaks) < len(knobs):
        return
    budgets = {f"{AT_KNOB}{knob}": -(-peak // UNIT_BYTES) * UNIT_BYTES for knob, peak in zip(knobs, peaks, strict=True)}
    below = [*budgets][1:] or [*budgets]
    for row, share in itertools.product(eager, shares):
        budgets[share] = int(float(share.removesuffix("%")) / 100 * row["peak_bytes"])
    for budget in asked or shares or (*below, HALF_WAY):
        wanted = {
            **base,
            **asked_mode,
            "method": "fit",
            "asked": budget,
            "budget_bytes": budgets.get(budget),
            "lowest_bytes": min(peaks),
        }
        yield [{**wanted, "again": again} for again in ((False,) if once else (False, True))]


class Model:
    """State of a model whose rows are being measured.

    Args:
        known: the row as measured before, if it was.
    """

    def __init__(self, sittings: Generator[Sitting, list[Row], None], known: Callable[[Row], Row | None]) -> None:
        self._sittings, self._known = sittings, known
        self._found: list[Row] = []
        self._left: Sitting = []
        self._caches: tempfile.TemporaryDirectory[str] | None = None
        self._sit(next(sittings))

    @property
    def wanted(self) -> Row | None:
        """Row to measure next; None when all are measured."""
        return self._left[0] if self._left else None

    @property
    def caches(self) -> Path:
        """Folder of caches that the rows of this sitting share."""
        self._caches = self._caches or tempfile.TemporaryDirectory()
        return Path(self._caches.name)

    def take(self, found: Row) -> None:
        """Take in what was found of the row that was wanted."""
        self._found.append(found)
        del self._left[0]
        if not self._left:
            self.end()
            self._go_on()

    def end(self) -> None:
        """Remove the caches of this sitting."""
        if self._caches is not None:
            self._caches.cleanup()
            self._caches = None

    def _sit(self, sitting: Sitting) -> None:
        self._found, self._left = [], list(sitting)
        known = [self._known(row) for row in sitting]
        if all(row is not None for row in known):
            self._found, self._left = [row for row in known if row is not None], []
            self._go_on()

    def _go_on(self) -> None:
        with contextlib.suppress(StopIteration):
            self._sit(self._sittings.send(self._found))


class Rows:
    """Rows of a folder: each is measured once.

    Args:
        jobs: models at once.
    """

    def __init__(self, folder: Path, stop_at: float, jobs: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.path = folder, folder / "rows.json"
        self.stop_at, self.jobs = stop_at, jobs
        self.rows: list[Row] = json.loads(self.path.read_text()) if self.path.exists() else []
        self.turns = Turns()
        self.started = 0

    def known(self, wanted: Row) -> Row | None:
        """Find a row as it was measured before."""
        return next((r for r in self.rows if "failed" not in r and _is_row(r, wanted)), None)

    def join(self, rows: Sequence[Row]) -> None:
        """Take in what another run measured."""
        for row in rows:
            self.rows = [r for r in self.rows if not _is_row(r, row)] + [row]

    def measure(self, models: Sequence[Model]) -> None:
        """Measure what is missing of these models, as far as the time goes."""
        waiting, active = deque(models), dict[Process, Model]()
        while True:
            while waiting and len(active) < self.jobs and self._has_time:
                self._begin(waiting.popleft(), active)
            if not active:
                return
            for process in list(active):
                is_late = process.running_s > ROW_LIMIT_S
                if is_late or time.monotonic() > self.stop_at:
                    model = active.pop(process)
                    self._end(process)
                    if is_late:
                        self._finish(process, {"failed": f"took more than {ROW_LIMIT_S} s"}, model, active)
                    else:
                        model.end()
            if (heard := self.turns.next()) is not None:
                process, facts = heard
                model = active.pop(process)
                self._end(process)
                self._finish(process, facts, model, active)

    @property
    def _has_time(self) -> bool:
        return time.monotonic() < self.stop_at - LEAST_LEFT_S

    def _begin(self, model: Model, active: dict[Process, Model]) -> None:
        row = model.wanted
        if row is None:
            return
        self.started += 1
        log = self.folder / "logs" / f"{self.started}.log"
        log.parent.mkdir(exist_ok=True)
        order = json.dumps({**row, "beside": self.jobs - 1})
        command = ["benchmarks.memory_knob", "--row", order]
        process = Process(row, command, log, self.turns.heard, self._environment(model.caches))
        self.turns.running.append(process)
        active[process] = model

    def _environment(self, caches: Path) -> dict[str, str]:
        kept = {
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
            "LOADMASTER_MEASUREMENT_CACHE": str(caches / "loadmaster"),
        }
        if self.jobs > 1:
            kept["TORCHINDUCTOR_COMPILE_THREADS"] = str(max(1, record.machine()["cores"] // self.jobs))
        return kept

    def _end(self, process: Process) -> None:
        self.turns.forget(process)
        process.end(patience_s=1.0)

    def _finish(self, process: Process, facts: Row, model: Model, active: dict[Process, Model]) -> None:
        if "error" in facts:
            facts = {"failed": facts["error"]}
        if "there" in process.clock:
            proof_s = facts.get("proof_s", 0.0)  # nobody waits for it who has a budget
            facts["first_step_s"] = process.clock["there"] - process.clock["began"] - proof_s
        found = process.row | facts
        self.join([found])
        record.write_whole(self.path, json.dumps(self.rows))
        print(shown(found), flush=True)
        model.take(found)
        if self._has_time:
            self._begin(model, active)
        else:
            model.end()


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
