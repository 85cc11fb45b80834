"""The exact moves of the collective planner: never slower, checked, reported, cancelled, within their time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError, SolverError
from loadmaster.models.collective.checker import check
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.instance import Chunk, Instance, Symmetry
from loadmaster.models.collective.plan import Send
from loadmaster.models.collective.problem import Sketch
from loadmaster.models.collective.taccl.ordering import alone, order, sends
from loadmaster.models.topologies.presets import preset
from loadmaster.planner.collective import solves
from loadmaster.planner.collective.classics import classics
from loadmaster.planner.collective.classics import schedule as classic_schedule
from loadmaster.planner.collective.pipeline import polish, schedule
from loadmaster.planner.collective.solves import LEAST_SECONDS, improve, in_steps
from loadmaster.planner.effort import Effort
from loadmaster.planner.options import PlanOptions, PlanProgress
from loadmaster.solvers.program import Program
from loadmaster.solvers.solution import Solution, SolveOptions
from tests.models.collective.routes import random_routes, small_instances
from tests.models.collective.schedules import random_schedule, ring_allgather
from tests.models.collective.tiny import problem, ring, switched

few = settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def effort(**options: object) -> Effort:
    return Effort(PlanOptions(gap=0.0, **options))  # type: ignore[arg-type]


def allgather(count: int, *, message_ns: int = 100, parts: int = 1) -> Instance:
    chunks = tuple(Chunk(100, (r,), tuple(range(count))) for r in range(count) for _ in range(parts))
    return Instance(ring(count, message_ns=message_ns), chunks)


def time_of(instance: Instance, found: tuple[Send, ...]) -> int:
    verdict = check(instance, found)
    assert verdict.ok, verdict.violations
    return verdict.time_ns


@pytest.mark.slow
@few
@given(small_instances(), st.integers(0, 99))
def test_no_move_makes_a_schedule_slower_or_wrong(instance: Instance, seed: int) -> None:
    ordered = order(instance, random_routes(instance, seed))
    before = sends(ordered, alone(ordered))
    before_ns = time_of(instance, before)
    assert time_of(instance, polish(instance, before, 0, 5.0, effort())) <= before_ns
    assert time_of(instance, in_steps(instance, before, 0, 5.0, effort())) <= before_ns
    routes = random_routes(instance, seed)
    scheduled = time_of(instance, schedule(instance, routes, 0, 5.0, effort()))
    assert scheduled <= before_ns
    assert time_of(instance, improve(instance, before, 0, 5.0, effort())) <= before_ns


def test_improve_finds_the_way_round_both_sides_of_a_ring() -> None:
    instance = allgather(5)
    before = ring_allgather(instance)
    assert time_of(instance, before) == 800
    # Two hops of 200 ns each way reach everyone.
    assert time_of(instance, improve(instance, before, 0, 10.0, effort())) == 400


def test_improve_keeps_symmetries_and_does_without_where_that_is_better() -> None:
    # Symmetric, both chunks wait for nothing but enter rank 2 at once: no such schedule. Without, they take turns.
    chunks = (Chunk(100, (0,), (2,)), Chunk(100, (1,), (2,)))
    instance = Instance(switched(1, 3), chunks, (Symmetry((1, 0, 2), (1, 0)),))
    between = instance.topology.link_between
    ordered = order(instance, [[between[0, 1], between[1, 2]], [between[1, 2]]])
    before = tuple(replace(send, start_ns=send.start_ns + 500) for send in sends(ordered, alone(ordered)))
    assert time_of(instance, improve(instance, before, 0, 10.0, effort())) == 2 * 113


def test_a_schedule_at_the_bound_is_left_alone() -> None:
    instance, spent = allgather(5), effort()
    before = ring_allgather(instance)
    assert improve(instance, before, 800, 10.0, spent) == before
    assert polish(instance, before, 800, 10.0, spent) == before
    assert spent.solves == 0


def test_polish_merges_the_messages_of_a_schedule() -> None:
    # Three chunks over one dear wire: 3 * 1010 apart, 1030 together.
    instance = Instance(ring(3, message_ns=1000), (Chunk(10, (0,), (1,)),) * 3)
    between = instance.topology.link_between
    apart = tuple(Send(1010 * c, 0, 1, (c,)) for c in range(3))
    merged = polish(instance, apart, 0, 10.0, effort())
    assert merged == (Send(0, 0, 1, (0, 1, 2)),)
    assert polish(instance, merged, 0, 10.0, effort()) == merged
    assert schedule(instance, [[between[0, 1]]] * 3, 0, 10.0, effort()) == merged


def test_sums_for_several_targets_are_improved_phase_by_phase() -> None:
    count = 5
    everyone = tuple(range(count))
    instance = Instance(ring(count), tuple(Chunk(100, everyone, everyone, reduces=True) for _ in everyone))
    # Parts go round the ring one way until they are summed up, then the sums: eight steps.
    right = [
        Send(200 * step, (c + step) % count, (c + step + 1) % count, (c,), combines=step < count - 1)
        for c in everyone
        for step in range(2 * (count - 1))
    ]
    before = tuple(sorted(right, key=lambda send: (send.start_ns, send.source, send.target)))
    assert time_of(instance, before) == 1600
    # Both ways round at once: two steps until a sum is whole, two until it is everywhere.
    assert time_of(instance, improve(instance, before, 0, 20.0, effort())) == 800
    assert time_of(instance, polish(instance, before, 0, 20.0, effort())) <= 1600
    with pytest.raises(InputError, match="more than one target"):
        schedule(instance, [[0]] * count, 0, 5.0, effort())


@pytest.mark.slow
@few
@given(st.integers(0, 99))
def test_random_sums_stay_right_phase_by_phase(seed: int) -> None:
    everyone = (0, 1, 2, 3)
    chunks = (
        Chunk(100, everyone, everyone, reduces=True),
        Chunk(200, (0,), (2, 3)),
        Chunk(50, (1, 2), (0, 3), reduces=True),
    )
    instance = Instance(ring(4, message_ns=200), chunks)
    before = random_schedule(instance, seed)
    before_ns = time_of(instance, before)
    assert time_of(instance, polish(instance, before, 0, 4.0, effort())) <= before_ns
    assert time_of(instance, improve(instance, before, 0, 4.0, effort())) <= before_ns
    assert time_of(instance, in_steps(instance, before, 0, 4.0, effort())) <= before_ns


def test_few_steps_for_sums_and_for_what_follows_on_a_dgx1() -> None:
    """Two steps until sums are whole and two on, each of 700 ns and 1.5 pieces over single NVLinks together."""
    size_bytes = 1 << 19
    whole = problem(preset("dgx1"), "allreduce", size_bytes)
    instance = instance_of(whole, size_bytes, 2, sketch=Sketch(symmetry=((4, 8), (2, 4))))
    before = queued_ring(instance)
    found = time_of(instance, in_steps(instance, before, 0, 20.0, Effort(PlanOptions(gap=0.2))))
    expected_ns = 2 * (2 * 700 + 1.5 * size_bytes / 8 * 46e3 / 2**20)
    assert found <= expected_ns + 4 < time_of(instance, before)


def queued_ring(instance: Instance) -> tuple[Send, ...]:
    """A classic schedule to start from."""
    found = classic_schedule(instance, next(c for c in classics(instance.topology) if c.name == "ring"))
    assert found is not None
    return found


@pytest.mark.slow
def test_moves_report_what_they_do() -> None:
    said: list[PlanProgress] = []
    spent = Effort(PlanOptions(gap=0.0), on_progress=said.append)
    instance = crowded()
    improve(instance, random_schedule(instance, 0), 0, 2.0, spent)
    assert {report.phase.partition(",")[0] for report in said} == {"exact scheduling"}
    assert all(report.objective is not None for report in said)
    assert spent.solves == 1
    assert spent.solver[0] == "cpsat"
    assert spent.seconds["solve"] > 0.0


def crowded() -> Instance:
    """An AllToAll around a ring that no solver proves in a few seconds without a bound."""
    chunks = tuple(Chunk(100 + 7 * a + b, (a,), (b,)) for a in range(8) for b in range(8) if a != b)
    return Instance(ring(8), chunks)


@pytest.mark.slow
def test_a_cancelled_move_ends_at_once_with_what_it_has() -> None:
    instance = crowded()
    before = random_schedule(instance, 0)
    said: list[PlanProgress] = []
    # Nothing but the cancel ends it: no solver proves this in a day.
    options = PlanOptions(gap=0.0, time_limit_s=86_400.0)
    asked = Effort(options, on_progress=said.append, asked_to_stop=lambda: any("nodes" in s.message for s in said))
    found = improve(instance, before, 0, options.time_limit_s, asked)
    assert asked.was_cancelled
    assert time_of(instance, found) <= time_of(instance, before)


def test_a_solver_has_what_is_left_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """That solvers keep to it is shown where they are: in tests/solvers."""
    asked: list[SolveOptions] = []

    def fail(_program: Program, options: SolveOptions, **_: object) -> Solution:
        asked.append(options)
        raise SolverError("It had been asked.")

    monkeypatch.setattr(solves, "solve", fail)
    instance = crowded()
    with pytest.raises(SolverError):
        improve(instance, random_schedule(instance, 0), 0, 1.5, effort())
    assert len(asked) == 1 and LEAST_SECONDS <= asked[0].time_limit_s <= 1.5
    improve(instance, random_schedule(instance, 0), 0, LEAST_SECONDS / 2, effort())
    assert len(asked) == 1


def test_the_solver_asked_for_is_used_where_it_can_be() -> None:
    instance = Instance(ring(3, message_ns=1000), (Chunk(10, (0,), (1,)),) * 3)
    apart = tuple(Send(1010 * c, 0, 1, (c,)) for c in range(3))
    for asked, used in (("cpsat", "highs"), ("pulp:PULP_CBC_CMD", "pulp:PULP_CBC_CMD")):
        spent = effort(solver=asked)
        assert time_of(instance, polish(instance, apart, 0, 10.0, spent)) == 1030
        assert spent.solver[0] == used


def test_what_is_too_large_comes_back_at_once() -> None:
    chunks = tuple(Chunk(100, (a,), (b,)) for a in range(16) for b in range(16) if a != b)
    instance = Instance(switched(1, 16), chunks)
    before = tuple(Send(113 * i, c.sources[0], c.targets[0], (i,)) for i, c in enumerate(chunks))
    assert check(instance, before).ok
    spent = effort()
    assert improve(instance, before, 0, 60.0, spent) == before
    assert spent.solves == 0
    assert spent.elapsed_s < 5.0
