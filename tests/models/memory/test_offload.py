"""Offload, from the program's fluid queues to the checker's links: times, bounds, room on the host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadmaster.models.hardware import HostLink
from loadmaster.models.memory import banded, banded_columns, relaxation
from loadmaster.models.memory.bands import everything
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.completion import complete
from loadmaster.models.memory.groups import groups_by_mass, groups_of
from loadmaster.models.memory.plan import Schedule
from loadmaster.models.memory.problem import (
    BackwardImplementation,
    BackwardOperator,
    ForwardOperator,
    Implementation,
    MemoryProblem,
)
from loadmaster.models.memory.unconstrained import unconstrained_cost
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import SolveOptions
from tests.executor.memory.schedules import schedule, travelling
from tests.models.memory.instances import budgets, random_problem, seeds

MIB = 1 << 20


@pytest.fixture(autouse=True)
def every_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor may travel, every implementation has a column, no byte is held back."""
    for name in ("NOTICEABLE", "WORTH_SENDING"):
        monkeypatch.setattr(banded, name, 0.0)


def chain(seed: int, link: HostLink | None, operators: int = 9) -> MemoryProblem:
    """Random sizes and times in a row; every backward operator reads the operator's input."""
    random = np.random.default_rng(seed)
    sizes = [int(s) * MIB for s in random.integers(2, 9, operators)]
    times = [float(t) for t in random.integers(4, 12, operators)]
    forward = tuple(
        ForwardOperator(
            id=i,
            op="loss" if i == operators - 1 else "block",
            inputs=(i - 1,) if i else (),
            output_bytes=sizes[i],
            live_inputs=(i - 1,) if i else (),
            live_bytes=sizes[i - 1] if i else 0,
            fixed_bytes=0,
            implementations=(Implementation(times[i], 0),),
            recompute_implementations=(Implementation(times[i], 0),),
        )
        for i in range(operators)
    )
    backward = tuple(
        BackwardOperator(
            id=k,
            op=f"{forward[i].op} backward",
            output_bytes=sizes[i - 1] if i else 0,
            live_bytes=sizes[i],
            fixed_bytes=0,
            implementations=(BackwardImplementation(2 * times[i], 0, (i - 1,) if i else ()),),
        )
        for k, i in enumerate(reversed(range(operators)), start=1)
    )
    return MemoryProblem(name=f"chain-{seed}", forward=forward, backward=backward, host_link=link)


def link_of(us_per_mib: float, capacity_bytes: int | None = None) -> HostLink:
    return HostLink(MIB / (us_per_mib * 1e3), MIB / (us_per_mib * 1e3), capacity_bytes)


def budget_of(problem: MemoryProblem, share: float) -> int:
    """What one backward operator needs at least, and a share of the rest."""
    least = max(b.output_bytes + b.live_bytes + int(problem.output_bytes.max()) for b in problem.backward)
    return least + int(share * (int(problem.output_bytes.sum()) - least))


def planned(problem: MemoryProblem, budget: int, slots: int) -> tuple[float, Schedule] | None:
    """The program's optimum and the schedule made of it, which the checker accepts."""
    starts = groups_by_mass(problem, slots)
    allowed = everything(problem, groups_of(starts, problem.stage_count))
    restriction = banded.build(problem, budget, starts, allowed, offload=True)
    solution = solve(restriction.program, SolveOptions(gap=0.0), solver="highs")
    if solution.values is None:
        return None
    schedule = complete(problem, budget, restriction.decisions(solution.values))
    assert check(problem, schedule, budget).violations == ()
    assert solution.objective is not None
    return solution.objective, schedule


