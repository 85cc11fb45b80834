"""Planning memory problems: every status with its proof, every method, and the reports on the way."""

from __future__ import annotations

import functools
import itertools
import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadmaster import planner
from loadmaster.errors import CancelledError, CheckFailedError, InputError, LimitReachedError
from loadmaster.models.hardware import HostLink
from loadmaster.models.memory import banded, chen, minimum, monet, plain, relaxation
from loadmaster.models.memory.banded_points import Banded
from loadmaster.models.memory.checker import check, check_plan
from loadmaster.models.memory.completion import complete
from loadmaster.models.memory.documents import read_problem
from loadmaster.models.memory.minimum import minimum_budget
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.presets import chain, example
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.rows import OutOfTimeError
from loadmaster.models.memory.unconstrained import unconstrained_cost
from loadmaster.models.units import show_bytes
from loadmaster.planner import PlanOptions, PlanProgress
from loadmaster.planner.effort import Effort
from loadmaster.planner.memory import driver
from loadmaster.planner.memory import search as search_room
from loadmaster.planner.memory.search import Search
from loadmaster.planner.memory.slots import Slots
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import Solution, SolveOptions, SolverStatus, StoppedBy
from tests.models.memory.brute_force import best_objective
from tests.models.memory.decisions import decisions_of
from tests.models.memory.instances import budgets, random_problem

# A proof, or the end of all there is to try, ends what has so long: on no machine does the clock.
AMPLE_S = 3600.0
MIB, GIB = 1 << 20, 1 << 30


def eight() -> MemoryProblem:
    """Eight equal operators of a MiB: the plain step takes ten."""
    return read_problem(chain(8, MIB))


def mobilenet() -> MemoryProblem:
    return read_problem(example("mobilenet_v2-b272-recompute"))


def assert_sound(problem: MemoryProblem, plan: MemoryPlan) -> None:
    """What every plan document promises, whatever it says."""
    assert plan.problem_sha256 == problem.sha256
    assert plan.unconstrained == unconstrained_cost(problem)
    assert plan.unit == problem.unit
    assert set(plan.seconds) == {"build", "solve", "check"}
    if plan.schedule is None:
        assert plan.status == "infeasible"
        assert plan.infeasibility is not None
        assert plan.infeasibility.minimum_budget_bytes > plan.budget_bytes
        assert plan.infeasibility.short_bytes == plan.infeasibility.minimum_budget_bytes - plan.budget_bytes
        return
    verdict = check_plan(problem, plan)
    assert verdict.violations == ()
    assert verdict.peak_bytes <= plan.budget_bytes
    assert plan.objective == verdict.objective
    assert plan.check == verdict.summary()
    assert plan.infeasibility is None
    if plan.bound is None:
        assert plan.status == "feasible" and plan.gap is None
        return
    assert plan.bound <= plan.objective * (1 + 1e-6)
    assert plan.gap == pytest.approx(max(0.0, (plan.objective - plan.bound) / plan.objective))
    assert (plan.status == "optimal") == (plan.gap <= plan.options.get("gap", 0.02))
    overhead = plan.objective - plan.unconstrained
    if overhead > 0:
        known = max(0.0, plan.bound - plan.unconstrained)
        assert plan.overhead_gap == pytest.approx(max(0.0, (overhead - known) / overhead))


# -- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_answers_are_the_best_there_are(seed: int) -> None:
    """On graphs small enough to try every schedule: the optimum with a gap of zero, or a proof that there is none."""
    problem = random_problem(seed, operators=3, in_place=0.6, encodings=0.4, unit_bytes=MIB)
    for budget in budgets(problem, (0.2, 0.5)):
        best = best_objective(problem, budget)
        plan = planner.plan(problem, budget_bytes=budget, gap=0.0, time_limit_s=AMPLE_S)
        assert_sound(problem, plan)
        assert plan.status == ("infeasible" if math.isinf(best) else "optimal")
        assert plan.objective == (None if math.isinf(best) else pytest.approx(best))


