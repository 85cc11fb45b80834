"""How far plans are from what runs: planned and measured peak and step time of every try of a few budgets.

    python benchmarks/memory_fit.py --out DIR                      on a GPU host that has the solvers
    python benchmarks/memory_fit.py --out DIR --cases resnet50     one model
    python benchmarks/memory_fit.py --out DIR --device cpu --small    a trial with small models
    python benchmarks/memory_fit.py --out DIR --report             benchmarks/results from DIR/CASE.fit.json

Budgets are shares of the planned peak with memory to spare. Beside the figures DIR has, for the second budget of each
model: the planned and the measured step as one Chrome trace, and memory snapshots of both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pickle
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

CASES = ("resnet50", "gpt2_medium")
SHARES = (0.7, 0.5, 0.35)
SHOWN = 1  # the budget whose trace and snapshots are kept
Made = tuple[Any, tuple[Any, ...], Any]


def build(case: str, device: str, *, small: bool) -> tuple[Made, Callable[[], AbstractContextManager[Any]]]:
    """Model, inputs and loss, and the precision they train in."""
    import torch

    from examples import gpt, resnet50

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    with torch.device(device):
        if case == "resnet50":
            return (resnet50.small() if small else resnet50.full()), contextlib.nullcontext
        made = gpt.small() if small else gpt.gpt2_medium(batch=32)
    return made, lambda: torch.autocast(torch.device(device).type, torch.bfloat16)


def fit_case(case: str, out: Path, arguments: argparse.Namespace, until: float) -> dict[str, Any]:
    """All budgets of one model, as far as the time goes."""
    import loadmaster
    from loadmaster.errors import LoadmasterError
    from loadmaster.executor.memory.fit import Fitter
    from loadmaster.executor.memory.tries import accuracy, describe
    from loadmaster.models.memory import plain

    (model, inputs, loss), precision = build(case, arguments.device, small=arguments.small)
    tries: list[Any] = []
    chosen_tries: list[Any] = []
    rows: list[dict[str, Any]] = []
    with precision():
        began = time.perf_counter()
        fitter = Fitter(model, inputs, loss, name=case, backend=arguments.backend, on_try=tries.append)
        problem = fitter.captured.problem()
        spare_bytes = plain.peak_bytes(problem)
        captured_s = time.perf_counter() - began
        operators = f"{len(problem.forward)} forward and {len(problem.backward)} backward operators"
        say(f"{case}: {operators}, captured in {captured_s:.0f} s, peak {spare_bytes / 2**30:.2f} GiB")
        for number, share in enumerate(arguments.shares):
            if time.monotonic() > until:
                say(f"{case} at {share:.0%}: no time left")
                continue
            seen, began = len(tries), time.perf_counter()
            row: dict[str, Any] = {"share": share, "budget_bytes": int(share * spare_bytes)}
            try:
                fitted = fitter.fit(
                    lambda p: loadmaster.plan(p, time_limit_s=arguments.time_limit), row["budget_bytes"]
                )
            except LoadmasterError as error:
                row["error"] = str(error)
                say(f"{case} at {share:.0%}: {error}")
            else:
                row["chosen"] = fitted.chosen
                chosen_tries.append(fitted.tries[fitted.chosen])
                if number == SHOWN:
                    write_pictures(case, out, fitter, fitted)
            for tried in tries[seen:]:
                say(f"{case} at {share:.0%}: {describe(tried)}  {tried.correction}")
            row["seconds"] = time.perf_counter() - began
            rows.append({**row, "tries": [{**asdict(t), "time_error": t.time_error} for t in tries[seen:]]})
    found = {name: asdict(accuracy(group)) for name, group in (("all tries", tries), ("chosen", chosen_tries)) if group}
    say(f"{case}: {found}")
    return {"case": case, "captured_s": captured_s, "spare_bytes": spare_bytes, "accuracy": found, "budgets": rows}


def write_pictures(case: str, out: Path, fitter: Any, fitted: Any) -> None:
    """One trace of both steps, and a snapshot of each."""
    from loadmaster.api.report.snapshot import snapshot_bytes
    from loadmaster.api.report.view import view
    from loadmaster.executor.memory.snapshot import record_snapshot
    from loadmaster.executor.memory.timeline import side_by_side

    timeline = fitter.profiled(fitted.step)
    (out / f"{case}.trace.json").write_text(json.dumps(side_by_side(fitted.problem, fitted.plan, timeline)))
    (out / f"{case}.planned.pickle").write_bytes(snapshot_bytes(view(fitted.problem, fitted.plan)))
    products, moves = timeline.products_us / 1e3, timeline.moves_us / 1e3
    say(f"{case}: profiled {products:.1f} ms of products, {moves:.1f} ms of moves, peak {timeline.peak_bytes} bytes")
    if fitter.device.type == "cuda":
        snapshot = fitter.alone(fitted.step, lambda run: record_snapshot(run, fitter.device))
        (out / f"{case}.measured.pickle").write_bytes(pickle.dumps(snapshot))


def report(out: Path) -> None:
    """Into benchmarks/results."""
    from benchmarks.record import write

    found = [json.loads(path.read_text()) for path in sorted(out.glob("*.fit.json"))]
    print(write("memory_fit", {"cases": found}))


def say(text: str) -> None:
    """One line, at once."""
    print(text, flush=True)


def main() -> None:
    """Measure, or report."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, required=True, help="folder for figures, traces and snapshots")
    p.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    p.add_argument("--shares", nargs="+", type=float, default=list(SHARES), help="budgets, of the peak to spare")
    p.add_argument("--time-limit", type=float, default=20.0, help="seconds per plan")
    p.add_argument("--wall", type=float, default=3600.0, help="seconds; no budget is begun after them")
    p.add_argument("--device", default="cuda")
    p.add_argument("--backend", default="inductor", choices=["inductor", "eager"])
    p.add_argument("--small", action="store_true", help="small models, to try the benchmark itself")
    p.add_argument("--report", action="store_true", help="measure nothing")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    if a.report:
        report(a.out)
        return
    until = time.monotonic() + a.wall
    for case in a.cases:
        (a.out / f"{case}.fit.json").write_text(json.dumps(fit_case(case, a.out, a, until), indent=1))


if __name__ == "__main__":
    main()
