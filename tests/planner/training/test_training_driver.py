"""Plans of the kind ``training``: checked, bounded, no worse than any baseline, as good as any on tiny steps, and
refused for a reason."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import CancelledError, LimitReachedError
from loadmaster.models.placement.problem import Tier
from loadmaster.models.training.checker import check, check_plan
from loadmaster.models.training.documents import read_plan, write_plan
from loadmaster.models.training.formulation import formulate
from loadmaster.models.training.limits import least_bytes, least_us, peak_bytes, plain_us
from loadmaster.models.training.phases import Phases
from loadmaster.models.training.plan import GroupPlan, Schedule, Stay, TrainingPlan
from loadmaster.models.training.problem import Group, Point, TrainingProblem
from loadmaster.models.training.runs import runs
from loadmaster.models.training.ways import ways
from loadmaster.planner import frontier
from loadmaster.planner.options import PlanOptions, PlanProgress
from loadmaster.planner.training.baselines import BASELINES, Mix
from loadmaster.planner.training.driver import plan_training
from loadmaster.planner.training.positions import positions
from loadmaster.planner.training.search import Search
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import SolveOptions
from tests.models.training.steps import HOST, KB, group, problems, step_of

POINTS = (Point("keep", 20.0, 30.0, 12 * KB), Point("checkpoint", 20.0, 45.0, 2 * KB, 0, 10 * KB))


def planned(problem: TrainingProblem, budget_bytes: int, **options: object) -> TrainingPlan:
    return plan_training(problem, PlanOptions(budget_bytes=budget_bytes, **options))  # type: ignore[arg-type]


def deep(layers: int, **fields: object) -> TrainingProblem:
    """Layers that may be checkpointed, with a group each. Moves of a group's state take 8 us, those of its copy 2."""
    return step_of(layers, *(group(f"g{n}", n) for n in range(layers)), points=POINTS, **fields)  # type: ignore[arg-type]


@settings(max_examples=10)
@given(problems(), st.floats(0, 1))
def test_plans_pass_the_check_and_bounds_hold(problem: TrainingProblem, share: float) -> None:
    low, high = least_bytes(problem)[0], peak_bytes(problem)
    budget = low + int(share * (high - low))
    try:
        plan = planned(problem, budget, time_limit_s=2)
    except LimitReachedError:
        return
    assert read_plan(json.loads(json.dumps(write_plan(plan)))) == plan
    if plan.status == "infeasible":
        assert plan.infeasibility is not None
        assert budget < plan.infeasibility.minimum_budget_bytes <= high
        return
    verdict = check_plan(problem, plan)
    assert verdict.ok, verdict.violations
    assert plan.objective is not None and plan.bound is not None
    assert plan.objective == pytest.approx(verdict.objective)
    assert min(least_us(problem), plan.objective) <= plan.bound <= plan.objective
    for method in BASELINES:
        try:
            baseline = planned(problem, budget, method=method)
        except LimitReachedError:
            continue
        assert baseline.objective is not None and plan.objective <= baseline.objective
        assert check_plan(problem, baseline).ok


def test_whole_counts_prove_more_than_parts() -> None:
    problem = deep(6)
    budget = (3 * least_bytes(problem)[0] + peak_bytes(problem)) // 4
    formulated = formulate(problem, budget, runs(problem, 1))
    parts, whole = (
        solve(program, SolveOptions(gap=1e-9)).objective for program in (formulated.relaxed(), formulated.program)
    )
    assert parts is not None and whole is not None and whole > 1.01 * parts
    plan = planned(problem, budget, gap=0.0)
    assert plan.bound is not None and plan.objective is not None
    assert whole * formulated.unit_us * (1 - 2e-3) <= plan.bound <= plan.objective


