"""``fit`` beside torch.compile under its own knob: the peak, the step, and the time until it is there.

    python -m benchmarks.memory_knob --out DIR [--cases "torchvision vit_b_16" MODULE:FACTORY ...] [--wall SECONDS]

Of each model: torch.compile as its users call it, under three values of ``activation_memory_budget``; then ``fit`` at
the peaks of all but the first, and half-way from the lowest of all to what every plan is proved to need. Each row is a
process of its own that begins with empty caches of Inductor, Triton and Loadmaster; ``fit`` once more with what the
first one left tells what the next run of a script waits for. Rows are in DIR after each, and a run goes on from them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import loadmaster
from benchmarks import record
from benchmarks.gpu.cases import build
from benchmarks.gpu.zoo import ZOO, case
from loadmaster.errors import LoadmasterError
from loadmaster.executor import measure
from loadmaster.executor.memory.fit.fit import Fitter
from loadmaster.executor.steps.factory import call_factory
from loadmaster.executor.steps.resident import device_of
from loadmaster.models.memory.minimum import minimum_budget

Row = dict[str, Any]

KNOBS = (1.0, 0.5, 0.2)
STEPS = 15
PLAN_LIMIT_S = 20.0
ROW_LIMIT_S = 900
LEAST_LEFT_S = 60  # of --wall: no row begins with less


def made(name: str, device: str, *, small: bool) -> tuple[Any, Any, Any, Callable[[], Any]]:
    """Model, batch, loss and precision of a case, or of a factory of the user's, which trains in bfloat16."""
    if ":" not in name:
        return build(case(name), device, small=small)
    model, batch, loss = call_factory(name, torch.device(device))
    return model, batch, loss, lambda: torch.autocast(torch.device(device).type, torch.bfloat16)


def measured(row: Row) -> Row:
    """The row with what it measured, in this process."""
    model, batch, loss, precision = made(row["case"], row["device"], small=row["small"])
    device = device_of(model, batch)
    found: Row = {}
    began = time.perf_counter()
    with precision():
        if row["method"] == "compile":
            step = compiled(model, loss, row["knob"])
        else:
            step = fitted(model, batch, loss, row, found)

    def run() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        with precision():
            value = step(**batch) if isinstance(batch, dict) else step(*batch)
        value.backward()
        return value.detach()

    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    found["first_step_s"] = time.perf_counter() - began - found.get("proof_s", 0.0)
    held = [*model.parameters(), *model.buffers(), *torch.utils._pytree.tree_leaves(batch)]
    result = measure(run, resident=[t for t in held if isinstance(t, torch.Tensor)], device=device, repeats=STEPS)
    norms = [p.grad.double().square().sum() for p in model.parameters() if p.grad is not None]
    found["gradient_norm"] = float(torch.stack(norms).sum().sqrt())
    return found | {"peak_bytes": result.peak_bytes, "step_us": result.step_us, "resident_bytes": result.resident_bytes}


def compiled(model: Any, loss: Any, knob: float) -> Callable[..., torch.Tensor]:
    """The step as users write it."""
    import torch._functorch.config as functorch_config

    functorch_config.activation_memory_budget = knob

    def plain(*batch: Any, **named: Any) -> torch.Tensor:
        if loss is not None:
            return loss(model(*batch[:-1]), batch[-1])
        found = model(*batch, **named)
        return found if isinstance(found, torch.Tensor) else found.loss

    return torch.compile(plain)


def fitted(model: Any, batch: Any, loss: Any, row: Row, found: Row) -> Callable[..., torch.Tensor]:
    """The step that ``fit`` gives; what it says of itself goes to ``found``."""
    fitter = Fitter(model, batch, loss)
    budget_bytes = row["budget_bytes"]
    if budget_bytes is None:
        problem, began = fitter.costed.plain, time.perf_counter()
        least_bytes = minimum_budget(problem).budget_bytes
        found["proof_s"] = time.perf_counter() - began  # nobody waits for it who has a budget
        budget_bytes = (row["lowest_bytes"] + least_bytes) // 2
    found["budget_bytes"] = budget_bytes
    done = fitter.fit(lambda problem: loadmaster.plan(problem, time_limit_s=PLAN_LIMIT_S), budget_bytes)
    found |= {"knob": done.knob, "report": done.report, "seconds": dict(done.seconds)}
    found["tries"] = [[t.planned_us, t.measured.step_us, t.used_bytes, t.kept] for t in done.tries]
    found["knob_tries"] = [[t.knob, t.measured.step_us, t.used_bytes, t.kept] for t in done.knob_tries]
    return done.step


