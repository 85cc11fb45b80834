"""Tiny graphs on each of which one row of a formulation decides: left out, or charged twice, the answer is another.

Forward operators take a microsecond each, sizes are in MiB, and the best of all schedules is found by trying them all.
"""

from __future__ import annotations

import math

import pytest

from loadmaster.models.memory import banded, monet, relaxation
from loadmaster.models.memory.bands import everything
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.completion import complete
from loadmaster.models.memory.groups import groups_of
from loadmaster.models.memory.problem import (
    BackwardImplementation,
    BackwardOperator,
    ForwardOperator,
    Implementation,
    InPlace,
    MemoryProblem,
)
from loadmaster.solvers.process import solve
from loadmaster.solvers.program import Program
from loadmaster.solvers.solution import Solution, SolveOptions
from tests.models.memory.brute_force import best_objectives
from tests.models.memory.instances import UNIT


def forward(
    sizes: list[int],
    inputs: dict[int, tuple[int, ...]],
    *,
    encodes: dict[int, int] | None = None,
    in_place: dict[int, InPlace] | None = None,
    workspace: dict[int, int] | None = None,
) -> tuple[ForwardOperator, ...]:
    made = []
    for i, size in enumerate(sizes):
        live = tuple(j for j in range(i) if any(j in inputs.get(n, ()) for n in range(i, len(sizes))))
        runs = (Implementation(1.0, (workspace or {}).get(i, 0) * UNIT),)
        live_bytes = sum(sizes[j] for j in live) * UNIT
        operator = ForwardOperator(
            *(i, f"f{i}", inputs.get(i, ()), size * UNIT, live, live_bytes, 0, runs, runs),
            encodes=(encodes or {}).get(i),
            in_place=(in_place or {}).get(i),
        )
        made.append(operator)
    return tuple(made)


def backward(*operators: tuple[int, int, list[tuple[float, tuple[int, ...]]]]) -> tuple[BackwardOperator, ...]:
    """Each the MiB of its result and of live gradients, and its implementations: time and needs."""
    return tuple(
        BackwardOperator(
            *(k, f"b{k}", output * UNIT, live * UNIT, 0),
            tuple(BackwardImplementation(time_us, 0, needs) for time_us, needs in ways),
        )
        for k, (output, live, ways) in enumerate(operators, start=1)
    )


def over(overwrites: int, time_us: float, workspace: int) -> InPlace:
    return InPlace(overwrites, time_us, workspace * UNIT)


