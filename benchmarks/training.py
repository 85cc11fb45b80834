"""Whole training steps under a budget: planned, and as people run them without a plan.

    python -m benchmarks.training                                   on a GPU
    python -m benchmarks.training --model llama-8b --budgets 40 24

The model is a Llama with float32 weights under bfloat16 autocast, AdamW, 4 x 2048 tokens. ``planned`` is the call that
docs/training.md tells the reader to make, with 30 seconds to plan. Times are of steps in a row, the median of three
rounds of five. Peaks are the allocator's. Losses are of the first steps, from the same weights and over the same eight
batches in turn.
Writes ``benchmarks/results/training_MODEL.json``.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import torch

import loadmaster
from benchmarks import record
from benchmarks.training_rivals import SIZES, WORDS, Batches, ByHand, Llama, Loop, autocast, fsdp, loop_of, plain
from loadmaster.executor import PlannedTraining, fit
from loadmaster.models.placement.problem import Tier
from loadmaster.models.training.problem import TrainingProblem

GIB = 1 << 30
BUDGETS = (40.0, 28.0, 20.0, 12.0, 8.0)
RESIDENT = (28, 12, 0)
RIVALS = ("plain", "compiled, plain", "checkpointed", "compiled, checkpointed", "FSDP2, CPU offload, checkpointed")
WARM, ROUNDS, STEPS, BATCHES = 6, 3, 5, 8
PLANNING_S = 30.0


def measured(loop: Loop, device: str = "cuda", *, warm: int = WARM) -> dict[str, Any]:
    """Run a step's loop, and measure it after ``warm`` steps; without a peak where there is no GPU."""
    losses = [float(loop()) for _ in range(warm)]
    is_gpu = device == "cuda"
    if is_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(STEPS):
            last = loop()
        if is_gpu:
            torch.cuda.synchronize()
        seconds.append((time.perf_counter() - began) / STEPS)
    return {
        "step_ms": round(1e3 * statistics.median(seconds), 1),
        "step_ms_of_each": [round(1e3 * s, 1) for s in seconds],
        "peak_gib": round(torch.cuda.max_memory_allocated() / GIB, 2) if is_gpu else 0.0,
        "losses": [round(loss, 4) for loss in losses],
        "last_loss": round(float(last), 4),
    }


def planned(model: Llama, batches: Batches, budget: float, *, warm: int, **options: Any) -> dict[str, Any]:
    """Plan under a budget, and train; ``options`` are of :func:`fit`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    like = next(batches)
    batches = itertools.chain([like], batches)
    began = time.perf_counter()
    with autocast():
        fitted = fit(
            model,
            (like,),
            optimizer=optimizer,
            budget_bytes=int(budget * GIB),
            planner=partial(loadmaster.plan, time_limit_s=PLANNING_S),
            **options,
        )
    ready_s = time.perf_counter() - began
    assert isinstance(fitted, PlannedTraining), fitted.report

    def loss() -> torch.Tensor:
        with autocast():
            return fitted.step(next(batches))

    found = measured(loop_of(loss, optimizer), warm=warm)
    plan = fitted.plan  # it may have been planned again
    assert plan.schedule is not None and plan.objective is not None
    return {
        "budget_gib": budget,
        "planned_ms": round(plan.objective / 1e3, 1),
        "bound_ms": None if plan.bound is None else round(plan.bound / 1e3, 1),
        "planned_peak_gib": round(plan.check["peak_bytes"] / GIB, 2),
        "planning_s": round(sum(plan.seconds.values()), 1),
        "ready_s": round(ready_s, 1),
        "points": dict(Counter(fitted.problem.points(n)[p].name for n, p in enumerate(plan.schedule.points))),
        "groups": dict(Counter(f"{g.weights}, {g.state}, {g.update}" for g in plan.schedule.groups)),
        "link_gbps": _gbps(fitted.problem.host),
        "updates_ms": [round(sum(times) / 1e3, 1) for times in _update_times(fitted.problem)],
        "host_gib": round(plan.check["host_bytes"] / GIB, 1),
        "disk_gib": round(plan.check["disk_bytes"] / GIB, 1),
        "disk_gbps": None if fitted.problem.disk is None else _gbps(fitted.problem.disk),
        "plans": len(fitted.tries),
        **found,
    }


def _gbps(tier: Tier) -> list[float]:
    return [round(rate, 1) for rate in (tier.to_gbps, tier.from_gbps)]


def _update_times(problem: TrainingProblem) -> tuple[list[float], list[float]]:
    """Times of all updates on the device, and of all on the host."""
    return [g.update_us for g in problem.groups], [g.host_update_us or 0.0 for g in problem.groups]


def row(model_name: str, method: str, of: float, warm: int, options: dict[str, Any]) -> dict[str, Any]:
    """Train one model one way, in a process of its own: under a budget, or with so many blocks resident."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Llama(*SIZES[model_name])
        batches = itertools.cycle(torch.randint(0, WORDS, (BATCHES, 4, 2048)))
    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "planned": lambda: planned(model, batches, of, warm=warm, **options),
        "plain": lambda: measured(plain(model, batches, checkpointed=False, compiled=False), warm=warm),
        "compiled, plain": lambda: measured(plain(model, batches, checkpointed=False, compiled=True), warm=warm),
        "checkpointed": lambda: measured(plain(model, batches, checkpointed=True, compiled=False), warm=warm),
        "compiled, checkpointed": lambda: measured(plain(model, batches, checkpointed=True, compiled=True), warm=warm),
        "by hand": lambda: {"resident": int(of), **measured(ByHand(model, batches, int(of)), warm=warm)},
        "FSDP2, CPU offload, checkpointed": lambda: measured(fsdp(model, batches), warm=warm),
    }
    try:
        return ways[method]()
    except Exception as error:  # noqa: BLE001 - a row says what kept it from running
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}


def main() -> None:
    """Measure what is asked for."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="llama-3b", choices=list(SIZES))
    p.add_argument("--budgets", nargs="*", type=float, default=list(BUDGETS), metavar="GIB")
    p.add_argument("--resident", nargs="*", type=int, default=list(RESIDENT), help="blocks that stay, by hand")
    p.add_argument("--rivals", nargs="*", default=list(RIVALS), metavar="METHOD")
    p.add_argument("--losses", type=int, default=WARM, metavar="N", help="steps before the measured ones")
    p.add_argument("--host-memory", metavar="SIZE", help="host memory for plans (half of it)")
    p.add_argument("--disk", metavar="FOLDER", help="a disk that may hold optimizer state (none)")
    a = p.parse_args()
    options = {"host_memory_bytes": a.host_memory, "disk": a.disk}
    asked = [("planned", budget) for budget in a.budgets]
    asked += [(method, 0.0) for method in a.rivals]
    asked += [("by hand", float(resident)) for resident in a.resident]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as processes:
        for method, of in asked:
            found = processes.submit(row, a.model, method, of, a.losses, options).result()
            rows.append({"case": a.model, "method": method, **found})
            print(rows[-1], flush=True)
            record.write(f"training_{a.model.replace('-', '_')}", {"rows": rows})


if __name__ == "__main__":
    main()