def all_positions(phases: Phases, g: int) -> Iterator[GroupPlan]:
    """All plans of a group that is used once each way; of stays of a copy those that begin where they are used or one
    phase earlier, since every one would be too many."""
    group, count = phases.problem.groups[g], len(phases)
    begun, last, following = phases.first_gradient(group), phases.last_gradient(group), phases.next_use(group)
    for way in ways(group):
        plan = GroupPlan(way.weights, way.state, way.update)
        parts: list[list[dict[str, object]]] = []
        if way.update == "device":
            after = range(phases.update_from(group), following)
            parts.append(
                [
                    {"update_after": u, "update_stay": Stay(lo, hi)} if way.has_stay else {"update_after": u}
                    for u in after
                    for lo in (range(max(0, u + 1 - count), u + 1) if way.has_stay else [0])
                    for hi in (range(u + 1, lo + count + 1) if way.has_stay else [0])
                ]
            )
        if way.update == "host":
            parts.append([{"gradient_gone_at": p} for p in range(last + 1, begun + count + 1)])
            if way.weights == "copy":
                parts.append([{"copy_load_at": p} for p in range(last + 1, following + 1)])
        if way.weights == "streamed":
            forward, back = phases.uses[g]
            found: list[tuple[Stay, ...]] = [(Stay(forward, back + 1),)]
            found += [
                (Stay(forward, f), Stay(b, back + 1)) for b in (back, back - 1) for f in {forward + 1, b} if f <= b
            ]
            parts.append([{"stays": stays} for stays in found if all(s.load_at < s.gone_at for s in stays)])
        for fields in itertools.product(*parts):
            yield replace(plan, **{k: v for part in fields for k, v in part.items()})  # type: ignore[arg-type]


@pytest.mark.parametrize("clip", [False, True])
def test_on_tiny_steps_no_plan_of_all_is_better(clip: bool) -> None:
    problem = step_of(1, group("g0", 0), group("g1", 0, state_bytes=4), points=POINTS, clip_grad_norm=clip)
    phases = Phases(problem)
    of_groups = [list(all_positions(phases, g)) for g in range(2)]
    budgets = [least_bytes(problem)[0] + n * KB for n in (0, 4, 8, 16)]
    best = dict.fromkeys(budgets, float("inf"))
    for point, plans in itertools.product(range(2), itertools.product(*of_groups)):
        verdict = check(problem, Schedule((point,), plans), peak_bytes(problem), phases)
        if verdict.ok:
            for budget in budgets:
                if verdict.peak_bytes <= budget:
                    best[budget] = min(best[budget], verdict.objective)
    for budget, least in best.items():
        if least < float("inf"):
            assert planned(problem, budget, gap=0.0).objective == pytest.approx(least)


