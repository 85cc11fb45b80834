"""Figure 1: every published instance and budget, against what a day of a commercial solver reached on 12 threads.

Usage: python -m benchmarks.memory_reference [--only NAME]
Plans have the default options. Seconds are processor seconds of everything: building, all solver processes with their
start-up, and checking, on one thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from benchmarks import record
from loadmaster.errors import LimitReachedError
from loadmaster.models.kinds import Problem, read_problem
from loadmaster.models.memory import presets
from loadmaster.planner import PlanOptions, plan

SHOWN = ("objective_to_reference", "gap_percent", "overhead_gap_percent", "bound_holds", "cpu_seconds", "stopped_by")


def row(problem: Problem, budget_gib: int, published: Mapping[str, float]) -> dict[str, Any]:
    """Plan one instance and compare it with the reference."""
    best_us, best_bound_us = published["best_objective_us"], published["best_bound_us"]
    measured: dict[str, Any] = {
        "instance": problem.name,
        "budget_gib": budget_gib,
        "reference_objective_us": best_us,
        "reference_bound_us": best_bound_us,
        "reference_seconds_to_5_percent": published["seconds_to_5_percent"],
    }
    try:
        found = plan(problem, PlanOptions(budget_bytes=budget_gib << 30))
    except LimitReachedError as error:
        return measured | {"failed": str(error)}
    assert found.objective is not None and found.bound is not None and found.gap is not None
    return measured | {
        "objective_us": found.objective,
        "bound_us": round(found.bound, 1),
        "gap_percent": round(100 * found.gap, 2),
        "overhead_gap_percent": None if found.overhead_gap is None else round(100 * found.overhead_gap, 1),
        "objective_to_reference": round(found.objective / best_us, 4),
        "bound_holds": found.bound <= best_us,
        "cpu_seconds": found.solver["cpu_seconds"],
        "stopped_by": found.stopped_by,
        "checked": found.check["ok"],
        "peak_bytes": found.check["peak_bytes"],
    }


def main() -> None:
    """Run, print a line each, and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="instances whose name holds this")
    arguments = parser.parse_args()
    rows = []
    for name in presets.example_names():
        if arguments.only and arguments.only not in name:
            continue
        problem = read_problem(presets.example(name))
        for budget_bytes, published in presets.reference(problem.name).items():
            budget_gib = budget_bytes >> 30
            rows.append(row(problem, budget_gib, published))
            print({k: rows[-1].get(k) for k in ("instance", "budget_gib", *SHOWN, "failed")}, flush=True)
            if not arguments.only:
                record.write("memory_reference", {"unit": "us, processor seconds", "rows": rows})


if __name__ == "__main__":
    main()
