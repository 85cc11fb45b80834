"""The routing relaxation as a proof: below every schedule, as strong with aliased columns as without."""

from __future__ import annotations

import math

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.collective import routing_bound
from loadmaster.models.collective.bounds import lower_bound
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.collective.problem import Collective, Sketch
from loadmaster.models.topologies.presets import torus
from loadmaster.models.topologies.topology import Link, Topology
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import SolverStatus
from tests.models.collective.optimal_schedules import Search
from tests.models.collective.tiny import problem, ring, switched


def instance(topology: Topology, collective: Collective, size_bytes: int, chunks: int = 1, **more: object) -> Instance:
    return instance_of(problem(topology, collective, size_bytes, **more), size_bytes, chunks)


def proved(found: Instance, within_ns: int | None = None, known_ns: int = 0) -> int:
    formulation = routing_bound.formulate(found, known_ns, within_ns)
    solution = solve(formulation.program, solver="highs")
    assert solution.status in (SolverStatus.OPTIMAL, SolverStatus.INFEASIBLE)
    return formulation.proved_ns(solution.bound if solution.status is SolverStatus.OPTIMAL else None)


@settings(max_examples=8, deadline=None)
@given(st.sampled_from([ring(3), ring(4, latency_ns=40), switched(2, 1), switched(1, 3), switched(2, 2)]), st.data())
def test_never_above_the_best_schedule(topology: Topology, data: st.DataObject) -> None:
    one = st.integers(0, topology.rank_count - 1)
    some = st.lists(one, min_size=1, unique=True).map(lambda found: tuple(sorted(found)))
    sizes = st.sampled_from([10, 800])
    found = Instance(topology, tuple(data.draw(st.lists(st.builds(Chunk, sizes, some, some), min_size=1, max_size=3))))
    best = Search(found, limit=3000).best_ns
    assert best is not None
    known_ns = lower_bound(found).ns
    assert known_ns <= proved(found, None, known_ns) <= best
    assert proved(found, best, known_ns) <= best


@pytest.mark.parametrize(
    ("topology", "collective", "turn"),
    [(ring(6), "alltoall", (1, 6)), (switched(2, 2), "alltoall", (2, 4)), (ring(5), "allgather", (1, 5))],
)
def test_aliasing_changes_no_linear_optimum(topology: Topology, collective: Collective, turn: tuple[int, int]) -> None:
    """The average of all images of a solution is a symmetric solution of the same time."""
    size_bytes = 40 * topology.rank_count
    found = instance(topology, collective, size_bytes, sketch=Sketch(symmetry=(turn,)))
    assert found.generators
    formulation = routing_bound.formulate(found, 0)
    plain = routing_bound.formulate(found.without_symmetry(), 0)
    assert formulation.program.column_count < plain.program.column_count
    values = [solve(f.program, solver="highs").objective for f in (formulation, plain)]
    assert values[0] == pytest.approx(values[1])


def test_alltoall_on_a_line_is_bound_by_its_middle() -> None:
    """Four ranks in a line: 2 x 2 pairs cross the middle each way. No port, node or single rank says so."""
    ends = [(a, b) for a in range(3) for b in (a + 1,)] + [(b, a) for a in range(3) for b in (a + 1,)]
    links = tuple(Link(a, b, 0, 0, 1.0, (k,)) for k, (a, b) in enumerate(ends))
    line = Topology("line", (0,) * 4, links, tuple(f"wire {k}" for k in range(len(links))))
    found = instance(line, "alltoall", 4000)
    assert lower_bound(found).ns < 5000
    # A chunk is sent to the middle first, and from it last, 1000 each, by ranks 0 and 3 only.
    assert proved(found, None, lower_bound(found).ns) == 4000


def test_alltoall_on_a_torus() -> None:
    """Every rank sends a MiB to all others; at the best, distances add up and all wires carry the same."""
    topology = torus((3, 3))
    found = instance(topology, "alltoall", 9 * 2**20)
    graph = nx.DiGraph((k.source, k.target) for k in topology.links)
    hops = sum(sum(of.values()) for _, of in nx.all_pairs_shortest_path_length(graph))
    assert proved(found) == math.ceil(hops * 2**20 / len(topology.links) / topology.links[0].gbps)


def test_nothing_within_means_more_than_that() -> None:
    found = instance(ring(4), "alltoall", 400)
    assert proved(found, within_ns=150) == 150


def test_sums_are_refused() -> None:
    with pytest.raises(InputError, match="not routed"):
        routing_bound.formulate(instance(ring(3), "allreduce", 30), 0)