@pytest.mark.parametrize("seed", seeds((0, 1, 2), range(3, 8)))
def test_plans_keep_to_budget_and_host(seed: int) -> None:
    """A plan that offloads is no dearer than one that does not, and no faster than the relaxation allows."""
    room = 14 * MIB
    problem = chain(seed, link_of(0.5 + seed % 4, room))
    budget = budget_of(problem, 0.3)
    slots = 4 + seed % 6
    stays, travels = planned(replace(problem, host_link=None), budget, slots), planned(problem, budget, slots)
    assert travels is not None
    assert stays is None or travels[0] <= stays[0] + 1e-6
    verdict = check(problem, travels[1], budget)
    assert verdict.offloaded_bytes == sum(problem.forward[i].output_bytes for i in travels[1].offload) <= room
    assert verdict.objective == pytest.approx(verdict.time_us)
    for starts in ([1], [1, 4, 7]):
        lower = solve(relaxation.build(problem, budget, starts).program, SolveOptions(gap=0.0), solver="highs")
        assert lower.objective is not None
        assert lower.objective <= verdict.time_us + 1e-6


def graph(seed: int) -> tuple[MemoryProblem, int]:
    """Skips, results overwritten in place, encoded results; a link that is slow beside the operators; tight budgets."""
    link = link_of((0.3, 0.6, 1.0, 1.5)[seed % 4])
    problem = random_problem(
        seed,
        operators=8 + seed % 4,
        skips=0.5,
        in_place=0.2 * (seed % 2),
        encodings=0.2 * (seed % 3 == 0),
        host_link=link,
        unit_bytes=MIB,
    )
    return problem, budgets(problem, (0.05 + 0.05 * (seed % 6),))[0]


@pytest.mark.parametrize("seed", seeds((0, 1, *range(8, 14)), (*range(2, 8), *range(14, 24))))
def test_the_checkers_time_is_the_programs_but_for_one_copy(seed: int) -> None:
    """The program's queue is fluid: it drains byte by byte, where a result is held until all of it has been sent.

    The checker's clock may so be behind by the longest copy at most, where sending holds an operator up. It is ahead
    only by what completion saves: a cheaper implementation than the program has columns for, or a needless compute.
    """
    if seed < 8:
        problem = chain(seed, replace(link_of(0.5 + seed % 4), cut_us=1.5 * (seed % 2)))
        found = planned(problem, budget := budget_of(problem, 0.2), 9)
        assert found is not None and found[1].offload
    else:
        problem, budget = graph(seed)
        found = planned(problem, budget, 6 + seed % 5)
        if found is None:
            return
    objective, schedule = found
    verdict, link = check(problem, schedule, budget), problem.host_link
    assert link is not None
    longest = max((link.to_host_us(problem.forward[i].output_bytes) for i in schedule.offload), default=0.0)
    close = 1e-6 * objective  # rows of the link are as much wider than the link
    assert verdict.time_us <= objective + longest + close
    if all(e.stall_us == 0 for e in verdict.events):
        assert verdict.time_us <= objective + close
    assert verdict.time_us >= 0.97 * objective


@pytest.mark.parametrize("seed", seeds(range(5), range(5, 16)))
def test_no_journeys_beat_the_relaxation(seed: int) -> None:
    """Journeys at random, under the very budget that they need: no bound may be above their time."""
    draw = np.random.default_rng(seed)
    link = replace(link_of(float(draw.choice([0.2, 0.5, 1.0, 3.0]))), cut_us=2.0 * (seed % 3))
    if seed % 2:
        problem = chain(seed, link)
    else:
        problem = random_problem(seed, operators=8, skips=0.4, encodings=0.3, host_link=link, unit_bytes=MIB)
    kept = draw.random(len(problem.forward)) < 0.8
    by_hand = schedule(problem, lambda i: bool(kept[i]))
    journeys = travelling(
        problem,
        by_hand,
        lambda i: problem.forward[i].encodes is None and bool(draw.random() < 0.7),
        lambda i: int(draw.integers(0, 4)),
        lambda i: int(draw.integers(1, 5)),
    )
    at_ease = check(problem, journeys, 1 << 50)
    assert at_ease.violations == ()
    for starts in ([1], [1, 3, 6], list(range(1, problem.stage_count))):
        program = relaxation.build(problem, at_ease.peak_bytes, starts).program
        lower = solve(program, SolveOptions(gap=0.0, time_limit_s=20), solver="highs")
        assert lower.bound is not None
        assert lower.bound <= at_ease.time_us + 1e-6