def in_a_process(row: Row, caches: Path) -> Row:
    """The row with what another process measured."""
    where = {
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "LOADMASTER_MEASUREMENT_CACHE": str(caches / "loadmaster"),
    }
    command = [sys.executable, "-m", "benchmarks.memory_knob", "--row", json.dumps(row)]
    try:
        done = subprocess.run(command, env=os.environ | where, capture_output=True, text=True, timeout=ROW_LIMIT_S)
    except subprocess.TimeoutExpired:
        return row | {"failed": f"took more than {ROW_LIMIT_S} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return row | {"failed": "\n".join(done.stderr.strip().splitlines()[-3:])}
    return row | json.loads(lines[-1])


class Rows:
    """The rows of a folder: each is measured once."""

    def __init__(self, folder: Path, stop_at: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "rows.json"
        self.stop_at = stop_at
        self.rows: list[Row] = json.loads(self.path.read_text()) if self.path.exists() else []

    def row(self, wanted: Row, caches: Path) -> Row | None:
        """The row that was asked for; None where there is no time for it."""
        for found in self.rows:
            if "failed" not in found and _is_row(found, wanted):
                return found
        if time.monotonic() > self.stop_at - LEAST_LEFT_S:
            return None
        found = in_a_process(wanted, caches)
        self.rows = [r for r in self.rows if not _is_row(r, wanted)] + [found]
        record.write_whole(self.path, json.dumps(self.rows))
        print(shown(found), flush=True)
        return found

    def of(self, name: str, device: str, knobs: Sequence[float], *, small: bool, once: bool) -> None:
        """All rows of a model."""
        base = {"case": name, "device": device, "small": small}
        peers = []
        for knob in knobs:
            with tempfile.TemporaryDirectory() as caches:
                peers.append(self.row({**base, "method": "compile", "knob": knob}, Path(caches)))
        peaks = [p["peak_bytes"] for p in peers if p is not None and "peak_bytes" in p]
        if len(peaks) < len(knobs):
            return
        for number, asked in enumerate((*peaks[len(peaks) > 1 :], None)):
            wanted = {**base, "method": "fit", "asked": number, "budget_bytes": asked, "lowest_bytes": min(peaks)}
            with tempfile.TemporaryDirectory() as caches:
                for again in (False,) if once else (False, True):
                    self.row({**wanted, "again": again}, Path(caches))


def _is_row(row: Row, wanted: Row) -> bool:
    """Whether it is the row that was asked for; what it was asked by may have been measured anew since."""
    own = "knob" if wanted["method"] == "compile" else "again"  # fit's rows tell which knob it took
    return all(row.get(key) == wanted.get(key) for key in ("case", "device", "small", "method", "asked", own))


def shown(row: Row) -> str:
    """One row in a line."""
    what = f"knob {row['knob']}" if row["method"] == "compile" else f"fit {row['asked']}{' again' * row['again']}"
    if "failed" in row:
        return f"{row['case']}, {what}: {row['failed']}"
    peak = (
        f"{row['peak_bytes'] / 2**30:.2f} GiB, {row['step_us'] / 1e3:.1f} ms, there after {row['first_step_s']:.0f} s"
    )
    return f"{row['case']}, {what}: {peak}. {row.get('report', '')}"


def summary(rows: Sequence[Row]) -> Row:
    """The figures: over all rows of ``fit``, its step by that of the fastest peer within the budget, and its wait."""
    steps, waits, broken = [], [], 0
    for row in (r for r in rows if r["method"] == "fit" and not r["again"] and "step_us" in r):
        peers = [r for r in rows if r["method"] == "compile" and r["case"] == row["case"] and "step_us" in r]
        within = [p["step_us"] for p in peers if p["peak_bytes"] <= row["budget_bytes"]]
        broken += row["peak_bytes"] > row["budget_bytes"]
        if within:
            steps.append(row["step_us"] / min(within))
        waits.append(row["first_step_s"] / statistics.median(p["first_step_s"] for p in peers))
    return {
        "fits": len(waits),
        "budgets_broken": broken,
        "failed": sum("failed" in r for r in rows),
        "slowest_of_peer": max(steps, default=None),
        "geometric_mean_of_peer": statistics.geometric_mean(steps) if steps else None,
        "median_wait_of_peer": statistics.median(waits) if waits else None,
    }


def main() -> None:
    """Measure what is missing, and report; or, with ``--row``, one row."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, help="folder for rows; kept from run to run")
    p.add_argument("--cases", nargs="+", default=[*ZOO], help="cases, or factories as MODULE:FACTORY")
    p.add_argument("--knobs", nargs="+", type=float, default=KNOBS, help="of torch.compile, highest first")
    p.add_argument("--once", action="store_true", help="do not fit again with what the first fit left")
    p.add_argument("--device", default="cuda")
    p.add_argument("--small", action="store_true", help="the small version of each case, for a trial on a CPU")
    p.add_argument("--wall", type=float, default=1e9, help="seconds until no row begins any more")
    p.add_argument("--row", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.row is not None:
        row: Row = json.loads(a.row)
        with contextlib.redirect_stdout(sys.stderr):
            try:
                found = measured(row)
            except LoadmasterError as error:
                found = {"failed": str(error)}
        print(json.dumps(found))
        return
    if a.out is None:
        p.error("--out is missing")
    rows = Rows(a.out, time.monotonic() + a.wall)
    for name in a.cases:
        rows.of(name, a.device, a.knobs, small=a.small, once=a.once)
    figures = summary(rows.rows)
    print(json.dumps(figures))
    if a.device == "cuda":
        record.write("memory_knob", {"plan_limit_s": PLAN_LIMIT_S, **figures, "rows": rows.rows})


if __name__ == "__main__":
    main()