def test_what_no_relaxation_proves_the_exact_formulation_does_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on graphs that are too large to begin with it."""
    monkeypatch.setattr(driver, "EXACT_CELLS", 0)
    monkeypatch.setattr(driver, "PROVABLE_CELLS", 0)
    problem = random_problem(24, operators=3, in_place=0.6, encodings=0.4, unit_bytes=MIB)
    budget = budgets(problem, (0.4,))[0]
    plan = planner.plan(problem, budget_bytes=budget, gap=0.0, time_limit_s=AMPLE_S)
    assert_sound(problem, plan)
    assert plan.status == "optimal"
    assert plan.objective == pytest.approx(best_objective(problem, budget))


@pytest.mark.parametrize("seed", range(3))
def test_energy_is_planned_for_itself(seed: int) -> None:
    problem = random_problem(seed, operators=6, objective="energy", unit_bytes=MIB)
    budget = budgets(problem, (0.6,))[0]
    exact = solve(monet.formulate(problem, budget).program, SolveOptions(gap=0.0), solver="highs")
    plan = planner.plan(problem, budget_bytes=budget, gap=0.0, time_limit_s=AMPLE_S)
    assert_sound(problem, plan)
    assert plan.unit == "uj"
    assert plan.objective == (None if exact.objective is None else pytest.approx(exact.objective))


@pytest.mark.slow
def test_a_published_graph_within_the_gap() -> None:
    problem = mobilenet()
    plan = planner.plan(problem, budget_bytes=10 * GIB, time_limit_s=60)
    assert_sound(problem, plan)
    assert plan.status == "optimal"
    assert plan.stopped_by == "gap"
    assert plan.gap is not None and plan.gap <= 0.02
    assert plan.solver["name"] == "highs"
    assert plan.solver["cpu_seconds"] > 0


def test_never_worse_than_the_plain_step_that_fits() -> None:
    problem = mobilenet()
    budget = plain.peak_bytes(problem)
    step = check(problem, plain.formulate(problem), budget)
    plan = planner.plan(problem, budget_bytes=budget, time_limit_s=AMPLE_S)
    assert_sound(problem, plan)
    assert plan.objective is not None and plan.objective <= step.objective


@pytest.mark.slow
def test_more_budget_never_costs_more() -> None:
    objectives = []
    for budget in range(3, 11):
        plan = planner.plan(eight(), budget_bytes=budget * MIB, gap=0.0, time_limit_s=30)
        assert_sound(eight(), plan)
        objectives.append(plan.objective)
    assert objectives == sorted(objectives, reverse=True)
    assert objectives[-1] == pytest.approx(unconstrained_cost(eight()))


def test_offloads_what_the_link_can_carry() -> None:
    """A link fast enough for all of it makes up for the memory that is missing."""
    problem = replace(eight(), host_link=HostLink(to_host_gbps=100.0, from_host_gbps=100.0))
    budget = 5 * MIB
    without = planner.plan(eight(), budget_bytes=budget, time_limit_s=AMPLE_S)
    plan = planner.plan(problem, budget_bytes=budget, time_limit_s=AMPLE_S)
    assert_sound(problem, plan)
    assert plan.schedule is not None and plan.schedule.offload
    assert plan.objective is not None and without.objective is not None
    assert plan.objective < without.objective


@pytest.mark.parametrize("gbps", [1.0, 20.0])
def test_a_budget_is_filled_to_the_byte(gbps: float) -> None:
    """Four MiB are just enough for one result on its way beside a backward operator."""
    problem = replace(eight(), host_link=HostLink(gbps, gbps))
    plan = planner.plan(problem, budget_bytes=4 * MIB, gap=0.0, time_limit_s=AMPLE_S)
    assert_sound(problem, plan)
    assert plan.objective == pytest.approx(unconstrained_cost(problem))


def test_a_step_without_room_for_what_is_on_its_way_waits_for_it() -> None:
    """A byte less, and each backward operator waits for what it reads: six copies of the eight."""
    problem = replace(eight(), host_link=HostLink(100.0, 100.0))
    plan = planner.plan(problem, budget_bytes=4 * MIB - 1, time_limit_s=AMPLE_S)
    assert_sound(problem, plan)
    assert plan.schedule is not None and plan.objective is not None
    copy_us = MIB / 100e3
    assert plan.objective <= unconstrained_cost(problem) + 8 * copy_us + 1e-6
    assert any(f.issued_at == t for t, stage in enumerate(plan.schedule.stages) for f in stage.fetches)


def test_what_a_solver_takes_too_much_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule over the budget is refused, and the restriction solved again with bytes to spare."""
    built: list[bool] = []

    build = banded.build

    def greedy(problem: MemoryProblem, budget_bytes: int, *rest: Any, to_the_byte: bool, **more: Any) -> Banded:
        built.append(to_the_byte)
        return build(problem, budget_bytes + MIB * to_the_byte, *rest, to_the_byte=to_the_byte, **more)

    monkeypatch.setattr(banded, "build", greedy)
    monkeypatch.setattr(driver, "evict", lambda *_: None)
    plan = planner.plan(eight(), budget_bytes=6 * MIB, time_limit_s=AMPLE_S)
    assert_sound(eight(), plan)
    assert (True, False) in itertools.pairwise(built)


