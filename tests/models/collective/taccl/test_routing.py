"""The routing program: the twin's optimum, routes that are trees, and bounds that stay below schedules."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.hops import hops_of
from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.collective.problem import Collective, Sketch, SwitchPolicy
from loadmaster.models.collective.taccl import routing
from loadmaster.models.collective.taccl.routing import way_links
from loadmaster.models.topologies.topology import Topology
from loadmaster.solvers.process import solve
from loadmaster.solvers.program import FloatArray, Program
from loadmaster.solvers.solution import Solution, SolveOptions, SolverStatus
from tests.models.cbc import optimum
from tests.models.collective.routes import small_instances
from tests.models.collective.taccl.routing_twin import routing_twin
from tests.models.collective.tiny import problem, ring, switched

# PuLP announces another way to make variables; the one used here works in all of 3.x.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def instance(topology: Topology, collective: Collective, size_bytes: int, chunks: int = 1, **more: object) -> Instance:
    return instance_of(problem(topology, collective, size_bytes, **more), size_bytes, chunks)


def solved(formulation: routing.Routing) -> Solution:
    solution = solve(formulation.program, SolveOptions(gap=0.0), solver="highs")
    assert solution.status is SolverStatus.OPTIMAL
    return solution


CASES: list[tuple[str, Instance]] = [
    ("ring", instance(ring(4), "allgather", 400)),
    ("ring, turned", instance(ring(4), "alltoall", 400, sketch=Sketch(symmetry=((1, 4),)))),
    ("nodes", instance(switched(2, 2), "allgather", 400)),
    ("nodes, turned", instance(switched(2, 2), "allgather", 400, sketch=Sketch(symmetry=((2, 4),)))),
    ("nodes, to one", instance(switched(2, 2), "gather", 400, root=1)),
    ("ring with latency", instance(ring(4, latency_ns=70), "allgather", 400)),
    ("nodes with latency", instance(switched(2, 2, latency_ns=70), "allgather", 400)),
    ("nodes with latency, to one", instance(switched(2, 2, latency_ns=70), "scatter", 400, root=1)),
    ("relays", instance(switched(2, 2), "allgather", 400, sketch=Sketch(internode={0: (0,)}))),
    (
        "few",
        instance(
            switched(1, 4), "broadcast", 80, 2, root=0, sketch=Sketch(switches=(SwitchPolicy((0, 1, 2, 3), "uc-min"),))
        ),
    ),
    (
        "many, of which few can be used",
        instance(
            switched(1, 4), "broadcast", 80, 1, root=0, sketch=Sketch(switches=(SwitchPolicy((0, 1, 2, 3), "uc-max"),))
        ),
    ),
    ("many", instance(switched(2, 2), "alltoall", 400, sketch=Sketch(switches=(SwitchPolicy((0, 1), "uc-max"),)))),
]


@pytest.mark.parametrize("found", [case for _, case in CASES], ids=[name for name, _ in CASES])
def test_optimum_is_the_twins(found: Instance) -> None:
    formulation = routing.formulate(found)
    solution = solved(formulation)
    assert solution.objective == pytest.approx(optimum(routing_twin(found, formulation.variables.connection_weight_ns)))
    assert solution.values is not None
    routes = formulation.routes(solution.values)
    assert hops_of(found, routes)
    point = formulation.point(routes)
    assert formulation.program.violation(point) < 1e-6
    assert formulation.program.objective(point) == pytest.approx(solution.objective)


@settings(max_examples=10, deadline=None)
@given(st.integers(3, 5), st.data())
def test_random_chunks_on_a_ring(ranks: int, data: st.DataObject) -> None:
    one = st.integers(0, ranks - 1)
    some = st.lists(one, min_size=1, unique=True).map(lambda found: tuple(sorted(found)))
    chunks = data.draw(st.lists(st.builds(Chunk, st.sampled_from([0, 10, 70]), some, some), min_size=1, max_size=3))
    found = Instance(ring(ranks, latency_ns=20, message_ns=5), tuple(chunks))
    formulation = routing.formulate(found)
    solution = solved(formulation)
    assert solution.values is not None
    hops_of(found, formulation.routes(solution.values))
    if all(chunk.size_bytes for chunk in chunks):
        assert solution.objective == pytest.approx(optimum(routing_twin(found, 0.0)))


def test_symmetric_routes_are_their_own_image() -> None:
    found = instance(switched(2, 2), "allgather", 400, sketch=Sketch(symmetry=((2, 4),)))
    formulation = routing.formulate(found)
    plain = routing.formulate(found.without_symmetry())
    assert formulation.program.column_count < plain.program.column_count
    values = solved(formulation).values
    assert values is not None
    routes = formulation.routes(values)
    (turn,) = found.generators
    for c, links in enumerate(routes):
        ends = {(found.topology.links[k].source, found.topology.links[k].target) for k in links}
        image = {(found.topology.links[k].source, found.topology.links[k].target) for k in routes[turn.chunks[c]]}
        assert {(turn.ranks[a], turn.ranks[b]) for a, b in ends} == image


def test_ways_are_found_after_the_relay_map() -> None:
    """Rank 1's chunks leave by rank 0: the way by its own NIC is none, though it is shorter."""
    sketch = Sketch(internode={0: (0,), 1: (1,)}, relays={0: 0, 1: 0})
    found = instance(switched(2, 2), "alltoall", 400, sketch=sketch)
    ways = way_links(found)
    chunk = next(c for c, of in enumerate(found.chunks) if of.sources == (1,) and of.targets == (3,))
    ends = [(found.topology.links[k].source, found.topology.links[k].target) for k in ways[chunk]]
    assert ends == [(0, 2), (1, 0), (2, 3)] or sorted(ends) == [(0, 2), (1, 0), (2, 3)]


