"""Training state that outgrows the device, simulated: plans compared with demand paging, prefetching and the bound.

Usage: python -m benchmarks.placement [--time-limit S] [--traces NAME ...]

Each trace is captured from its model without values, as ``loadmaster capture MODULE:FACTORY placement`` does, with
AdamW. ``gpt_1_4b`` has round costs (600 TFLOP/s, 3.5 TB/s, 50 GB/s each way); the others are the models of
``examples/`` by the catalogue's H200. Policies and plans run on the same links, in the same units: the time of a step
once it repeats, over that of a step with memory to spare.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import loadmaster
from benchmarks import record
from examples import bert, gpt, llama, resnet50, unet
from loadmaster.executor.costs.roofline import Roofline
from loadmaster.executor.placement.capture import capture
from loadmaster.models.hardware import Hardware
from loadmaster.models.placement.limits import least_bytes, peak_bytes
from loadmaster.models.placement.policies.outcome import POLICIES, run_policy
from loadmaster.models.placement.problem import PlacementProblem, Tier

GIB = 1 << 30
SHARES = (0.95, 0.90, 0.85, 0.80, 0.60, 0.40)
ROUND = Hardware(
    "round",
    "a device of round figures",
    139 * GIB,
    3500.0,
    {"bfloat16": 600.0, "float32": 60.0, "tf32": 300.0},
    50.0,
    50.0,
    launch_us=2.0,
    compute_share=1.0,
    dram_share=1.0,
)
MODELS: dict[str, tuple[Callable[[], Any], torch.dtype]] = {
    "gpt_1_4b": (partial(gpt.gpt, 8, 1024, 50304, 24, 2048, 16), torch.bfloat16),
    "gpt2_medium": (gpt.gpt2_medium, torch.bfloat16),
    "llama_1b": (llama.full, torch.bfloat16),
    "bert_large": (bert.full, torch.bfloat16),
    "resnet50": (resnet50.full, torch.float32),
    "unet": (unet.full, torch.float32),
}


def trace(name: str) -> PlacementProblem:
    """Capture the step of one model, without memory for it."""
    make, dtype = MODELS[name]
    with torch.device("meta"):
        model, batch, loss = make()
        model = model.to(dtype)
    if dtype is torch.bfloat16:
        batch = tuple(b.to(dtype) if b.is_floating_point() else b for b in batch)
    optimizer = torch.optim.AdamW(model.parameters())
    if name != "gpt_1_4b":
        return capture(model, batch, loss, optimizer=optimizer, hardware="h200", name=name)
    link = Tier("host", ROUND.to_host_gbps, ROUND.from_host_gbps, latency_us=10.0)
    costs = Roofline(ROUND, tf32_matmul=True, tf32_convolution=True)
    return capture(model, batch, loss, optimizer=optimizer, costs=costs, tiers=(link,), name=name)


def row(problem: PlacementProblem, share: float, time_limit_s: float) -> dict[str, Any]:
    """Simulate one budget: every policy, then the plan."""
    budget_bytes = int(share * peak_bytes(problem))
    found: dict[str, Any] = {"trace": problem.name, "share": share, "budget_gib": round(budget_bytes / GIB, 3)}
    if budget_bytes < least_bytes(problem)[0]:
        return {**found, "infeasible": True}
    for policy in POLICIES:
        run = run_policy(problem, policy, budget_bytes)
        found[policy] = round(run.last_us / problem.compute_us, 4)
        found[f"{policy}_faults"] = run.faults
        found[f"{policy}_stored_gb"] = round(run.stored_bytes / 1e9, 3)
    began = time.monotonic()
    plan: Any = loadmaster.plan(problem, budget_bytes=budget_bytes, time_limit_s=time_limit_s, progress=False)
    found["seconds"] = round(time.monotonic() - began, 1)
    found["plan"] = round(plan.objective / problem.compute_us, 4)
    found["bound"] = round(plan.bound / problem.compute_us, 4)
    found["plan_over_bound"] = round(plan.objective / plan.bound, 4)
    found["plan_stored_gb"] = round(plan.check["stored_bytes"] / 1e9, 3)
    return found


def main() -> None:
    """Capture, simulate, plan and record all traces."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--time-limit", type=float, default=60.0, help="of each plan, seconds (60)")
    p.add_argument("--traces", nargs="+", default=list(MODELS), choices=list(MODELS))
    a = p.parse_args()
    traces, rows = [], []
    for name in a.traces:
        began = time.monotonic()
        problem = trace(name)
        facts = {
            "trace": name,
            **problem.sizes,
            "capture_seconds": round(time.monotonic() - began, 1),
            "compute_ms": round(problem.compute_us / 1e3, 3),
            "peak_gib": round(peak_bytes(problem) / GIB, 3),
            "least_gib": round(least_bytes(problem)[0] / GIB, 3),
            "host_gbps": problem.tiers[0].to_gbps,
        }
        traces.append(facts)
        print(facts, flush=True)
        for share in SHARES:
            rows.append(row(problem, share, a.time_limit))
            print(rows[-1], flush=True)
    print(record.write("placement", {"time_limit_s": a.time_limit, "traces": traces, "rows": rows}))


if __name__ == "__main__":
    main()