def test_offloads_what_can_neither_stay_nor_be_made_again() -> None:
    """Nothing may be recomputed, so that without the link there is no plan at all."""
    forward = tuple(replace(f, recomputable=False) for f in eight().forward)
    problem = replace(eight(), forward=forward, host_link=HostLink(100.0, 100.0))
    assert planner.plan(replace(problem, host_link=None), budget_bytes=6 * MIB).status == "infeasible"
    plan = planner.plan(problem, budget_bytes=6 * MIB, time_limit_s=AMPLE_S)
    assert_sound(problem, plan)
    assert plan.schedule is not None and plan.schedule.offload
    assert check_plan(problem, plan).recomputed == 0


def test_room_on_the_host_is_kept_to() -> None:
    problem = replace(eight(), host_link=HostLink(100.0, 100.0, capacity_bytes=2 * MIB))
    plan = planner.plan(problem, budget_bytes=5 * MIB, time_limit_s=AMPLE_S)
    assert_sound(problem, plan)
    assert check_plan(problem, plan).offloaded_bytes <= 2 * MIB


def test_same_request_same_plan() -> None:
    problem = random_problem(5, operators=7, unit_bytes=MIB)
    budget = budgets(problem, (0.7,))[0]
    first, second = (planner.plan(problem, budget_bytes=budget, seed=3, time_limit_s=AMPLE_S) for _ in range(2))
    assert first.stopped_by == second.stopped_by == "gap"
    assert first.schedule == second.schedule
    assert (first.objective, first.bound, first.method) == (second.objective, second.bound, second.method)


@pytest.mark.slow
def test_a_tiny_graph_does_not_wait_for_its_time_limit() -> None:
    """The relaxations stay below its optimum: when every move has been tried, more time changes nothing."""
    link = HostLink(MIB / 1e3, MIB / 1e3)
    problem = random_problem(0, operators=6, skips=0.4, encodings=0.3, host_link=link, unit_bytes=MIB)
    plan = planner.plan(problem, budget_bytes=budgets(problem, (0.4,))[0], time_limit_s=120)
    assert_sound(problem, plan)
    assert (plan.status, plan.stopped_by) == ("feasible", "method")


# -- methods ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["monet", "checkmate", "chen", "gist", "plain"])
def test_methods_by_name(method: str) -> None:
    plan = planner.plan(eight(), method=method, budget_bytes=12 * MIB, gap=0.0, time_limit_s=AMPLE_S)
    assert_sound(eight(), plan)
    assert plan.method == method
    assert plan.bound is not None


def test_chen_and_checkmate_are_no_better_than_monet() -> None:
    """In a chain, where all three may recompute, at what the square root rule takes."""
    budget = 7 * MIB
    plans = {m: planner.plan(eight(), method=m, budget_bytes=budget, gap=0.0) for m in ("monet", "checkmate", "chen")}
    assert plans["monet"].objective is not None
    for plan in plans.values():
        assert plan.objective is not None
        assert plan.objective >= plans["monet"].objective - 1e-6
    assert plans["monet"].status == "optimal"


@pytest.mark.parametrize("method", ["plain", "gist", "chen"])
def test_baselines_that_do_not_fit_say_what_they_need(method: str) -> None:
    with pytest.raises(LimitReachedError, match=rf"{method} needs \d+ bytes.*--method auto"):
        planner.plan(eight(), method=method, budget_bytes=4 * MIB)


def test_checkmate_that_does_not_fit_says_so() -> None:
    """It keeps to one backward implementation, so that a budget may be too small for it alone."""
    for seed in range(40):
        problem = random_problem(seed, operators=4, encodings=0.5, choices=3, unit_bytes=MIB)
        budget = minimum.minimum_budget(problem).budget_bytes
        try:
            plan = planner.plan(problem, method="checkmate", budget_bytes=budget)
        except LimitReachedError as error:
            assert "checkmate has no schedule" in str(error)
            assert "--method auto" in str(error)
            return
        assert_sound(problem, plan)
    pytest.fail("no instance on which checkmate fails")


