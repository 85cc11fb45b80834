"""List scheduling: schedules are right, reach known optima, keep symmetries, and are the same for the same seed."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.collective.bounds import Bound, lower_bound
from loadmaster.models.collective.checker import check
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.collective.plan import Send
from loadmaster.models.collective.problem import Collective, Sketch, SwitchPolicy
from loadmaster.models.topologies.presets import preset
from loadmaster.models.topologies.topology import Link, Topology
from loadmaster.planner.collective.criticality import UNLIMITED, Parameters
from loadmaster.planner.collective.dispatch import dispatch
from loadmaster.planner.collective.greedy import searcher
from loadmaster.planner.collective.prune import prune, retime
from loadmaster.planner.collective.scheduling_graph import SchedulingGraph
from tests.models.collective.schedules import expect_symmetric
from tests.models.collective.tiny import problem, ring, switched

COPYING: list[Collective] = ["allgather", "alltoall", "broadcast", "scatter", "gather"]
ROOTED = ("broadcast", "scatter", "gather", "reduce")


def list_schedule(instance: Instance, parameters: Parameters | None = None, seed: int = 0) -> tuple[Send, ...] | None:
    """One run on an instance without sums, pruned and retimed.

    Returns:
        None where messages of the same decision were in each other's way, or a target cannot be reached.
    """
    sends = dispatch(SchedulingGraph(instance), parameters or Parameters(), seed)
    return None if sends is None else retime(instance, prune(instance, sends))


def posed(topology: Topology, collective: Collective, size_bytes: int, chunks: int = 1, **more: object) -> Instance:
    root = 0 if collective in ROOTED else None
    return instance_of(problem(topology, collective, size_bytes, root=root, **more), size_bytes, chunks)


def time_of(instance: Instance, sends: tuple[Send, ...] | None) -> int:
    """The checked time of a schedule."""
    assert sends is not None
    verdict = check(instance, sends)
    assert verdict.ok, verdict.violations
    return verdict.time_ns


def found(instance: Instance, runs: int = 12, seed: int = 0) -> int:
    return time_of(instance, searcher(instance, seed=seed).search(bound_ns=0, seconds=60, runs=runs))


def one_after_the_other(instance: Instance) -> int:
    """Every chunk on its own to every target on its own, nothing at the same time."""
    total = 0
    for c, chunk in enumerate(instance.chunks):
        graph = nx.DiGraph()
        graph.add_nodes_from(range(instance.topology.rank_count))
        for k in instance.usable_links[c]:
            link = instance.topology.links[k]
            graph.add_edge(link.source, link.target, ns=link.transfer_ns(chunk.size_bytes))
        ways = nx.multi_source_dijkstra_path_length(graph, set(chunk.sources), weight="ns")
        total += sum(ways[target] for target in chunk.targets)
    return total


@st.composite
def random_instances(draw: st.DrawFn) -> Instance:
    """A ring of up to 6 ranks with chords, some of which share resources, and chunks from anywhere to anywhere."""
    count = draw(st.integers(2, 6))
    ends = {(r, (r + 1) % count) for r in range(count)}
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    ends |= set(draw(st.lists(st.sampled_from(pairs), max_size=8)))
    shared = draw(st.integers(1, 4))
    nodes = sorted(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
    links = []
    for index, (a, b) in enumerate(sorted(ends)):
        held = {index, len(ends) + draw(st.integers(0, shared))}
        costs = draw(st.tuples(st.integers(0, 50), st.integers(0, 50), st.sampled_from([0.5, 1.0, 3.0])))
        links.append(Link(a, b, *costs, tuple(sorted(held))))
    names = tuple(str(k) for k in range(len(ends) + shared + 1))
    topology = Topology("random", tuple(nodes), tuple(links), names)
    ranks = st.integers(0, count - 1)
    chunks = draw(
        st.lists(
            st.builds(
                lambda size, sources, targets: Chunk(size, tuple(sorted(sources)), tuple(sorted(targets))),
                st.sampled_from([0, 1, 40, 100]),
                st.sets(ranks, min_size=1, max_size=2),
                st.sets(ranks, min_size=1),
            ),
            min_size=1,
            max_size=5,
        )
    )
    return Instance(topology, tuple(chunks))


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(random_instances(), st.integers(0, 3))
def test_random_instances_get_right_schedules_no_slower_than_one_after_the_other(instance: Instance, seed: int) -> None:
    assert found(instance, runs=8, seed=seed) <= one_after_the_other(instance)


@settings(max_examples=60, deadline=None)
@given(
    random_instances(),
    st.builds(
        Parameters,
        batch=st.sampled_from([1, 2, UNLIMITED]),
        hold=st.integers(1, 3),
        local_batch=st.sampled_from([1, 2, UNLIMITED]),
        local_hold=st.integers(1, 3),
        taper=st.sampled_from([0.5, 1.0]),
        linger=st.sampled_from([0.0, 1.0]),
        noise=st.sampled_from([0.0, 1.0]),
        mode=st.sampled_from(["tail", "bulk", "rare"]),
        enter_once=st.booleans(),
        patient=st.booleans(),
    ),
)
def test_every_setting_gives_right_schedules(instance: Instance, parameters: Parameters) -> None:
    time_of(instance, list_schedule(instance, parameters, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize("collective", COPYING)
@pytest.mark.parametrize("chunks", [1, 3])
def test_every_collective_on_nodes_with_rails(collective: Collective, chunks: int) -> None:
    instance = posed(switched(3, 4, latency_ns=20), collective, 12 * 3 * 100, chunks)
    assert found(instance) <= one_after_the_other(instance)


@pytest.mark.parametrize("count", [4, 5, 8])
def test_allgather_on_a_ring_takes_half_way_round(count: int) -> None:
    instance = posed(ring(count, message_ns=0), "allgather", count * 100)
    assert found(instance) == (count // 2) * 100


@pytest.mark.parametrize("count", [3, 4, 6])
@pytest.mark.parametrize("collective", ["allgather", "alltoall"])
def test_a_switch_is_busy_all_the_time(collective: Collective, count: int) -> None:
    sketch = Sketch(symmetry=((1, count),))
    instance = posed(switched(1, count, message_ns=0), collective, count * 800, sketch=sketch)
    assert found(instance) == (count - 1) * 100


@pytest.mark.parametrize("count", [2, 4, 8])
def test_one_chunk_is_broadcast_by_doubling(count: int) -> None:
    instance = posed(switched(1, count), "broadcast", 800)
    assert found(instance) == (count.bit_length() - 1) * 200


@pytest.mark.slow
def test_broadcast_in_many_chunks_is_near_the_postal_bound() -> None:
    instance = posed(switched(1, 8, message_ns=0), "broadcast", 32 * 800, 32)
    # Bar-Noy and Kipnis: the root cannot be faster than k - 1 rounds before the last chunk's log2(8) + 1.
    assert found(instance, runs=60) <= 1.08 * (31 + 3) * 100


@pytest.mark.parametrize("collective", ["allgather", "alltoall"])
def test_dear_messages_are_few(collective: Collective) -> None:
    # 8 ranks in 3 steps; bytes cost next to nothing.
    sketch = Sketch(symmetry=((1, 8),))
    instance = posed(switched(1, 8, message_ns=10_000), collective, 64, sketch=sketch)
    assert found(instance, runs=40) <= 3 * 10_000 + 20


def test_a_shared_nic_is_busy_all_the_time() -> None:
    instance = posed(preset("ndv2", 2), "allgather", 16 << 20, sketch=Sketch(internode={0: (1,)}, symmetry=((8, 16),)))
    nic = next(k for k in instance.topology.links if instance.topology.crosses(k))
    assert found(instance, runs=60) <= 1.2 * nic.occupancy_ns(8 << 20)


def test_gather_over_rails_uses_all_nics() -> None:
    instance = posed(preset("hgx-h200", 2), "gather", 16 << 24, 2)
    topology = instance.topology
    nic = topology.links[topology.link_between[8, 0]]
    assert found(instance) < 8 * nic.occupancy_ns(16 << 20) / 4


def test_symmetries_are_kept() -> None:
    sketch = Sketch(internode={i: (i,) for i in range(4)}, symmetry=((1, 4), (4, 12)))
    for collective in ("allgather", "alltoall"):
        instance = posed(switched(3, 4), collective, 12 * 12 * 100, sketch=sketch)
        sends = list_schedule(instance, Parameters(batch=2))
        time_of(instance, sends)
        assert sends is not None
        expect_symmetric(instance, sends)


def test_symmetries_in_each_others_way_are_given_up() -> None:
    # All NICs of a node are one: rotating within nodes makes every message between nodes meet its images.
    base = switched(2, 2)
    shared = tuple(
        Link(k.source, k.target, k.latency_ns, k.message_ns, k.gbps, (8 + k.source // 2, 10 + k.target // 2))
        if base.crosses(k)
        else k
        for k in base.links
    )
    topology = Topology("shared", base.node_of, shared, base.resources, base.switches)
    instance = posed(topology, "allgather", 400, sketch=Sketch(symmetry=((1, 2),)))
    assert len(instance.generators) == 1
    assert list_schedule(instance) is None
    found(instance)


def test_the_same_seed_gives_the_same_schedule() -> None:
    instance = posed(switched(2, 4), "alltoall", 64 * 100)
    once = searcher(instance, seed=5).search(bound_ns=0, seconds=60, runs=30)
    assert once == searcher(instance, seed=5).search(bound_ns=0, seconds=60, runs=30)


def test_within_a_gap_of_one_any_schedule_will_do() -> None:
    for collective in ("allgather", "allreduce"):
        instance = posed(ring(4, message_ns=0), collective, 400)
        sends = searcher(instance).search(bound_ns=200, gap=1.0, seconds=60)
        assert sends is not None and time_of(instance, sends) >= 200


def test_it_stops_at_the_bound_and_says_what_is_better() -> None:
    instance = posed(ring(4, message_ns=0), "allgather", 400)
    times: list[int] = []
    sends = searcher(instance, on_better=lambda _, ns: times.append(ns)).search(bound_ns=200, seconds=60)
    assert time_of(instance, sends) == times[-1] == 200
    assert times == sorted(set(times), reverse=True)


def test_it_can_be_cancelled() -> None:
    instance = posed(switched(2, 4), "alltoall", 64 * 100)
    sends = searcher(instance, cancelled=lambda: True).search(bound_ns=0, seconds=60)
    time_of(instance, sends)


def test_no_way_no_schedule() -> None:
    instance = posed(switched(2, 2, nic=False), "allgather", 400)
    assert searcher(instance).search(bound_ns=0, seconds=0.2) is None


def test_chunks_of_no_bytes_are_not_sent() -> None:
    instance = Instance(ring(3), (Chunk(0, (0,), (1, 2)), Chunk(10, (0,), (1,))))
    sends = searcher(instance).search(bound_ns=0, seconds=60, runs=3)
    assert sends is not None
    assert [send.chunks for send in sends] == [(1,)]


def test_only_senders_leave_their_node() -> None:
    sketch = Sketch(relays={i: 3 for i in range(4)})
    for collective in ("allgather", "alltoall"):
        instance = posed(switched(2, 4), collective, 64 * 100, sketch=sketch)
        sends = searcher(instance).search(bound_ns=0, seconds=60, runs=5)
        time_of(instance, sends)
        assert sends is not None
        assert {s.source % 4 for s in sends if s.source // 4 != s.target // 4} == {3}


def test_few_links_where_few_are_wanted() -> None:
    def used(strategy: str) -> int:
        policy = SwitchPolicy(tuple(range(6)), strategy)  # type: ignore[arg-type]
        instance = posed(switched(1, 6), "allgather", 6 * 800, sketch=Sketch(switches=(policy,)))
        sends = list_schedule(instance)
        time_of(instance, sends)
        assert sends is not None
        return len({(s.source, s.target) for s in sends})

    assert used("uc-min") < used("uc-max")


def test_a_searcher_goes_on_where_it_stopped() -> None:
    instance = posed(ring(5), "alltoall", 5 * 5 * 100)
    once, twice = searcher(instance, seed=3), searcher(instance, seed=3)
    once.search(bound_ns=0, seconds=60, runs=12)
    for _ in range(3):
        twice.search(bound_ns=0, seconds=60, runs=4)
    assert once.best == twice.best


def test_what_goes_to_another_node_late_stays_with_its_rank_of_a_nic() -> None:
    instance = posed(preset("dgx2", 2), "alltoall", 32 * 32 * 1024)
    topology = instance.topology
    graph = SchedulingGraph(instance, late=True)
    sends = dispatch(graph, Parameters(batch=UNLIMITED, local_batch=UNLIMITED, mode="bulk"), 0)
    time_of(instance, sends)
    crosses = {k.source: set(k.resources) for k in topology.links if topology.crosses(k)}
    outs = {rank: {r for r in held if "out" in topology.resources[r]} for rank, held in crosses.items()}
    assert sends is not None
    for send in sends:
        if topology.node_of[send.source] == topology.node_of[send.target] and outs[send.source] == outs[send.target]:
            for c in send.chunks:
                (goal,) = instance.chunks[c].targets
                assert topology.node_of[goal] == topology.node_of[send.source]


def test_the_example_of_dispatch_and_of_the_growth_bound() -> None:
    links = tuple(Link(rank, rank + 1, 0, 100, 1.0, (rank,)) for rank in range(2))
    line = Topology("line", (0,) * 3, links, ("first wire", "second wire"))
    instance = Instance(line, (Chunk(100, (0,), (1, 2)),) * 2)
    assert list_schedule(instance) == (
        Send(0, 0, 1, (0,)),
        Send(200, 0, 1, (1,)),
        Send(200, 1, 2, (0,)),
        Send(400, 1, 2, (1,)),
    )
    assert lower_bound(instance) == Bound(600, "growth of what ranks know")
