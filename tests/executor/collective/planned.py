"""Problems with plans by hand for tests of the executor: random trees, rings, and gathers."""

from __future__ import annotations

from loadmaster.models.collective.collectives import chunks_of
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Algorithm, CollectivePlan, Form
from loadmaster.models.collective.problem import Collective, CollectiveProblem
from loadmaster.models.topologies.topology import Topology
from tests.models.collective.schedules import random_schedule
from tests.models.collective.tiny import problem, ring, switched

Planned = tuple[CollectiveProblem, CollectivePlan]


def planned(
    topology: Topology,
    collective: Collective,
    size_bytes: int,
    *,
    chunk_count: int = 1,
    form: Form = "direct",
    seed: int = 0,
    from_bytes: int = 0,
    **more: object,
) -> Planned:
    """A problem and a plan of one algorithm, along random trees."""
    asked = problem(topology, collective, size_bytes, chunk_counts=(chunk_count,), **more)
    instance = Instance(topology, chunks_of(asked, size_bytes, chunk_count, form))
    sends = random_schedule(instance, seed)
    return asked, plan(asked, Algorithm(size_bytes, chunk_count, form, sends, 1, 1, "test", 1, from_bytes, "by hand"))


def plan(asked: CollectiveProblem, *algorithms: Algorithm) -> CollectivePlan:
    return CollectivePlan(
        name="by hand",
        problem_sha256=asked.sha256,
        status="feasible",
        objective=1.0,
        bound=1.0,
        gap=0.0,
        unit="us",
        method="by hand",
        stopped_by="method",
        seconds={},
        solver={},
        check={"ok": True},
        algorithms=algorithms,
    )


def topology_of(ranks: int) -> Topology:
    """Eight ranks: two nodes of four, each rank with a way to its like; fewer: a ring, which makes them pass on."""
    return switched(2, ranks // 2) if ranks == 8 else ring(ranks)
