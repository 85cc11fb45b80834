"""Figure 3: a frontier of six budgets on ResNet-50 (all implementations), on two cores.

Usage: python -m benchmarks.memory_frontier
"""

from __future__ import annotations

import time

from benchmarks import record
from loadmaster.models.memory import presets
from loadmaster.planner import PlanOptions, frontier

GIB = 1 << 30
BUDGETS = [n * GIB for n in (5, 6, 7, 8, 9, 10)]


def main() -> None:
    """Sweep, and record each point and the wall seconds of the whole."""
    began = time.monotonic()
    found = frontier(
        presets.example("resnet50-b184-full"), PlanOptions(time_limit_s=50.0), budgets_bytes=BUDGETS, workers=2
    )
    wall_s = time.monotonic() - began
    plans = [point.plan for point in found.points]
    objectives = [plan.objective for plan in plans if plan.objective is not None]
    rows = [
        {
            "budget_gib": plan.budget_bytes // GIB,
            "objective_us": plan.objective,
            "bound_us": plan.bound,
            "gap_percent": None if plan.gap is None else round(100 * plan.gap, 2),
            "cpu_seconds": plan.solver["cpu_seconds"],
        }
        for plan in plans
    ]
    payload = {
        "wall_seconds": round(wall_s, 1),
        "workers": 2,
        "monotone": objectives == sorted(objectives, reverse=True),
        "points": rows,
    }
    print(payload)
    record.write("memory_frontier", payload)


if __name__ == "__main__":
    main()
