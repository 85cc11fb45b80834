"""Plans of whole training steps without a device: twenty models at five budgets, by the checker's clock.

    python -m benchmarks.training_offline
    python -m benchmarks.training_offline --models llama-3b random-100 --processes 2

Models are presets of several devices, and steps drawn at random. ``llama-3b`` has the link and the updates that
``benchmarks.training`` measured. Budgets go from just above the least to 80 % of the peak, and are those of
``benchmarks.training`` for that model. Every baseline of the planner is timed in the same run. Each plan takes one
thread. ``processor_s`` counts that thread and its solvers, ``first_s`` the wait for the first plan.
Writes ``benchmarks/results/training_offline.json``.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from typing import Any

from benchmarks import record
from loadmaster.errors import LimitReachedError
from loadmaster.models.hardware import hardware
from loadmaster.models.placement.problem import Tier
from loadmaster.models.training.limits import least_bytes, peak_bytes, plain_us
from loadmaster.models.training.presets import model
from loadmaster.models.training.problem import Group, Layer, LayerClass, Point, TrainingProblem
from loadmaster.planner.options import PlanOptions, PlanProgress
from loadmaster.planner.training.baselines import BASELINES
from loadmaster.planner.training.driver import plan_training

GIB, MB = 1 << 30, 10**6
SECONDS = 30.0
# Parts of the way from the least to 80 % of the peak.
SHARES = (0.03, 0.15, 0.35, 0.65, 1.0)
MOST_OF_PEAK = 0.8
MEASURED_BUDGETS = (8.0, 12.0, 20.0, 28.0, 40.0)
RANDOM_LAYERS = (12, 24, 36, 64, 100)


def measured_llama() -> TrainingProblem:
    """Make the step of ``benchmarks.training``, with the link and the updates measured there."""
    problem = model("llama-3b", hardware("h200"), batch=4, sequence=2048)
    device = 28.4e3 / sum(g.update_us for g in problem.groups)
    host = 1757.2e3 / sum(g.host_update_us or 0.0 for g in problem.groups)
    groups = [
        replace(g, update_us=device * g.update_us, host_update_us=host * (g.host_update_us or 0.0))
        for g in problem.groups
    ]
    return replace(problem, groups=tuple(groups), host=Tier("host", 48.9, 45.2))


def random_step(layers: int) -> TrainingProblem:
    """Draw a step: one to three classes of layers with two to five points and one or two groups each."""
    rng = random.Random(layers)
    classes, kinds = [], []
    for number in range(rng.randint(1, 3)):
        forward_us, most = rng.uniform(500, 6000), int(rng.uniform(50, 1000) * MB)
        least, backward_us, count = (
            int(most * rng.uniform(0.05, 0.3)),
            rng.uniform(1.8, 2.4) * forward_us,
            rng.randint(2, 5),
        )
        points = []
        for n in range(count):
            share = n / (count - 1)
            kept = int(most - (most - least) * share)
            at_work = int(rng.uniform(0.1, 0.5) * most), int(rng.uniform(0.2, 0.6) * most) + most - kept
            points.append(Point(f"p{n}", forward_us, backward_us + forward_us * share**1.5, kept, *at_work))
        classes.append(LayerClass(f"c{number}", tuple(points)))
        kinds.append([random_group(rng) for _ in range(rng.randint(1, 2))])
    of = [min(n * len(classes) // layers, len(classes) - 1) for n in range(layers)]
    groups = [
        replace(kind, name=f"g{n}.{k}", layers=(n,))
        for n, number in enumerate(of)
        for k, kind in enumerate(kinds[number])
    ]
    gbps = rng.choice([12.0, 25.0, 55.0])
    return TrainingProblem(
        f"random-{layers}",
        tuple(Layer(f"l{n}", number) for n, number in enumerate(of)),
        tuple(classes),
        tuple(groups),
        Tier("host", gbps, gbps, latency_us=10.0),
        fixed_bytes=100 * MB,
        micro_batches=rng.choice([1, 1, 2]),
        clip_grad_norm=rng.random() < 0.3,
    )


def random_group(rng: random.Random) -> Group:
    """Draw parameters with no, one or two states of their size."""
    weights, states = int(rng.uniform(20, 600) * MB), rng.choice([2, 2, 1, 0])
    moved, host_gbps = weights * (3 + 2 * states), rng.choice([80.0, 40.0])
    low = weights // 2
    device_us = moved / (rng.uniform(2500, 3500) * 1e3)
    return Group("group", (0,), weights, low, weights, low, states * weights, device_us, moved / (host_gbps * 1e3))


def problems() -> dict[str, TrainingProblem]:
    """Make all problems by name."""

    def preset(name: str, device: str, **fields: Any) -> TrainingProblem:
        return model(name, hardware(device), **fields)

    return {
        "llama-3b": measured_llama(),
        "gpt2": preset("gpt2", "v100-16gb", batch=16),
        "gpt2, 4 micro-batches": preset("gpt2", "rtx4090", batch=8, micro_batches=4),
        "gpt2-medium": preset("gpt2-medium", "a100-40gb", batch=16),
        "gpt2-medium, clipped": preset("gpt2-medium", "rtx4090", batch=8, clip_grad_norm=True),
        "gpt3-1.3b": preset("gpt3-1.3b", "rtx4090", batch=2),
        "gpt3-1.3b, 4 micro-batches": preset("gpt3-1.3b", "a100-40gb", batch=4, micro_batches=4),
        "gpt3-6.7b": preset("gpt3-6.7b", "a100-80gb", batch=4),
        "gpt3-6.7b, 64 GiB of host": preset("gpt3-6.7b", "h100", batch=8, host_bytes=64 * GIB),
        "llama3.2-1b": preset("llama3.2-1b", "h100", batch=4, sequence=2048),
        "llama3.2-1b, no host updates": preset("llama3.2-1b", "rtx4090", batch=1, sequence=2048, host_update_gbps=None),
        "llama3-8b, 128 GiB of host": preset("llama3-8b", "h200", batch=4, sequence=2048, host_bytes=128 * GIB),
        "llama3-8b, clipped": preset("llama3-8b", "h100", batch=4, sequence=2048, clip_grad_norm=True),
        "llama3-8b, SGD": preset("llama3-8b", "a100-80gb", batch=2, sequence=4096, optimizer="sgd-momentum"),
        "llama3-70b": preset("llama3-70b", "h200", batch=8, sequence=4096),
        **{f"random-{layers}": random_step(layers) for layers in RANDOM_LAYERS},
    }


def budgets(name: str, problem: TrainingProblem) -> list[int]:
    """List the budgets of a problem, ascending."""
    if name == "llama-3b":
        return [int(gib * GIB) for gib in MEASURED_BUDGETS]
    low, high = least_bytes(problem)[0], MOST_OF_PEAK * peak_bytes(problem)
    return [int(low + (high - low) * share) for share in SHARES]


def row(name: str, budget_bytes: int, seconds: float) -> dict[str, Any]:
    """Plan one problem under one budget, and time every baseline."""
    problem = problems()[name]
    found: dict[str, Any] = {
        "case": name,
        "layers": len(problem.layers),
        "budget_gib": round(budget_bytes / GIB, 2),
        "plain_ms": round(plain_us(problem) / 1e3, 2),
    }
    first_s: list[float] = []
    phases_s: dict[str, float] = {}
    began = last = time.monotonic()

    def said(progress: PlanProgress) -> None:
        nonlocal last
        now = time.monotonic()
        phase = "baselines" if progress.phase in BASELINES else progress.phase
        phases_s[phase] = phases_s.get(phase, 0.0) + now - last
        last = now
        if progress.objective is not None and not first_s:
            first_s.append(now - began)

    try:
        plan = plan_training(problem, PlanOptions(budget_bytes=budget_bytes, time_limit_s=seconds), on_progress=said)
    except LimitReachedError as error:
        return {**found, "status": "none found", "seconds": round(time.monotonic() - began, 1), "error": str(error)}
    found |= {
        "status": plan.status,
        "stopped_by": plan.stopped_by,
        "seconds": round(time.monotonic() - began, 1),
        "processor_s": round(plan.solver["cpu_seconds"], 1),
        "phases_s": {phase: round(s, 1) for phase, s in phases_s.items()},
    }
    if plan.objective is None or plan.bound is None:
        return found
    return {
        **found,
        "step_ms": round(plan.objective / 1e3, 2),
        "bound_ms": round(plan.bound / 1e3, 2),
        "gap": round(1 - plan.bound / plan.objective, 4),
        "first_s": round(first_s[0], 1),
        "baselines_ms": {method: _baseline_ms(problem, budget_bytes, method) for method in BASELINES},
    }


def _baseline_ms(problem: TrainingProblem, budget_bytes: int, method: str) -> float | None:
    try:
        plan = plan_training(problem, PlanOptions(budget_bytes=budget_bytes, method=method))
    except LimitReachedError:
        return None
    return None if plan.objective is None else round(plan.objective / 1e3, 2)


def main() -> None:
    """Plan what is asked for."""
    known: Mapping[str, TrainingProblem] = problems()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", nargs="*", default=list(known), choices=list(known), metavar="NAME")
    p.add_argument("--seconds", type=float, default=SECONDS, help="for one plan")
    p.add_argument("--processes", type=int, default=1, help="plans at a time")
    a = p.parse_args()
    asked = [(name, budget) for name in a.models for budget in budgets(name, known[name])]
    rows: dict[int, dict[str, Any]] = {}
    with ProcessPoolExecutor(a.processes) as processes:
        running = {processes.submit(row, *of, a.seconds): n for n, of in enumerate(asked)}
        for done in as_completed(running):
            rows[running[done]] = done.result()
            print(done.result(), flush=True)
            ordered = [rows[n] for n in sorted(rows)]
            record.write("training_offline", {"seconds": a.seconds, "processes": a.processes, "rows": ordered})


if __name__ == "__main__":
    main()