GRAPHS = {
    # Backward 1 reads 0, so it is stored when stage 2 starts; its encoded result is made there, beside it again.
    "what is stored and computed again takes its room once": MemoryProblem(
        "twice",
        forward([4, 1, 0], {1: (0,)}, encodes={1: 0}),
        backward((3, 0, [(1.0, (0,))]), (0, 0, [(1.0, (0, 1))])),
    ),
    # What backward 1 read from storage stands beside the gradients of backward 2 until that stage has passed it.
    "what a stage has read is there when the next one starts": MemoryProblem(
        "stage start",
        forward([4, 0], {}),
        backward((0, 0, [(1.0, (0,))]), (0, 6, [(1.0, ())])),
    ),
    # Operator 1 could save a microsecond in place, but operator 2, the next one, reads 0 as well.
    "the next reader of what would be overwritten": MemoryProblem(
        "next reader",
        forward([2, 2, 2, 0], {1: (0,), 2: (0, 1), 3: (2,)}, in_place={1: over(0, -1.0, -2)}),
        backward((7, 0, [(1.0, ())]), (0, 0, [(1.0, (2,))])),
    ),
    # Recomputed, operator 1 fits in place only; in place it is cheaper, too.
    "workspace and time that running in place saves": MemoryProblem(
        "in place",
        forward([4, 4, 0], {1: (0,), 2: (1,)}, in_place={1: over(0, -0.5, -4)}),
        backward((5, 0, [(1.0, ())]), (0, 0, [(1.0, (1,))])),
    ),
    # In place operator 1 takes more room than beside its input.
    "workspace that running in place takes": MemoryProblem(
        "roomy",
        forward([2, 2, 0], {1: (0,), 2: (1,)}, in_place={1: over(0, -0.5, 3)}),
        backward((5, 0, [(1.0, ())]), (0, 0, [(1.0, (1,))])),
    ),
    # Result 0 stays for backward 3 while 1, which reads it, is recomputed: it counts once.
    "a live input that is kept counts once": MemoryProblem(
        "live",
        forward([4, 4, 0], {1: (0,), 2: (1,)}),
        backward((3, 0, [(1.0, ())]), (0, 0, [(1.0, (1,))]), (0, 0, [(1.0, (0,))])),
    ),
    # Backward 1 has gradients that leave no room for recomputing 1, backward 2 has none.
    "the gradients of the stage that recomputes": MemoryProblem(
        "gradients",
        forward([4, 4, 0], {1: (0,), 2: (1,)}),
        backward((0, 7, [(1.0, ())]), (0, 0, [(1.0, (1,))])),
    ),
    # The encoded result takes workspace of its own where it is made.
    "workspace of an encoded result in the forward pass": MemoryProblem(
        "encoded",
        forward([4, 1, 0], {1: (0,)}, encodes={1: 0}, workspace={1: 6}),
        backward((3, 0, [(1.0, ())]), (0, 0, [(1.0, (1,)), (9.0, (0,))])),
    ),
    # Run in place with its parent, the encoded result takes workspace, and saves time.
    "an encoded result beside a parent in place": MemoryProblem(
        "encoded in place",
        forward(
            [4, 4, 1, 0],
            {1: (0,), 2: (1,), 3: (1,)},
            encodes={2: 1},
            in_place={1: over(0, -0.5, -4), 2: over(0, -0.25, 3)},
        ),
        backward((5, 0, [(1.0, ())]), (0, 0, [(1.0, (2,)), (4.0, (1,))])),
    ),
    # Whoever runs in place over 0 must not leave it to backward 2, though nobody keeps it.
    "what backward reads is not overwritten beside it": MemoryProblem(
        "needed",
        forward([2, 2, 0], {1: (0,), 2: (1,)}, in_place={1: over(0, -1.0, -2)}),
        backward((5, 0, [(1.0, ())]), (0, 0, [(1.0, (0, 1))])),
    ),
}


def solved(program: Program) -> Solution:
    return solve(program, SolveOptions(gap=0.0), solver="highs")


def objective(solution: Solution) -> float:
    return math.inf if solution.objective is None else solution.objective


@pytest.mark.parametrize("name", GRAPHS)
def test_every_formulation_is_right_about_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (banded, relaxation):
        monkeypatch.setattr(module, "NOTICEABLE", 0.0)
    problem = GRAPHS[name]
    last = problem.stage_count - 1
    budgets = [n * UNIT for n in range(3, 13)]
    best = best_objectives(problem, budgets)
    assert len({b for b in best if math.isfinite(b)}) >= 1 and math.isinf(best[0])
    for budget, optimum in zip(budgets, best, strict=True):
        exact = monet.formulate(problem, budget)
        point = solved(exact.program)
        assert objective(point) == pytest.approx(optimum)
        if point.values is not None:
            assert check(problem, exact.schedule(point.values), budget).violations == ()
        for starts in ([1], list(range(1, last + 1))):
            assert objective(solved(relaxation.build(problem, budget, starts).program)) <= optimum + 1e-6
            allowed = everything(problem, groups_of(starts, problem.stage_count))
            restriction = banded.build(problem, budget, starts, allowed, offload=False, to_the_byte=True)
            found = solved(restriction.program)
            assert objective(found) >= optimum - 1e-6
            if found.values is not None:
                schedule = complete(problem, budget, restriction.decisions(found.values))
                verdict = check(problem, schedule, budget)
                assert verdict.violations == ()
                assert verdict.objective <= objective(found) + 1e-6
