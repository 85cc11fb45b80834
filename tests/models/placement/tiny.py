"""Placement problems small enough to time by hand: one GB/s each way, so that a kB takes a microsecond."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from loadmaster.models.placement.documents import check_problem
from loadmaster.models.placement.limits import least_bytes, peak_bytes
from loadmaster.models.placement.plan import Moves, PlacementPlan
from loadmaster.models.placement.problem import Block, Operator, PlacementProblem, Tier

KB = 1000
HOST = Tier("host", 1.0, 1.0)
# (reads, writes) as letters: "A", "B", ...
Row = tuple[str, str]


def trace(
    rows: Sequence[Row],
    sizes: Sequence[int],
    *,
    times: Sequence[float] | float = 10.0,
    workspace: int = 0,
    tier: Tier = HOST,
    ops: Sequence[str] | None = None,
) -> PlacementProblem:
    """Blocks A, B, ... of so many kB, and an operator for each row; each is a kernel of its own unless ``ops`` says."""
    each = [times] * len(rows) if isinstance(times, float | int) else times
    operators = tuple(
        Operator(f"op{i}" if ops is None else ops[i], float(each[i]), _blocks(reads), _blocks(writes), workspace * KB)
        for i, (reads, writes) in enumerate(rows)
    )
    blocks = tuple(Block(chr(65 + b), size * KB) for b, size in enumerate(sizes))
    problem = PlacementProblem("tiny", operators, blocks, (tier,))
    check_problem(problem)
    return problem


def _blocks(letters: str) -> tuple[int, ...]:
    return tuple(sorted({ord(letter) - 65 for letter in letters}))


def plan_of(problem: PlacementProblem, moves: Moves, budget_bytes: int, step_us: float) -> PlacementPlan:
    """A plan by hand; what its replay gives is the caller's to know."""
    return PlacementPlan(
        name=problem.name,
        problem_sha256=problem.sha256,
        status="feasible",
        objective=step_us,
        bound=problem.compute_us,
        gap=1 - problem.compute_us / step_us,
        unit="us",
        method="by hand",
        stopped_by="method",
        seconds={"build": 0.0, "solve": 0.0, "check": 0.0},
        solver={},
        check={"ok": True, "stall_us": step_us - problem.compute_us},
        budget_bytes=budget_bytes,
        compute_us=problem.compute_us,
        moves=moves,
    )


@st.composite
def problems(draw: st.DrawFn, *, unit: bool = False) -> tuple[PlacementProblem, int]:
    """A problem and a budget that no operator exceeds; with ``unit``, blocks of one size and no workspace."""
    count = draw(st.integers(1, 6))
    letters = "ABCDEF"[:count]
    some = st.sets(st.sampled_from(letters), max_size=3).map("".join)
    rows = draw(st.lists(st.tuples(some, some), min_size=1, max_size=9))
    sizes = [1] * count if unit else draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    times = draw(st.lists(st.integers(0, 12), min_size=len(rows), max_size=len(rows)))
    tier = Tier("host", draw(st.sampled_from([0.5, 1.0, 4.0])), draw(st.sampled_from([0.5, 1.0])), draw(times_us))
    problem = trace(rows, sizes, times=times, workspace=0 if unit else draw(st.integers(0, 2)), tier=tier)
    # Kernels that are alike share an execution id.
    if draw(st.booleans()):
        problem = replace(problem, operators=tuple(replace(o, op="op") for o in problem.operators))
    least, peak = least_bytes(problem)[0], peak_bytes(problem)
    return problem, draw(st.integers(least, max(least, peak)))


times_us = st.sampled_from([0.0, 0.5])
