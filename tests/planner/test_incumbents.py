"""Plans that a search hands out while it goes on: checked, ever better, and bounded by what holds to its end.

They are asked for wherever the caller has a word: in every report, and whenever it is asked whether to stop.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import loadmaster
from loadmaster.models.envelope import Plan
from loadmaster.models.hardware import HostLink
from loadmaster.models.kind import Problem
from loadmaster.models.kinds import check_plan, kind_named, read_plan, write_plan
from loadmaster.models.memory import chen
from loadmaster.models.memory.checker import check
from loadmaster.planner import PlanOptions, PlanProgress
from loadmaster.planner.effort import GOING_ON, Effort
from loadmaster.planner.memory import search as search_room
from loadmaster.planner.memory.search import Search
from loadmaster.planner.memory.slots import Slots
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import Solution, SolverStatus
from tests.models.collective.tiny import problem as collective_problem
from tests.models.collective.tiny import ring, switched
from tests.models.graph import problems as graph
from tests.models.index import index_instances as index
from tests.models.memory import instances as memory
from tests.models.partition import instances as partition
from tests.models.placement import instances as placement
from tests.models.training import steps as training

MIB = 1 << 20
GAP = 0.01
LINK = HostLink(MIB / 3e3, MIB / 3e3)  # a MiB takes three microseconds


def collective(seed: int) -> Problem:
    """Of three sizes: what is planned for one serves the others until their turn comes."""
    draw = random.Random(seed)
    topology = draw.choice([ring(4), switched(2, 2), switched(1, 4)])
    chosen = draw.choice(["allgather", "allreduce", "alltoall"])
    return replace(collective_problem(topology, chosen, 1 << 20), sizes_bytes=(1 << 10, 1 << 16, 1 << 20))  # type: ignore[arg-type]


KINDS: dict[str, Callable[[int], Any]] = {
    "memory": lambda seed: memory.random_problem(seed, operators=7, unit_bytes=MIB),
    "offload": lambda seed: memory.random_problem(seed, operators=6, unit_bytes=MIB, host_link=LINK),
    "placement": lambda seed: placement.random_problem(seed, operators=12, blocks=10),
    "partition": lambda seed: partition.random_problem(seed, mesh=(2, 2), operators=5, copies=seed % 2 == 1),
    "graph": lambda seed: graph.rgcn(seed, training=True, feature_gradients=False),
    "index": lambda seed: index.random_problem(seed, shards=12, objective="longest-thread" if seed % 2 else "sum"),
    "collective": collective,
    "training": lambda seed: training.random_problem(seed, layers=8),
}


class Asking:
    """A caller that asks for a plan whenever it has a word."""

    def __init__(self) -> None:
        self.latest: Callable[[], Plan] | None = None
        self.plans: list[Plan] = []
        self.functions: list[Callable[[], Plan]] = []

    def report(self, progress: PlanProgress) -> None:
        if progress.plan is not None and progress.plan is not self.latest:
            self.latest = progress.plan
            self.functions.append(progress.plan)
        self.ask()

    def stop(self) -> bool:
        self.ask()
        return False

    def ask(self) -> None:
        if self.latest is not None and len(self.plans) < 300:
            self.plans.append(self.latest())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_every_plan_handed_out_is_checked_and_no_worse_than_the_one_before(kind: str, seed: int) -> None:
    problem = KINDS[kind](seed)
    limit = kind_named(problem.kind).limit
    options = PlanOptions(gap=GAP, time_limit_s=4.0 if limit is None else 60.0)
    if limit is not None:
        options = options.with_limit(limit.default_points(problem, 4)[1])
    asking = Asking()
    end = loadmaster.plan(problem, options, on_progress=asking.report, cancelled=asking.stop)
    assert end.objective is not None and end.bound is not None
    assert asking.plans
    for plan in asking.plans:
        verdict = check_plan(problem, plan)
        assert verdict.ok, verdict.violations
        assert plan.check == verdict.summary()
        assert plan.objective == pytest.approx(verdict.objective, rel=1e-9)
        assert plan.stopped_by == GOING_ON
        assert (plan.problem_sha256, plan.unit, plan.options) == (end.problem_sha256, end.unit, end.options)
        # What was proved then is no more than what was found in the end.
        if plan.bound is not None:
            assert plan.bound <= end.objective * (1 + 1e-6)
        assert plan.status == "feasible" or (plan.gap is not None and plan.gap <= GAP + 1e-9)
        assert read_plan(json.loads(json.dumps(write_plan(plan)))) == plan
    objectives = [plan.objective for plan in asking.plans] + [end.objective]
    assert objectives == sorted(objectives, key=lambda objective: -(objective or 0.0))
    # Whoever asks late gets no worse a plan.
    for make in asking.functions:
        assert (make().objective or 0.0) >= end.objective * (1 - 1e-9)


def test_a_function_comes_again_until_there_is_a_better_plan() -> None:
    """And its plan says what the problem was captured with, as the answer does."""
    problem = replace(memory.random_problem(1, operators=7, unit_bytes=MIB), captured_with={"torch": "2.13"})
    limit = kind_named("memory").limit
    assert limit is not None
    seen: list[PlanProgress] = []
    budget_bytes = limit.default_points(problem, 4)[1]
    end = loadmaster.plan(problem, budget_bytes=budget_bytes, gap=0.0, on_progress=seen.append)
    functions = [progress.plan for progress in seen if progress.plan is not None]
    assert len(functions) > len(set(functions))
    plans = [make() for make in dict.fromkeys(functions)]
    assert plans[-1].objective == end.objective
    assert {str(plan.captured_with) for plan in plans} == {str(end.captured_with)} == {"{'torch': '2.13'}"}


def test_reports_without_a_plan_are_figures_alone() -> None:
    progress = PlanProgress(1.0, "solve", "12 nodes", 3.0, 2.0, 1 / 3)
    assert progress.plan is None
    figures = dict(seconds=1.0, phase="solve", message="12 nodes", objective=3.0, bound=2.0, gap=1 / 3)
    assert progress.figures() == figures


@pytest.mark.parametrize("is_first", [False, True])
def test_a_point_of_a_solve_under_way_makes_a_plan(monkeypatch: pytest.MonkeyPatch, is_first: bool) -> None:
    """Of one that ends with nothing: looked at when it is asked for, or at once where there was no plan yet."""
    problem = memory.random_problem(3, operators=7, unit_bytes=MIB)
    schedule = chen.formulate(problem)
    budget_bytes = check(problem, schedule, 1 << 60).peak_bytes

    def broken_off(*asked: Any, on_point: Callable[[Any], None], **more: Any) -> Solution:
        found = solve(*asked, **more)
        assert found.values is not None
        on_point(found.values)
        return replace(found, status=SolverStatus.NO_SOLUTION, values=None, objective=None)

    monkeypatch.setattr(search_room, "solve", broken_off)
    search = Search(problem, budget_bytes, Effort(PlanOptions(gap=0.0, time_limit_s=60)))
    if not is_first:
        search.adopt(schedule, "chen")
    before = search.objective
    search.restrict(Slots(500, None, 0), 60.0)
    assert (search.objective is not None) if is_first else (search.objective == before)
    assert search.effort.plan is not None
    plan = search.effort.plan()
    assert check_plan(problem, plan).ok
    assert plan.objective == search.objective
    assert before is None or search.verdict.objective < before  # type: ignore[union-attr]