# -- no plan ---------------------------------------------------------------------------------------------------------


def test_infeasible_says_what_stands_in_the_way() -> None:
    """A backward operator of the chain holds what it reads, the gradient it takes and the one it gives."""
    plan = planner.plan(eight(), budget_bytes=2 * MIB)
    assert_sound(eight(), plan)
    assert plan.stopped_by == "proof"
    assert plan.infeasibility is not None
    assert plan.infeasibility.minimum_budget_bytes == 3 * MIB
    assert plan.infeasibility.short_bytes == MIB
    assert "backward" in plan.infeasibility.where
    assert [b.size_bytes for b in plan.infeasibility.blockers] == [MIB, MIB, MIB]


@pytest.mark.parametrize("method", ["auto", "monet", "checkmate", "plain"])
def test_infeasible_by_any_method(method: str) -> None:
    assert planner.plan(eight(), method=method, budget_bytes=2 * MIB).status == "infeasible"


def test_infeasible_though_every_operator_fits() -> None:
    """The minimum budget named is a proof: there is no schedule below it."""
    for seed in range(30):
        problem = random_problem(seed, operators=3, once_only=1.0, choices=1, encodings=0.0, unit_bytes=MIB)
        budget = minimum.minimum_budget(problem).budget_bytes
        if math.isfinite(best_objective(problem, budget)):
            continue
        plan = planner.plan(problem, budget_bytes=budget, time_limit_s=AMPLE_S)
        assert_sound(problem, plan)
        assert plan.infeasibility is not None
        assert math.isinf(best_objective(problem, plan.infeasibility.minimum_budget_bytes - 1))
        return
    pytest.fail("no such instance")


@pytest.mark.parametrize("link", [None, HostLink(1.0, 1.0)])
def test_a_proof_against_a_plan_in_hand_is_a_bug(link: HostLink | None, monkeypatch: pytest.MonkeyPatch) -> None:
    solve_ = search_room.solve

    def no_bound(program: Any, options: SolveOptions, **rest: Any) -> Any:
        return replace(solve_(program, options, **rest), status=SolverStatus.INFEASIBLE, bound=None)

    monkeypatch.setattr(search_room, "solve", no_bound)
    problem = replace(eight(), host_link=link)
    with pytest.raises(CheckFailedError, match=r"a plain schedule passes its check, but .* says that there is none"):
        planner.plan(problem, budget_bytes=plain.peak_bytes(problem), gap=0.0)


def test_a_budget_must_come_from_somewhere() -> None:
    with pytest.raises(InputError, match="budget_bytes"):
        planner.plan(eight())
    assert planner.plan(replace(eight(), budget_bytes=10 * MIB)).budget_bytes == 10 * MIB
    assert planner.plan(replace(eight(), budget_bytes=12 * MIB), budget_bytes=10 * MIB).budget_bytes == 10 * MIB
    with pytest.raises(InputError, match=r"more than the 1\.00 MiB that the problem states"):
        planner.plan(replace(eight(), budget_bytes=MIB), budget_bytes=10 * MIB)


@pytest.mark.slow
def test_a_time_limit_is_kept_on_a_graph_too_large_for_it() -> None:
    """No program is written to its end; what fits is the trivial plan, and it is there."""
    problem = read_problem(chain(1_000, MIB))
    budget = check(problem, plain.formulate(problem), 0).peak_bytes
    began = time.process_time()
    plan = planner.plan(problem, budget_bytes=budget, time_limit_s=2, gap=0.0)
    assert plan.schedule is not None and plan.check["peak_bytes"] <= budget
    # Processor time, whatever else runs; the limit is one of wall time.
    assert time.process_time() - began <= 4


def test_programs_are_given_up_when_their_time_has_passed() -> None:
    problem = eight()
    for build in (
        functools.partial(relaxation.build, problem, 6 * MIB, [1]),
        functools.partial(banded.build, problem, 6 * MIB, [1], np.ones((1, len(problem.forward)), bool), offload=False),
    ):
        with pytest.raises(OutOfTimeError):
            build(out_of_time=lambda: True)
        assert build(out_of_time=lambda: False)


