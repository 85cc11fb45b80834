"""The pager: steps under a limit of device memory, by demand and by plan, compared with a step that has room enough.

    python -m benchmarks.pager                              on a GPU
    python -m benchmarks.pager --device cpu --small         a trial with small models

The whole state of training counts: parameters, gradients, AdamW's state and activations. ``plain`` is PyTorch alone;
``plain again`` says whether its own kernels give equal bits twice; ``no limit`` is a pager with room for everything,
which is what it costs to look at every operator. ``demand`` brings nothing early, ``correlation`` brings what came
next the last time, ``planned`` is the pager as users have it. Limits are shares of the most bytes that are on the
device without one. What a step takes is the median over the last steps, the device waited for. Losses are compared bit
by bit with those of ``plain``.
Writes ``benchmarks/results/pager.json``.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from functools import partial
from typing import Any

import torch

import loadmaster
from benchmarks import record
from benchmarks.gpu.cases import CASES, build
from loadmaster.errors import LoadmasterError
from loadmaster.executor import Pager

GIB = 1 << 30
NAMES = ("gpt2_medium", "resnet50")
SHARES = (0.85, 0.7, 0.5)
WITHOUT, BY_DEMAND, PLANNED = 6, 7, 12  # steps; a plan is there from the fourth step on
TIMED = 4
PLANNING_S = 10.0
EVERYTHING = 1 << 50
SMALL_BYTES = 1024  # for trials


def row(name: str, method: str, device: str, budget_bytes: int | None, *, small: bool) -> dict[str, Any]:
    """Train one model one way, and measure it."""
    model, inputs, loss, precision = build(CASES[name], device, small=small)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    seconds, losses = [], []

    def step() -> None:
        optimizer.zero_grad()
        with precision():
            value = loss(model(*inputs[:-1]), inputs[-1])
        value.backward()
        optimizer.step()
        losses.append(value.detach())

    def steps(count: int) -> None:
        for n in range(count):
            if n == count - TIMED and device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            begun = time.perf_counter()
            step()
            if device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begun)

    found: dict[str, Any] = {"case": name, "method": method}
    if budget_bytes is None:
        steps(WITHOUT)
    else:
        planner = partial(loadmaster.plan, time_limit_s=PLANNING_S, progress=False) if method == "planned" else None
        options: dict[str, Any] = {"small_bytes": SMALL_BYTES} if small else {}
        options["prefetch"] = None if method == "demand" else "correlation"
        with Pager(model, optimizer, budget_bytes=budget_bytes, planner=planner, **options) as pager:
            steps(PLANNED if planner else BY_DEMAND)
        last = pager.stats[-1]
        found |= {
            "budget_gib": round(budget_bytes / GIB, 3) if budget_bytes < EVERYTHING else None,
            "paged_peak_bytes": max(s.peak_bytes for s in pager.stats),
            "followed": last.planned,
            "faults": last.faults,
            "late": last.late,
            "evictions": last.evictions,
            "unforeseen": last.unforeseen,
            "stored_gib": round(last.stored_bytes / GIB, 3),
            "loaded_gib": round(last.loaded_bytes / GIB, 3),
            "refused": pager.refused,
        }
        problem, plan = pager.problem, pager.plan
        if problem is not None and plan is not None:
            found |= {
                "operators": len(problem.operators),
                "blocks": len(problem.blocks),
                "planned_ms": round((plan.objective or 0.0) / 1e3, 3),
                "bound_ms": round((plan.bound or 0.0) / 1e3, 3),
                "compute_ms": round(plan.compute_us / 1e3, 3),
                "planning_s": round(sum(plan.seconds.values()), 1),
                "link_gbps": [(tier.to_gbps, tier.from_gbps) for tier in problem.tiers],
            }
    found |= {
        "step_ms": round(1e3 * statistics.median(seconds[-TIMED:]), 3),
        "step_ms_of_each": [round(1e3 * s, 1) for s in seconds],
        "losses": [float(value) for value in losses],
    }
    if device == "cuda":
        found["allocated_peak_gib"] = round(torch.cuda.max_memory_allocated() / GIB, 3)
        found["reserved_gib"] = round(torch.cuda.memory_reserved() / GIB, 3)
    return found


def case_rows(name: str, shares: list[float], device: str, *, small: bool) -> list[dict[str, Any]]:
    """Train one model in every way."""
    rows: list[dict[str, Any]] = []

    def add(method: str, budget_bytes: int | None, share: float | None = None) -> dict[str, Any]:
        begun = time.perf_counter()
        try:
            made = row(name, method, device, budget_bytes, small=small)
        except (torch.OutOfMemoryError, LoadmasterError) as error:
            made = {"case": name, "method": method, "error": str(error)}
        made |= {"share": share, "whole_s": round(time.perf_counter() - begun, 1)}
        plain = rows[0] if rows else made
        if "step_ms" in made:
            both = zip(made["losses"], plain["losses"], strict=False)
            made["losses_equal_plain"] = all(one == other for one, other in both)
            made["times_plain_step"] = round(made["step_ms"] / plain["step_ms"], 3)
        rows.append(made)
        print(made, flush=True)
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
        return made

    add("plain", None)
    add("plain again", None)
    peak_bytes = add("no limit", EVERYTHING)["paged_peak_bytes"]
    for share in shares:
        for method in ("demand", "correlation", "planned"):
            add(method, int(share * peak_bytes), share)
    return rows


def main() -> None:
    """Measure what is asked for."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cases", nargs="+", default=list(NAMES), choices=list(CASES))
    p.add_argument("--shares", nargs="+", type=float, default=list(SHARES))
    p.add_argument("--device", default="cuda")
    p.add_argument("--small", action="store_true")
    a = p.parse_args()
    rows = [one for name in a.cases for one in case_rows(name, a.shares, a.device, small=a.small)]
    if not a.small:
        print(record.write("pager", {"rows": rows}))


if __name__ == "__main__":
    main()
