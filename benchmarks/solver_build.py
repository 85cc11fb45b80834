"""Cost of building a large program and handing it to HiGHS: CPU seconds, one thread, with PuLP as the peer.

The program is shaped like rematerialization: for each stage t and value i <= t, a binary R (computed in that
stage) and S (kept into it); dependency rows, carry rows and, through a running memory column, memory rows. Each
way of building runs in a fresh process, after its imports; PuLP builds the same instance with its own expressions
and hands it over through its own HiGHS interface.

    python -m benchmarks.solver_build
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

from benchmarks import record

STAGES = 373
TARGET_CPU_SECONDS = 1.0


def instance(stages: int) -> dict[str, np.ndarray]:
    """Index arrays of one instance: every (stage, value) pair with value <= stage, three dependencies a value."""
    rng = np.random.default_rng(0)
    stage, value = np.tril_indices(stages)
    dependencies = np.stack([np.maximum(np.arange(stages) - step, -1) for step in (1, 2, 7)], axis=1)
    return {
        "stage": stage,
        "value": value,
        "dependencies": dependencies,
        "cost": rng.integers(1, 1000, stages).astype(float),
        "size_mib": rng.integers(1, 64, stages).astype(float),
    }


def pair(stage: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Position of (stage, value) in the lower triangle."""
    return stage * (stage + 1) // 2 + value


def by_arrays(stages: int) -> dict[str, Any]:
    """Build by Loadmaster: numpy blocks, then one flat call."""
    import highspy

    from loadmaster.solvers import highs as driver
    from loadmaster.solvers.program import ProgramBuilder

    began = time.process_time()
    given = instance(stages)
    stage, value = given["stage"], given["value"]
    count = len(stage)
    builder = ProgramBuilder()
    computed = builder.columns("R", count, upper=1, integer=True, cost=given["cost"][value])
    kept = builder.columns("S", count, upper=1, integer=True)
    memory = builder.columns("U", count, upper=given["size_mib"].sum() / 2)
    # a value is computed only where each of its dependencies is computed or kept
    which, slot = np.nonzero(given["dependencies"][value] >= 0)
    source = pair(stage[which], given["dependencies"][value[which], slot])
    row = np.arange(len(which))
    builder.rows(
        "dependency",
        len(which),
        [(row, computed[which], 1.0), (row, computed[source], -1.0), (row, kept[source], -1.0)],
        upper=0.0,
    )
    # kept into the next stage only what was kept or computed in this one
    carried = np.flatnonzero(stage < stages - 1)
    following = pair(stage[carried] + 1, value[carried])
    row = np.arange(len(carried))
    builder.rows(
        "carry",
        len(carried),
        [(row, kept[following], 1.0), (row, kept[carried], -1.0), (row, computed[carried], -1.0)],
        upper=0.0,
    )
    # memory runs along a stage: what stood before this value, and its size if it is computed or kept
    size = given["size_mib"][value]
    row = np.arange(count)
    later = np.flatnonzero(value > 0)
    builder.rows(
        "memory",
        count,
        [
            (row, memory, 1.0),
            (row, computed, -size),
            (row, kept, -size),
            (later, memory[later - 1], -1.0),
        ],
        lower=0.0,
        upper=0.0,
    )
    program = builder.build()
    built = time.process_time()
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    driver.pass_program(solver, program)
    handed = time.process_time()
    return {
        "columns": program.column_count,
        "rows": program.row_count,
        "nonzeros": program.nonzero_count,
        "build_cpu_seconds": built - began,
        "hand_over_cpu_seconds": handed - built,
        "total_cpu_seconds": handed - began,
    }


def by_pulp(stages: int) -> dict[str, Any]:
    """Build by PuLP: its own variables and expressions, then its own HiGHS interface."""
    import pulp

    began = time.process_time()
    given = instance(stages)
    cost, size, dependencies = given["cost"].tolist(), given["size_mib"].tolist(), given["dependencies"].tolist()
    pairs = [(t, i) for t in range(stages) for i in range(t + 1)]
    computed = pulp.LpVariable.dicts("R", pairs, cat="Binary")
    kept = pulp.LpVariable.dicts("S", pairs, cat="Binary")
    memory = pulp.LpVariable.dicts("U", pairs, lowBound=0, upBound=sum(size) / 2)
    problem = pulp.LpProblem("rematerialization", pulp.LpMinimize)
    problem += pulp.lpSum(cost[i] * computed[t, i] for t, i in pairs)
    for t, i in pairs:
        for j in dependencies[i]:
            if j >= 0:
                problem += computed[t, i] - computed[t, j] - kept[t, j] <= 0
        if t + 1 < stages:
            problem += kept[t + 1, i] - kept[t, i] - computed[t, i] <= 0
        before = memory[t, i - 1] if i else 0
        problem += memory[t, i] - before - size[i] * computed[t, i] - size[i] * kept[t, i] == 0
    built = time.process_time()
    solver = pulp.HiGHS(msg=False)
    solver.createAndConfigureSolver(problem)
    solver.buildSolverModel(problem)
    handed = time.process_time()
    return {
        "columns": len(problem.variables()),
        "rows": len(problem.constraints),
        "nonzeros": sum(len(row) for row in problem.constraints.values()),
        "build_cpu_seconds": built - began,
        "hand_over_cpu_seconds": handed - built,
        "total_cpu_seconds": handed - began,
    }


WAYS = {"arrays": by_arrays, "pulp": by_pulp}


def measure(way: str, stages: int) -> dict[str, Any]:
    """Run one way of building in a process of its own."""
    command = [sys.executable, __file__, "--way", way, "--stages", str(stages)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=WAYS, help="build one way only, in this process")
    parser.add_argument("--stages", type=int, default=STAGES)
    chosen = parser.parse_args()
    if chosen.way:
        figures = WAYS[chosen.way](chosen.stages)
        figures["peak_rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(figures))
        return
    arrays = [measure("arrays", chosen.stages) for _ in range(3)]
    best = min(arrays, key=lambda figures: figures["total_cpu_seconds"])
    peer = measure("pulp", chosen.stages)
    path = record.write(
        "solver_build",
        {
            "target_cpu_seconds": TARGET_CPU_SECONDS,
            "arrays_total_cpu_seconds_of_each_run": [figures["total_cpu_seconds"] for figures in arrays],
            "arrays": best,
            "pulp": peer,
            "times_faster_than_pulp": peer["total_cpu_seconds"] / best["total_cpu_seconds"],
        },
    )
    print(path.read_text())


if __name__ == "__main__":
    main()