@pytest.mark.parametrize("method", ["auto", *(pytest.param(m, marks=pytest.mark.slow) for m in ("plain", "monet"))])
def test_graphs_too_large_to_plan_are_refused_with_the_size_that_is_not(method: str) -> None:
    """Before anything is built."""
    problem = read_problem(chain(3_000, MIB))
    began = time.process_time()
    with pytest.raises(InputError, match="3001 operators.*about 2236 operators" if method != "monet" else "about 500"):
        planner.plan(problem, budget_bytes=1 << 40, time_limit_s=10, method=method)
    assert time.process_time() - began <= 5


def test_a_worse_plan_is_not_adopted_nor_a_weaker_bound() -> None:
    problem = eight()
    cheap, dear = (complete(problem, 1 << 40, decisions_of(m.formulate(problem))) for m in (plain, chen))
    costs = [check(problem, schedule, 1 << 40).objective for schedule in (cheap, dear)]
    assert costs[0] < costs[1]
    for order in ((cheap, dear), (dear, cheap)):
        search = Search(problem, 1 << 40, Effort(PlanOptions()))
        for schedule in order:
            search.adopt(schedule, "some")
        assert search.best == cheap and search.objective == costs[0]
        search.bound = costs[0] - 4.0
        for bound in (costs[0] - 1.0, costs[0] - 3.0, None, costs[0] - 6.0, -math.inf):
            search.raise_bound(bound)
        assert search.bound == costs[0] - 1.0
        with pytest.raises(CheckFailedError, match="a some schedule passes its check, but a proved bound"):
            search.raise_bound(costs[0] + 1.0)
        search.bound = costs[0] - 1.0
        # A plan over the budget is not adopted, however cheap.
        tight = Search(problem, check(problem, dear, 0).peak_bytes, Effort(PlanOptions()), fallback=search)
        assert not tight.adopt(cheap, "cheap").ok and tight.best is None
        assert tight.adopt(dear, "dear").ok and tight.best == dear
        tight.take_fallback()
        assert tight.best == dear and tight.fallback is None


def test_no_plan_in_time_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "evict", lambda *_: None)  # a fast machine has one even so
    with pytest.raises(LimitReachedError, match=r"no plan under .* within 0.1 s.*--time-limit") as refused:
        planner.plan(mobilenet(), budget_bytes=6 * GIB, time_limit_s=0.1)
    assert refused.value.__cause__ is None and refused.value.__context__ is None


def test_without_a_plan_it_is_said_which_budget_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least peak that was seen, which is one of a schedule, and the least that is proved."""
    problem = mobilenet()
    nearest = complete(problem, 1 << 40, decisions_of(chen.formulate(problem)))
    verdict = check(problem, nearest, 1 << 40)

    def near(search: Search, *_: object) -> None:
        search.nearest = nearest, verdict

    monkeypatch.setattr(Search, "relax", near)
    monkeypatch.setattr(Search, "done", lambda search: search.nearest is not None)
    monkeypatch.setattr(driver, "find_feasible", lambda *_: None)
    monkeypatch.setattr(driver, "all_again", lambda *_: None)
    least = minimum_budget(problem).budget_bytes
    with pytest.raises(LimitReachedError, match=re.escape(show_bytes(least))) as refused:
        planner.plan(problem, budget_bytes=least, time_limit_s=1)
    assert f"give at least {verdict.peak_bytes} bytes, or more time" in str(refused.value)


@pytest.mark.slow
def test_a_time_limit_includes_the_last_solve_and_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that never looks at its clock is ended by its caller's, while a plan could still be checked."""
    left: list[float] = []

    def endless(*_: Any, cancelled: Callable[[], bool], **__: Any) -> Solution:
        while not cancelled():
            time.sleep(0.01)
        left.append(search.effort.left_s)
        nothing = SolverStatus.NO_SOLUTION, StoppedBy.CANCEL, None, None, None
        return Solution(*nothing, seconds=0.0, cpu_seconds=0.0, nodes=0, solver="endless", solver_version="1")

    monkeypatch.setattr(search_room, "solve", endless)
    search = Search(mobilenet(), 6 * GIB, Effort(PlanOptions(time_limit_s=2)), closing_s=0.5)
    search.relax([1], 100.0)
    assert len(left) == 1 and left[0] < 2
    assert search.done() and search.left_s <= 0 < search.closing_s


