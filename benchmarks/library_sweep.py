"""Every model class of transformers and every module of timm, small, on a CPU: which have plans, and train under them.

    python -m benchmarks.library_sweep --out DIR [--only transformers/BertForMaskedLM ...] [--jobs 2]

The classes are the libraries' own lists (:mod:`benchmarks.zoo.every_class`). Each is captured, planned for the middle
between its least and its peak, and applied; its gradients are held against plain PyTorch's. Each is a process of its
own with a limit. Rows are in DIR, and a run goes on from them.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import loadmaster
from benchmarks import record
from benchmarks.zoo.entries import Example
from benchmarks.zoo.every_class import makers, names
from benchmarks.zoo.measure import beside_plain, gradients, plain_step, run_alone, without_folders
from loadmaster.errors import LoadmasterError
from loadmaster.executor import apply, capture
from loadmaster.models.memory import plain
from loadmaster.models.memory.minimum import minimum_budget
from loadmaster.models.memory.plan import MemoryPlan

LIMIT_S = 240
PLAN_LIMIT_S = 10.0
Row = dict[str, Any]


def row_of(name: str) -> Row:
    """Plan one model and train it under the plan; its row, or the reason it has none."""
    found = _trains(name)
    if isinstance(found, str):
        return {"model": name, "left_out": without_folders(found)}
    (model, batch, loss), theirs = found
    row: Row = {"model": name, "parameters": sum(p.numel() for p in model.parameters())}
    try:
        return row | _planned(model, batch, loss, theirs)
    except LoadmasterError as refusal:
        refused = {"refused": without_folders(str(refusal))}
        return row | refused | {"is_one_graph": _is_one_graph(model, batch, loss)}


def _trains(name: str) -> tuple[Example, dict[str, Tensor]] | str:
    """Find the smallest model that the library itself trains, with its gradients; or why it trains none."""
    why = ""
    for make in makers(name):
        try:
            model, batch, loss = make()
            twin = copy.deepcopy(model)
            return (model, batch, loss), gradients(plain_step(twin, batch, loss), twin)[1]
        except Exception as error:  # noqa: BLE001 - the library's own
            why = f"{type(error).__name__}: {error}"
    return why


def _planned(model: Any, batch: Any, loss: Any, theirs: Mapping[str, Tensor]) -> Row:
    start = time.perf_counter()
    problem = capture(model, batch, loss, backend="eager")
    capture_s = time.perf_counter() - start
    peak_bytes, least_bytes = plain.peak_bytes(problem), minimum_budget(problem).budget_bytes
    row: Row = {"capture_s": round(capture_s, 1), "operators": len(problem.forward) + len(problem.backward)}
    row |= {"plain_peak_bytes": peak_bytes, "least_bytes": least_bytes, "budget_bytes": (peak_bytes + least_bytes) // 2}
    plan = loadmaster.plan(problem, budget_bytes=row["budget_bytes"], time_limit_s=PLAN_LIMIT_S)
    assert isinstance(plan, MemoryPlan)
    row["gap"] = plan.gap
    return row | beside_plain(apply(plan, model, loss, backend="eager"), model, batch, theirs)


def _is_one_graph(model: Any, batch: Any, loss: Any) -> bool:
    """Return whether torch.compile makes one graph of the step."""
    torch.compiler.reset()
    try:
        torch.compile(plain_step(model, batch, loss), backend="aot_eager", fullgraph=True)()
    except Exception:  # noqa: BLE001 - Dynamo's errors are of many types
        return False
    return True


def write_row(name: str, path: Path) -> None:
    """Measure one model in this process, and write its row."""
    torch.set_num_threads(1)
    record.write_whole(path, json.dumps(row_of(name)))


def measured(name: str, folder: Path) -> Row:
    """Return the row of one model, known or measured now; with what ended it early, if anything did."""
    path = folder / f"{name.replace('/', '-')}.json"
    if not path.exists():
        ended = run_alone(write_row, (name, path), LIMIT_S, ["benchmarks.library_sweep", "timm", "transformers"])
        if not path.exists():
            record.write_whole(path, json.dumps({"model": name, "ended": ended}))
    row: Row = json.loads(path.read_text())
    print(row, flush=True)
    return row


def main() -> None:
    """Measure what is missing, and report."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, required=True, help="folder for rows; kept from run to run")
    p.add_argument("--only", nargs="+", metavar="LIBRARY/MODEL", help="measure these, and record nothing")
    p.add_argument("--jobs", type=int, default=1, help="models at once")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(a.jobs) as pool:
        rows = list(pool.map(lambda name: measured(name, a.out), a.only or names()))
    if a.only is None:
        versions = record.versions("timm", "transformers")
        record.write("library_sweep", {"plan_limit_s": PLAN_LIMIT_S, "versions": versions, "models": rows})


if __name__ == "__main__":
    main()