@pytest.mark.parametrize("clip", [False, True])
def test_on_small_steps_no_mix_of_all_is_better(clip: bool) -> None:
    problem = deep(2, clip_grad_norm=clip)
    for budget in (least_bytes(problem)[0] + 2 * KB, (least_bytes(problem)[0] + peak_bytes(problem)) // 2):
        times = []
        for points in itertools.product(range(2), repeat=2):
            for chosen in itertools.product(*map(ways, problem.groups)):
                schedule = positions(problem, points, chosen, budget)
                if schedule is not None and (verdict := check(problem, schedule, budget)).ok:
                    times.append(verdict.objective)
        plan = planned(problem, budget, gap=0.0)
        assert plan.objective == pytest.approx(min(times))
        assert plan.bound is not None and plan.bound <= min(times)


def test_what_fits_is_not_moved() -> None:
    problem = replace(deep(4), host=Tier("host", 1e-3, 1e-3))
    plan = planned(problem, peak_bytes(problem))
    assert plan.status == "optimal" and plan.schedule is not None
    assert plan.objective == pytest.approx(plain_us(problem))
    assert all(g.weights == g.state == g.update == "device" for g in plan.schedule.groups)


def test_memory_of_the_host_buys_results_that_are_kept() -> None:
    problem = deep(12)
    budget = (least_bytes(problem)[0] + 2 * peak_bytes(problem)) // 3
    plan = planned(problem, budget)
    by_hand = planned(problem, budget, method="by-hand")
    assert plan.objective is not None and by_hand.objective is not None
    assert plan.objective < by_hand.objective
    assert plan.gap is not None and plan.gap < 0.1


@pytest.mark.parametrize(
    ("method", "places"),
    [
        ("plain", {("device", "device", "device")}),
        ("checkpoint", {("device", "device", "device")}),
        ("zero-offload", {("copy", "host", "host")}),
        ("fsdp", {("streamed", "host", "host")}),
        ("by-hand", {("device", "host", "device"), ("device", "device", "device")}),
    ],
)
def test_baselines_are_those_of_their_names(method: str, places: set[tuple[str, str, str]]) -> None:
    problem = deep(6)
    budget = peak_bytes(problem) - (20 * KB if method in ("checkpoint", "by-hand") else 0)
    plan = planned(problem, budget, method=method)
    assert plan.method == method and plan.schedule is not None
    assert check_plan(problem, plan).ok
    assert {(g.weights, g.state, g.update) for g in plan.schedule.groups} <= places
    # Two layers fewer keep their results: the fewest that save enough.
    assert sum(plan.schedule.points) == {"checkpoint": 2, "fsdp": 6, "by-hand": 6}.get(method, 0)


def test_groups_that_the_host_cannot_update_stay_with_the_device() -> None:
    groups = [group("g0", 0, host_update_us=None), group("g1", 1), group("frozen", 1, trained=False)]
    problem = step_of(2, *groups, points=POINTS)
    plan = planned(problem, peak_bytes(problem), method="zero-offload")
    assert plan.schedule is not None
    assert [(g.weights, g.update) for g in plan.schedule.groups] == [
        ("copy", "device"),
        ("copy", "host"),
        ("copy", "none"),
    ]


def test_less_than_any_phase_needs_is_infeasible_and_says_which() -> None:
    problem = deep(4)
    least, where = least_bytes(problem)
    plan = planned(problem, least - 1)
    assert plan.status == "infeasible" and plan.infeasibility is not None
    assert (plan.infeasibility.minimum_budget_bytes, plan.infeasibility.short_bytes) == (least, 1)
    assert plan.infeasibility.where == where


@pytest.mark.slow
@pytest.mark.solver_process
def test_a_host_that_holds_too_little_is_proved_to() -> None:
    problem = deep(6, tier=Tier("host", 1.0, 1.0, capacity_bytes=20 * KB))
    budget = least_bytes(problem)[0]
    plan = planned(problem, budget)
    assert plan.status == "infeasible" and plan.infeasibility is not None
    assert budget < plan.infeasibility.minimum_budget_bytes <= peak_bytes(problem)
    assert plan.infeasibility.where.startswith("or more host memory than ")


def test_a_baseline_that_does_not_fit_proves_nothing() -> None:
    problem = deep(4)
    with pytest.raises(LimitReachedError, match="the method auto"):
        planned(problem, peak_bytes(problem) - KB, method="plain")


def test_more_budget_is_never_worse() -> None:
    found = frontier(deep(5), PlanOptions(gap=0.02), count=4, workers=1, progress=False)
    times = [point.plan.objective for point in found.points if point.plan.objective is not None]
    assert times == sorted(times, reverse=True) and len(times) >= 3


def test_the_same_seed_gives_the_same_plan() -> None:
    problem = deep(6)
    budget = (least_bytes(problem)[0] + peak_bytes(problem)) // 2
    one, two = (planned(problem, budget, gap=0.0, seed=3) for _ in range(2))
    assert one.schedule == two.schedule
    assert (one.objective, one.bound, one.stopped_by) == (two.objective, two.bound, two.stopped_by)


def test_a_kick_leads_to_another_plan_that_fits() -> None:
    problem = deep(8)
    budget = (least_bytes(problem)[0] + peak_bytes(problem)) // 2
    search = Search(problem, budget, seed=0)
    found = search.evaluate(Mix((1,) * 8, (1,) * 8))
    assert found is not None
    kicked = [search.kicked(found) for _ in range(5)]
    for one in kicked:
        verdict = check(problem, one.schedule, budget)
        assert verdict.ok and verdict.step_us == pytest.approx(one.step_us)
    assert len({one.mix for one in kicked} - {found.mix}) >= 3


def test_a_cancel_returns_the_best_plan_so_far() -> None:
    problem = deep(8)
    budget = (least_bytes(problem)[0] + peak_bytes(problem)) // 2
    reports: list[PlanProgress] = []
    plan = plan_training(
        problem,
        PlanOptions(budget_bytes=budget, gap=0.0),
        on_progress=reports.append,
        cancelled=lambda: any(r.plan is not None for r in reports),
    )
    assert plan.stopped_by == "cancel" and check_plan(problem, plan).ok
    made = next(r.plan for r in reports if r.plan is not None)()
    assert isinstance(made, TrainingPlan) and check_plan(problem, made).ok and made.stopped_by == "nothing"
    with pytest.raises(CancelledError):
        plan_training(problem, PlanOptions(budget_bytes=budget), cancelled=lambda: True)


def test_shared_and_frozen_parameters_and_micro_batches() -> None:
    tied: list[Group] = [group("tied", 0, 3), group("g1", 1), group("frozen", 2, trained=False)]
    problem = step_of(4, *tied, points=POINTS, micro_batches=2)
    low, high = least_bytes(problem)[0], peak_bytes(problem)
    for share in (0.2, 0.5, 0.8):
        plan = planned(problem, int(low + share * (high - low)))
        assert plan.status == "infeasible" or check_plan(problem, plan).ok


def test_state_goes_to_files_where_host_memory_lacks() -> None:
    """Six groups of 4 kB of weights and 8 of state, room on the host for all but two states and a half."""
    capacity = 6 * 16 * KB - 20 * KB
    problem = deep(6, tier=replace(HOST, capacity_bytes=capacity))
    disk = Tier("nvme", 1.0, 2.0, capacity_bytes=6 * 8 * KB, endurance_bytes=10**9)
    budget = least_bytes(problem)[0] + KB
    with_disk = replace(problem, disk=disk)
    plan = planned(with_disk, budget, time_limit_s=5)
    assert plan.schedule is not None and plan.objective is not None and plan.bound is not None
    verdict = check_plan(with_disk, plan)
    assert verdict.ok and verdict.disk_bytes >= 3 * 8 * KB and plan.bound <= plan.objective
    assert verdict.host_bytes <= capacity
    # ZeRO-Infinity has all of them there, in the buffers that there is room for.
    infinity = planned(with_disk, budget, method="zero-infinity")
    assert infinity.schedule is not None and infinity.objective is not None
    assert {g.state for g in infinity.schedule.groups} == {"disk"}
    assert infinity.schedule.disk_buffers == (capacity - 6 * 8 * KB) // (8 * KB) == 3
    assert plan.objective <= infinity.objective
    # Without a disk, no plan has so little on the host.
    for method in ("auto", "zero-infinity", "fsdp"):
        try:
            without = planned(problem, budget, method=method, time_limit_s=5)
        except LimitReachedError:
            continue
        assert without.status == "infeasible"


def test_a_disk_gains_nothing_where_host_memory_suffices() -> None:
    problem = deep(4)
    budget = (least_bytes(problem)[0] + peak_bytes(problem)) // 2
    with_disk = replace(problem, disk=Tier("nvme", 100.0, 100.0))
    bounds = [planned(p, budget, method="fsdp").objective for p in (problem, with_disk)]
    assert bounds[0] == bounds[1]
    assert planned(with_disk, budget, time_limit_s=5).check["disk_bytes"] == 0