def test_what_is_kept_of_the_limit_to_end_and_check_is_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """No move fits into what is left: the clock stopped the search, it had not tried everything."""
    problem = mobilenet()
    search = Search(problem, plain.peak_bytes(problem), Effort(PlanOptions(gap=0.0)), closing_s=5.0)
    search.adopt(plain.formulate(problem), "plain")
    monkeypatch.setattr(Effort, "left_s", 5.0 + search_room.ENDING_S + search_room.LEAST_SECONDS)
    assert driver._answer(search).stopped_by == "time"
    monkeypatch.setattr(Effort, "left_s", 60.0)
    assert driver._answer(search).stopped_by == "method"


# -- on the way ------------------------------------------------------------------------------------------------------


def test_cancelled_before_a_plan() -> None:
    with pytest.raises(CancelledError):
        planner.plan(mobilenet(), budget_bytes=6 * GIB, cancelled=lambda: True)


def test_cancelled_with_a_plan_in_hand_returns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain step fits, so that there is a plan from the first moment on."""
    problem = mobilenet()
    monkeypatch.setattr(driver.unconstrained, "formulate", lambda problem, budget_bytes: plain.formulate(problem))
    plan = planner.plan(problem, budget_bytes=plain.peak_bytes(problem), gap=0.0, cancelled=lambda: True)
    assert_sound(problem, plan)
    assert plan.stopped_by == "cancel"
    assert plan.method == "plain"


def test_cancelled_on_the_way_keeps_the_best_so_far() -> None:
    """Cancelled when the first plan is reported from inside a solve: the answer is that one or better."""
    problem = mobilenet()
    seen: list[float] = []

    def watch(progress: PlanProgress) -> None:
        if progress.objective is not None:
            seen.append(progress.objective)

    plan = planner.plan(
        problem, budget_bytes=8 * GIB, gap=0.0, time_limit_s=60, on_progress=watch, cancelled=lambda: bool(seen)
    )
    assert_sound(problem, plan)
    assert plan.status == "feasible"
    assert plan.stopped_by == "cancel"
    assert plan.objective is not None and plan.objective <= seen[0] + 1e-6


def reported(problem: MemoryProblem, **options: Any) -> tuple[MemoryPlan, list[PlanProgress]]:
    reports: list[PlanProgress] = []
    return planner.plan(problem, on_progress=reports.append, **options), reports


@pytest.mark.parametrize("seed", range(3))
def test_reports_only_get_better(seed: int) -> None:
    problem = random_problem(seed, operators=8, choices=4, skips=0.5, unit_bytes=MIB)
    plan, reports = reported(problem, budget_bytes=budgets(problem, (0.6,))[0], gap=0.0, time_limit_s=20)
    assert reports
    assert [r.seconds for r in reports] == sorted(r.seconds for r in reports)
    bounds = [r.bound for r in reports if r.bound is not None]
    objectives = [r.objective for r in reports if r.objective is not None]
    assert bounds == sorted(bounds)
    assert all(later <= earlier + 1e-6 for earlier, later in itertools.pairwise(objectives))
    for r in reports:
        assert r.phase and r.message
        if r.objective is not None and r.bound is not None:
            assert r.gap == pytest.approx(max(0.0, (r.objective - r.bound) / r.objective))
    if plan.objective is not None:
        assert plan.bound is not None
        assert bounds[-1] <= plan.bound


@pytest.mark.slow
def test_the_fallback_is_reported_and_kept_where_the_narrow_band_has_no_plan(monkeypatch) -> None:
    problem = mobilenet()
    asked: list[Slots] = []
    restrict = Search.restrict

    def no_narrow_plans(self: Search, slots: Slots, limit_s: float, **options: Any) -> SolverStatus:
        asked.append(slots)
        if slots == driver.NARROW:
            self.say("plans, narrow", "none")
            return SolverStatus.NO_SOLUTION
        return restrict(self, slots, limit_s, **options)

    monkeypatch.setattr(Search, "restrict", no_narrow_plans)
    monkeypatch.setattr(driver, "evict", lambda *_: None)
    plan, reports = reported(problem, budget_bytes=8 * GIB, gap=0.0, time_limit_s=20)
    assert asked[:2] == [driver.PORTFOLIO[0], driver.NARROW]
    assert_sound(problem, plan)
    objectives = [r.objective for r in reports if r.objective is not None]
    # Equal steps are summed in another order now and then.
    assert all(later <= earlier + 1e-6 for earlier, later in itertools.pairwise(objectives))
    first = next(i for i, r in enumerate(reports) if r.objective is not None)
    assert all(r.objective is not None for r in reports[first:])