@pytest.mark.parametrize("seed", seeds((0, 1, 2), range(3, 8)))
def test_results_leave_as_late_as_the_budget_allows(seed: int) -> None:
    """Oldest first: of those that an operator waits for, it cannot do without the last one's bytes."""
    problem = chain(seed, link_of(0.5 + seed % 4))
    budget = budget_of(problem, 0.2)
    found = planned(problem, budget, 9)
    assert found is not None
    schedule = found[1]
    assert list(schedule.offload) == sorted(schedule.offload, key=lambda i: problem.last_readers[i])
    for n, gone in enumerate(schedule.gone_before):
        if gone < len(problem.forward) and gone not in schedule.gone_before[n + 1 :]:
            later = (*schedule.gone_before[:n], gone + 1, *schedule.gone_before[n + 1 :])
            assert not check(problem, replace(schedule, gone_before=later), budget).ok


@pytest.mark.parametrize("seed", range(6))
def test_what_has_no_room_on_its_way_is_fetched_at_the_last_moment(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = chain(seed, link_of(0.3))
    budget = budget_of(problem, 0.02)
    starts = list(range(1, problem.stage_count))
    found = planned(problem, budget, problem.stage_count)
    assert found is not None
    verdict = check(problem, found[1], budget)
    assert verdict.time_us <= found[0] + 0.3 * max(f.output_bytes for f in problem.forward) / MIB + 1e-6
    at_once = [f for t, stage in enumerate(found[1].stages) for f in stage.fetches if f.issued_at == t]
    assert at_once
    restriction = banded.build(
        problem, budget, starts, everything(problem, groups_of(starts, problem.stage_count)), offload=True
    )
    columns, values = restriction.start(found[1])
    point = dict(zip(columns.tolist(), values.tolist(), strict=True))
    assert sum(point[c] for c in restriction.columns.late[restriction.columns.late >= 0].tolist()) == len(at_once)
    monkeypatch.setattr(banded_columns, "LATE_CELLS", 0)
    before = planned(problem, budget, problem.stage_count)
    assert before is None or found[0] < before[0] - 1e-6


def test_an_endless_link_leaves_nothing_to_recompute() -> None:
    problem = chain(1, None)
    budget = budget_of(problem, 0.45)
    stays = planned(problem, budget, 9)
    assert stays is not None
    assert check(problem, stays[1], budget).recomputed > 0
    linked = replace(problem, host_link=link_of(1e-6))
    travels = planned(linked, budget, 9)
    assert travels is not None
    verdict = check(linked, travels[1], budget)
    assert verdict.recomputed == 0
    assert verdict.offloaded_bytes > 0
    assert verdict.objective == pytest.approx(unconstrained_cost(problem), rel=1e-3)


def test_energy_counts_no_time_so_nothing_travels() -> None:
    energies = chain(2, link_of(1.0))
    energies = replace(
        energies,
        objective="energy",
        forward=tuple(replace(f, **_with_energy(f)) for f in energies.forward),
        backward=tuple(
            replace(b, implementations=tuple(replace(c, energy_uj=3.0) for c in b.implementations))
            for b in energies.backward
        ),
    )
    found = planned(energies, budget_of(energies, 0.4), 9)
    assert found is not None
    assert found[1].offload == ()


def _with_energy(f: ForwardOperator) -> dict[str, tuple[Implementation, ...]]:
    return {
        "implementations": tuple(replace(c, energy_uj=2.0) for c in f.implementations),
        "recompute_implementations": tuple(replace(c, energy_uj=1.0) for c in f.recompute_implementations),
    }
