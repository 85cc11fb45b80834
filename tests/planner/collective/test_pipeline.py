"""TACCL's pipeline end to end: routes, orders and merged messages make schedules that pass the checker."""

from __future__ import annotations

import pytest

from loadmaster.models.collective.bounds import lower_bound
from loadmaster.models.collective.checker import check
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.collective.problem import Collective, Sketch
from loadmaster.models.topologies.topology import Topology
from loadmaster.planner.collective.pipeline import pipeline
from loadmaster.planner.effort import Effort
from loadmaster.planner.options import PlanOptions, PlanProgress
from tests.models.collective.tiny import problem, ring, switched

RING, SWITCHED = ring(4), switched(2, 2)


@pytest.mark.parametrize(
    ("collective", "topology", "most"),
    [
        # In a ring both ways are used at once: two hops, of 150 ns each.
        ("allgather", RING, 300),
        ("reduce_scatter", RING, 300),
        ("allreduce", RING, 600),
        ("broadcast", RING, 600),
        ("reduce", RING, 600),
        # A chunk to each neighbour, and one to the other side, on its way beside another: 3 hops on one wire at most.
        ("alltoall", RING, 450),
        ("allgather", SWITCHED, 600),
        ("alltoall", SWITCHED, 800),
        ("allreduce", SWITCHED, 1200),
    ],
)
def test_collectives_on_small_machines(collective: Collective, topology: Topology, most: int) -> None:
    rooted = {"root": 1} if collective in ("broadcast", "reduce") else {}
    instance = instance_of(problem(topology, collective, 200, **rooted), 200, 1)
    effort = Effort(PlanOptions(gap=0.0))
    sends = pipeline(instance, effort, 20.0)
    assert sends is not None
    verdict = check(instance, sends)
    assert verdict.ok, verdict.violations
    assert lower_bound(instance).ns <= verdict.time_ns <= most
    assert effort.solves >= 1
    assert effort.elapsed_s < 20.0


def test_symmetries_of_a_sketch_are_kept() -> None:
    sketch = Sketch(symmetry=((1, 4),))
    instance = instance_of(problem(ring(4), "allgather", 400, sketch=sketch), 400, 1)
    assert instance.generators
    sends = pipeline(instance, Effort(PlanOptions()), 10.0)
    assert sends is not None
    assert check(instance, sends).time_ns == 400
    turned = {(s.start_ns, (s.source + 1) % 4, (s.target + 1) % 4, (s.chunks[0] + 1) % 4) for s in sends}
    assert turned == {(s.start_ns, s.source, s.target, s.chunks[0]) for s in sends}


def test_messages_are_merged_where_they_are_dear() -> None:
    # Six chunks of 10 bytes from rank 0 to its neighbour: together 1000 + 60 ns.
    instance = Instance(ring(3, message_ns=1000), tuple(Chunk(10, (0,), (1,)) for _ in range(6)))
    sends = pipeline(instance, Effort(PlanOptions(gap=0.0)), 10.0)
    assert sends is not None
    assert [send.chunks for send in sends] == [(0, 1, 2, 3, 4, 5)]
    assert check(instance, sends).time_ns == 1060


@pytest.mark.slow
def test_every_step_is_reported_and_a_cancel_ends_it() -> None:
    chunks = tuple(Chunk(100 + 7 * a + b, (a,), (b,)) for a in range(8) for b in range(8) if a != b)
    instance = Instance(ring(8), chunks)
    said: list[PlanProgress] = []
    # Nothing but the cancel ends it: no solver proves this in a day.
    day_s = 86_400.0
    options = PlanOptions(gap=0.0, time_limit_s=day_s)
    effort = Effort(options, on_progress=said.append, asked_to_stop=lambda: any("nodes" in s.message for s in said))
    pipeline(instance, effort, day_s)
    assert effort.was_cancelled
    assert {report.phase for report in said} <= {"routing", "order by intervals", "contiguity"}


def test_the_same_input_gives_the_same_schedule() -> None:
    instance = instance_of(problem(SWITCHED, "allgather", 400), 400, 1)
    first, second = (pipeline(instance, Effort(PlanOptions(gap=0.0)), 20.0) for _ in range(2))
    assert first == second
