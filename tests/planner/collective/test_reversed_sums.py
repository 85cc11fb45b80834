"""Sums by time reversal: every part is added exactly once, in every collective that sums."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.collective.checker import check
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.instance import Chunk, Instance, Symmetry
from loadmaster.models.collective.plan import Send
from loadmaster.models.collective.problem import Collective, Sketch
from loadmaster.models.topologies.presets import preset
from loadmaster.models.topologies.topology import Link, Topology
from loadmaster.planner.collective.greedy import searcher
from loadmaster.planner.collective.reversal import choose_roots, gathering, relabelled, relabelling, reversed_summing
from tests.models.collective.schedules import expect_symmetric
from tests.models.collective.tiny import problem, ring, switched

pytestmark = pytest.mark.slow  # many random schedules

SUMMING: list[Collective] = ["reduce_scatter", "reduce", "allreduce"]


def posed(topology: Topology, collective: Collective, size_bytes: int, chunks: int = 1, **more: object) -> Instance:
    root = 0 if collective == "reduce" else None
    return instance_of(problem(topology, collective, size_bytes, root=root, **more), size_bytes, chunks)


def found(instance: Instance, runs: int = 10) -> tuple[Send, ...]:
    sends = searcher(instance).search(bound_ns=0, seconds=60, runs=runs)
    assert sends is not None
    verdict = check(instance, sends)
    assert verdict.ok, verdict.violations
    return sends


def sums(instance: Instance, sends: tuple[Send, ...]) -> dict[tuple[int, int], Counter[int]]:
    """Run the sends one by one in order of arrival at their targets, adding up whose parts each rank has."""
    held = {
        (c, rank): Counter({rank: 1} if rank in chunk.sources else {})
        for c, chunk in enumerate(instance.chunks)
        for rank in range(instance.topology.rank_count)
    }
    events = []
    for send in sends:
        link = instance.topology.links[instance.topology.link_between[send.source, send.target]]
        arrival = send.start_ns + link.transfer_ns(sum(instance.chunks[c].size_bytes for c in send.chunks))
        events += [(send.start_ns, 1, send), (arrival, 0, send)]
    carried: dict[int, list[Counter[int]]] = {}
    for _, leaves, send in sorted(events, key=lambda event: event[:2]):
        if leaves:
            carried[id(send)] = [Counter(held[c, send.source]) for c in send.chunks]
            continue
        for c, parts in zip(send.chunks, carried[id(send)], strict=True):
            held[c, send.target] = held[c, send.target] + parts if send.combines else parts
    return held


@pytest.mark.parametrize("collective", SUMMING)
@pytest.mark.parametrize(
    "topology", [ring(5), switched(1, 4), switched(2, 3, latency_ns=30), switched(3, 2, latency_ns=500, message_ns=0)]
)
def test_every_part_is_added_exactly_once(collective: Collective, topology: Topology) -> None:
    instance = posed(topology, collective, topology.rank_count * 2 * 100, 2)
    held = sums(instance, found(instance))
    for c, chunk in enumerate(instance.chunks):
        for target in chunk.targets:
            assert held[c, target] == Counter(chunk.sources)


@st.composite
def random_sums(draw: st.DrawFn) -> Instance:
    """Links of every latency that share resources: reversed sends must not meet on them."""
    count = draw(st.integers(2, 5))
    ends = [(r, (r + step) % count) for r in range(count) for step in range(1, count)]
    links = []
    for index, (a, b) in enumerate(ends):
        costs = draw(st.tuples(st.integers(0, 300), st.integers(0, 50), st.sampled_from([0.5, 2.0])))
        links.append(Link(a, b, *costs, tuple(sorted({index, len(ends) + a, len(ends) + count + b}))))
    topology = Topology("random", (0,) * count, tuple(links), tuple(str(k) for k in range(len(ends) + 2 * count)))
    ranks = st.integers(0, count - 1)
    chunks = draw(
        st.lists(
            st.builds(
                lambda sources, targets, reduces: Chunk(100, tuple(sorted(sources)), tuple(sorted(targets)), reduces),
                st.sets(ranks, min_size=1),
                st.sets(ranks, min_size=1),
                st.booleans(),
            ),
            min_size=1,
            max_size=4,
        )
    )
    return Instance(topology, (*chunks, Chunk(100, tuple(range(count)), (0,), True)))


@settings(max_examples=80, deadline=None)
@given(random_sums())
def test_random_sums(instance: Instance) -> None:
    held = sums(instance, found(instance, runs=4))
    for c, chunk in enumerate(instance.chunks):
        if chunk.reduces:
            for target in chunk.targets:
                assert held[c, target] == Counter(chunk.sources)


def test_reduce_scatter_takes_as_long_as_allgather() -> None:
    sketch = Sketch(symmetry=((1, 4),))
    times = []
    for collective in ("reduce_scatter", "allgather"):
        instance = posed(switched(1, 4, message_ns=0), collective, 4 * 800, sketch=sketch)
        times.append(check(instance, found(instance)).time_ns)
    assert times == [300, 300]


def test_allreduce_takes_no_longer_than_its_two_halves() -> None:
    sketch = Sketch(internode={0: (1,)}, symmetry=((8, 16),))
    topology = preset("ndv2", 2)
    halves = [posed(topology, half, 16 << 18, sketch=sketch) for half in ("reduce_scatter", "allgather")]
    whole = posed(topology, "allreduce", 16 << 18, sketch=sketch)
    together = sum(check(half, found(half)).time_ns for half in halves)
    assert check(whole, found(whole)).time_ns <= together


def test_allreduce_starts_to_copy_before_all_sums_are_complete() -> None:
    # One chunk's sum needs a slow link, the other's does not.
    links = (
        Link(0, 1, 0, 0, 1.0, (0,)),
        Link(1, 0, 0, 0, 1.0, (1,)),
        Link(0, 2, 0, 0, 0.01, (2,)),
        Link(2, 0, 0, 0, 0.01, (3,)),
    )
    topology = Topology("lame", (0, 0, 0), links, ("a", "b", "c", "d"))
    slow, quick = Chunk(10, (0, 2), (0, 2), True), Chunk(10, (0, 1), (0, 1), True)
    sends = found(Instance(topology, (slow, quick)))
    copied = next(send for send in sends if send.chunks == (1,) and not send.combines)
    summed = next(send for send in sends if send.chunks == (0,) and send.combines)
    assert copied.start_ns < summed.start_ns + 1000


def test_symmetries_of_sums_are_kept() -> None:
    sketch = Sketch(internode={i: (i,) for i in range(4)}, symmetry=((1, 4), (4, 8)))
    for collective in ("reduce_scatter", "allreduce"):
        instance = posed(switched(2, 4), collective, 8 * 800, sketch=sketch)
        sends = found(instance, runs=1)
        expect_symmetric(instance, sends)


def test_roots_go_along_with_symmetries_and_are_shared_out() -> None:
    instance = posed(switched(2, 4), "allreduce", 8 * 800, 2, sketch=Sketch(symmetry=((1, 4), (4, 8))))
    kept, roots = choose_roots(instance)
    assert kept == instance
    assert Counter(roots) == {rank: 2 for rank in range(8)}
    for symmetry in instance.generators:
        assert all(symmetry.ranks[roots[c]] == roots[image] for c, image in enumerate(symmetry.chunks))


def test_sums_are_completed_where_links_leave_for_other_nodes() -> None:
    """Two DGX-1, one rank for each NIC: that sends the parts of its node in one message, and the sums in another."""
    sketch = Sketch(internode={i: (i,) for i in (0, 2, 4, 6)})
    instance = posed(preset("dgx1", 2), "allreduce", 1 << 19, sketch=sketch)
    roots = choose_roots(instance)[1]
    assert Counter(roots) == {rank: 2 for rank in range(0, 16, 2)}
    sends = found(instance)
    between = [send for send in sends if send.source // 8 != send.target // 8]
    assert Counter((send.source, send.combines) for send in between) == {
        (rank, combines): 1 for rank in range(0, 16, 2) for combines in (False, True)
    }


def test_roots_that_no_symmetry_allows_give_symmetries_up() -> None:
    # One chunk for both ranks, which change places: neither can be its root.
    instance = posed(ring(2), "allreduce", 200, sketch=Sketch(symmetry=((1, 2),)))
    one = replace(
        instance,
        chunks=instance.chunks[:1],
        generators=tuple(replace(g, chunks=(0,)) for g in instance.generators),
    )
    kept, roots = choose_roots(one)
    assert kept.generators == ()
    assert roots == (0,)
    found(one)


def mirrored_pair(topology: Topology) -> tuple[Instance, Instance, Symmetry | None]:
    """The spreading of an AllReduce, its copying, and the names that make one of the other."""
    instance, roots = choose_roots(posed(topology, "allreduce", topology.rank_count * 100))
    spreading, after = reversed_summing(instance, roots), gathering(instance, roots)
    return spreading, after, relabelling(spreading, instance.usable_links, after)


@pytest.mark.parametrize("topology", [switched(1, 4), switched(2, 3), preset("hgx-h200", 2), ring(5)])
def test_what_spreads_sums_also_copies_them_under_other_names(topology: Topology) -> None:
    spreading, after, names = mirrored_pair(topology)
    assert names is not None
    sends = searcher(spreading).search(bound_ns=0, seconds=60, runs=2)
    assert sends is not None
    verdict = check(after, relabelled(sends, names))
    assert verdict.ok, verdict.violations
    assert verdict.time_ns == check(spreading, sends).time_ns


def test_phases_that_are_no_mirror_images_have_no_other_names() -> None:
    ends = [(0, 1, 100), (1, 2, 50), (2, 0, 25), (2, 1, 10)]
    links = tuple(Link(a, b, latency, 0, 1.0, (k,)) for k, (a, b, latency) in enumerate(ends))
    topology = Topology("uneven", (0, 0, 0), links, tuple(f"wire {k}" for k in range(len(ends))))
    assert mirrored_pair(topology)[2] is None