def test_what_cannot_be_routed() -> None:
    with pytest.raises(InputError, match="cannot be reached"):
        routing.formulate(instance(switched(2, 1, nic=False), "allgather", 20))
    with pytest.raises(InputError, match="not routed"):
        routing.formulate(instance(ring(3), "allreduce", 30))


def test_one_chunk_takes_its_distance() -> None:
    found = Instance(ring(5, message_ns=3), (Chunk(10, (0,), (2,)),))
    assert math.isclose(solved(routing.formulate(found)).objective or 0.0, 26.0)


@settings(max_examples=15, deadline=None)
@given(small_instances(sums=False))
def test_random_instances_with_latency_equal_the_twin(found: Instance) -> None:
    """Shared ports, links with and without latency, messages of any cost."""
    assert solved(routing.formulate(found)).objective == pytest.approx(optimum(routing_twin(found, 0.0)))


@pytest.mark.parametrize(("chunks", "time_ns"), [(4, 1100), (20, 2000)])
def test_a_link_is_busy_for_its_occupancy_and_not_for_its_latency(chunks: int, time_ns: int) -> None:
    found = Instance(ring(3, latency_ns=1000, message_ns=0), (Chunk(100, (0,), (1,)),) * chunks)
    formulation = routing.formulate(found)
    solution = solved(formulation)
    assert solution.objective == pytest.approx(time_ns)
    assert solution.values is not None
    assert formulation.program.objective(formulation.point(formulation.routes(solution.values))) == time_ns


def broken(program: Program, point: FloatArray) -> set[str]:
    """The constraints that a point does not keep."""
    activity = program.activity(point)
    off = (activity < program.row_lower - 1e-6) | (activity > program.row_upper + 1e-6)
    return {block.name for block in program.row_blocks if off[block.indices].any()}


def test_a_chunk_enters_every_node_that_wants_it() -> None:
    formulation = routing.formulate(Instance(switched(2, 2), (Chunk(80, (0,), (2,)),)))
    point = formulation.point([[formulation.variables.instance.topology.link_between[0, 2]]])
    assert broken(formulation.program, point) == set()
    point[formulation.program.block("is_sent").indices] = 0.0
    assert broken(formulation.program, point) == {"enter_nodes", "arrive_once"}


def test_what_is_sent_has_arrived() -> None:
    formulation = routing.formulate(Instance(ring(5), (Chunk(10, (0,), (2,)),)))
    between = formulation.variables.instance.topology.link_between
    point = formulation.point([[between[0, 1], between[1, 2]]])
    assert broken(formulation.program, point) == set()
    point[formulation.program.block("is_sent").indices[0]] = 0.0  # 0 -> 1
    assert broken(formulation.program, point) == {"send_what_arrived"}


def test_what_arrives_where_nobody_wants_it_is_passed_on() -> None:
    formulation = routing.formulate(Instance(ring(4), (Chunk(10, (0,), (1, 2)),)))
    between = formulation.variables.instance.topology.link_between
    tree = [between[0, 1], between[1, 2]]
    assert broken(formulation.program, formulation.point([tree])) == set()
    assert broken(formulation.program, formulation.point([[*tree, between[0, 3]]])) == {"pass_on_what_arrived"}


def test_a_target_gets_a_chunk_once() -> None:
    formulation = routing.formulate(Instance(ring(4), (Chunk(10, (0,), (2,)),)))
    between = formulation.variables.instance.topology.link_between
    one, other = ([between[0, via], between[via, 2]] for via in (1, 3))
    both = np.maximum(formulation.point([one]), formulation.point([other]))
    assert broken(formulation.program, both) == {"arrive_once"}
