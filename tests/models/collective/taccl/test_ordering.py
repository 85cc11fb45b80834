"""Orders of hops: every tree in order, one at a time on every resource, the heuristics' own rules, symmetry."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.collective.checker import check
from loadmaster.models.collective.hops import colliding, hops_of, orbits
from loadmaster.models.collective.instance import Chunk, Instance, Symmetry
from loadmaster.models.collective.plan import Send
from loadmaster.models.collective.taccl.ordering import HEURISTICS, alone, order, order_of, sends, time_ns
from loadmaster.models.topologies.topology import Link, Topology
from tests.models.collective.routes import random_routes, small_instances
from tests.models.collective.tiny import ring, switched

VARIANTS = list(itertools.product(HEURISTICS, (False, True)))


@pytest.mark.slow
@given(small_instances(), st.integers(0, 99))
def test_every_heuristic_orders_random_routes_into_a_schedule(instance: Instance, seed: int) -> None:
    routes = random_routes(instance, seed)
    for heuristic, backward in VARIANTS:
        ordered = order(instance, routes, heuristic, backward=backward)
        assert sorted(ordered.sequence) == list(range(sum(map(len, routes))))
        verdict = check(instance, sends(ordered, alone(ordered)))
        assert verdict.ok, verdict.violations
        assert verdict.time_ns <= time_ns(ordered, alone(ordered))
        assert ordered == order(instance, routes, heuristic, backward=backward)
        # The schedule keeps the order of every link.
        for link, journeys in verdict.by_link.items():
            assert [c for journey in journeys for c in journey.send.chunks] == list(ordered.chunk_order[link])


def line(*chunks: Chunk, count: int = 4) -> Instance:
    """Ranks in a line, one wire to the right between neighbours, 100 ns a message, 1 byte per ns."""
    links = tuple(Link(r, r + 1, 0, 100, 1.0, (r,)) for r in range(count - 1))
    return Instance(Topology("line", (0,) * count, links, tuple(f"wire {r}" for r in range(count - 1))), chunks)


def test_the_longest_way_to_go_leaves_first() -> None:
    instance = line(Chunk(100, (0,), (1,)), Chunk(100, (0,), (3,)), Chunk(100, (0,), (2,)))
    ordered = order(instance, [[0], [0, 1, 2], [0, 1]])
    assert ordered.chunk_order == {0: (1, 2, 0), 1: (1, 2), 2: (1,)}
    # As early as possible: the first is at rank 3 after three hops, the last at rank 1 after waiting for two.
    assert time_ns(ordered, alone(ordered)) == 600


def test_what_could_start_first_is_scheduled_first() -> None:
    # Chunk 1 has the longer way to go, but reaches the shared wire 200 ns later.
    instance = line(Chunk(100, (1,), (2,)), Chunk(100, (0,), (3,)))
    assert order(instance, [[1], [0, 1, 2]]).chunk_order[1] == (0, 1)


def test_latency_counts_in_what_could_start_first() -> None:
    """Straight to rank 3 in 200 ns and 300 of latency, or around in twice 200: the one that goes around is first."""
    costs = ((0, 3, 300), (1, 2, 0), (2, 3, 0), (3, 4, 70))
    links = tuple(Link(a, b, latency_ns, 100, 1.0, (k,)) for k, (a, b, latency_ns) in enumerate(costs))
    topology = Topology("ways", (0,) * 5, links, tuple("abcd"))
    instance = Instance(topology, (Chunk(100, (0,), (4,)), Chunk(100, (1,), (4,))))
    ordered = order(instance, [[0, 3], [1, 2, 3]], "shortest path until now first")
    assert ordered.chunk_order[3] == (1, 0)
    # On the shared wire from 400 to 600, then to 800, and 70 on the way.
    assert time_ns(ordered, alone(ordered)) == 870
    assert check(instance, sends(ordered, alone(ordered))).time_ns == 870


def test_the_heuristics_differ_in_what_breaks_ties() -> None:
    # Three chunks want wire 1; by the time that chunk 2 gets there, the wire has been taken, and others wait as well.
    instance = line(Chunk(300, (1,), (2,)), Chunk(100, (1,), (2,)), Chunk(100, (0,), (3,)))
    routes = [[1], [1], [0, 1, 2]]
    assert order(instance, routes, "longest path from now first").chunk_order[1] == (0, 2, 1)
    assert order(instance, routes, "shortest path until now first").chunk_order[1] == (1, 0, 2)


def test_backward_schedules_from_the_ends() -> None:
    # Forward, chunk 1 is ready at wire 1 first. Seen from the ends it is the one whose way ends there: it comes last.
    instance = line(Chunk(100, (0,), (3,)), Chunk(300, (1,), (2,)))
    assert order(instance, [[0, 1, 2], [1]]).chunk_order[1] == (1, 0)
    assert order(instance, [[0, 1, 2], [1]], backward=True).chunk_order[1] == (0, 1)


def rotations(topology: Topology, chunks: tuple[Chunk, ...]) -> Instance:
    count = topology.rank_count
    step = tuple((r + 1) % count for r in range(count))
    return Instance(topology, chunks, (Symmetry(step, step),))


def test_symmetric_routes_get_symmetric_orders() -> None:
    everyone = tuple(range(4))
    instance = rotations(ring(4), tuple(Chunk(100, (r,), everyone) for r in everyone))
    links = instance.topology.links
    right = {link.source: k for k, link in enumerate(links) if (link.target - link.source) % 4 == 1}
    left = {link.source: k for k, link in enumerate(links) if (link.source - link.target) % 4 == 1}
    routes = [[right[c], right[(c + 1) % 4], left[c]] for c in everyone]
    ordered = order(instance, routes)
    assert len(set(ordered.orbit_of)) == 3
    for c in everyone:
        assert [(x + 1) % 4 for x in ordered.chunk_order[right[c]]] == list(ordered.chunk_order[right[(c + 1) % 4]])
    lopsided = [[right[0], left[0], left[3]], *routes[1:]]
    assert len(set(order(instance, lopsided).orbit_of)) == 12


def test_images_that_share_a_resource_have_no_symmetric_order() -> None:
    topology = switched(1, 4)
    instance = Instance(
        topology,
        (Chunk(100, (0,), (2,)), Chunk(100, (1,), (2,))),
        (Symmetry((1, 0, 2, 3), (1, 0)),),
    )
    pairs = [(0, topology.link_between[0, 2]), (1, topology.link_between[1, 2])]
    assert orbits(instance, pairs) == (0, 0)
    assert colliding(instance, pairs, (0, 0)) == {0}
    assert order(instance, [[k] for _, k in pairs]).orbit_of == (0, 1)


@pytest.mark.parametrize(
    ("routes", "words"),
    [
        ([[1, 2]], "does not lead"),
        ([[0, 0, 1, 2]], "twice"),
        ([[0, 1]], "does not lead"),
        ([[7]], "no link that the chunk may use"),
    ],
)
def test_what_is_no_tree_is_refused(routes: list[list[int]], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        hops_of(line(Chunk(100, (0,), (3,))), routes)
    assert caught.value.field == "routes[0]"


def test_two_ways_into_one_rank_are_refused() -> None:
    topology = ring(3)
    instance = Instance(topology, (Chunk(100, (0,), (1, 2)),))
    between = topology.link_between
    with pytest.raises(InputError, match="enters a rank that has the chunk"):
        hops_of(instance, [[between[0, 1], between[0, 2], between[1, 2]]])


def test_sums_for_several_targets_are_refused() -> None:
    instance = Instance(ring(3), (Chunk(100, (0, 1, 2), (0, 1), reduces=True),))
    with pytest.raises(InputError, match="more than one target") as caught:
        order(instance, [[0]])
    assert caught.value.field == "chunks[0].targets"


def test_chunks_of_no_bytes_need_no_hops() -> None:
    instance = line(Chunk(0, (0,), (3,)), Chunk(100, (0,), (1,)))
    ordered = order(instance, [[], [0]])
    assert check(instance, sends(ordered, alone(ordered))).ok


@pytest.mark.slow
@given(small_instances(), st.integers(0, 99))
def test_the_order_of_a_schedule_gives_it_back(instance: Instance, seed: int) -> None:
    ordered = order(instance, random_routes(instance, seed))
    found = sends(ordered, alone(ordered))
    again, messages = order_of(instance, found)
    assert sends(again, messages) == found
    assert again.chunk_order == ordered.chunk_order


def test_the_order_of_a_schedule_keeps_its_messages_together() -> None:
    instance = line(*(Chunk(100, (0,), (3,)) for _ in range(3)))
    found = (
        Send(0, 0, 1, (0, 2)),
        Send(300, 0, 1, (1,)),
        Send(300, 1, 2, (0, 2)),
        Send(600, 1, 2, (1,)),
        Send(600, 2, 3, (0,)),
        Send(800, 2, 3, (1, 2)),
    )
    ordered, messages = order_of(instance, found)
    assert sends(ordered, messages) == found
    assert ordered.chunk_order == {0: (0, 2, 1), 1: (0, 2, 1), 2: (0, 1, 2)}


def test_a_chunk_sent_somewhere_twice_has_no_order() -> None:
    instance = line(Chunk(100, (0,), (1,)))
    with pytest.raises(InputError, match="twice"):
        order_of(instance, (Send(0, 0, 1, (0,)), Send(200, 0, 1, (0,))))


def meeting(*, slow: tuple[int, int], chunks: tuple[Chunk, ...]) -> Instance:
    """0 and 3 send to 1, which sends to 2 and 4. From 0 a message is 1000 ns on its way; all else has no latency.

    Messages cost 100 ns; from 3, and to 4, what ``slow`` says. 1 byte per ns.
    """
    links = (
        Link(0, 1, 1000, 100, 1.0, (0,)),
        Link(3, 1, 0, slow[0], 1.0, (1,)),
        Link(1, 2, 0, 100, 1.0, (2,)),
        Link(1, 4, 0, slow[1], 1.0, (3,)),
    )
    return Instance(Topology("meeting", (0,) * 5, links, ("from 0", "from 3", "to 2", "to 4")), chunks)


def test_what_is_on_its_way_is_not_there_yet() -> None:
    # Chunk 0 has left rank 0 after 200 ns and is at rank 1 after 1200; chunk 1 is there after 400.
    instance = meeting(slow=(300, 0), chunks=(Chunk(100, (0,), (2,)), Chunk(100, (3,), (2,))))
    ordered = order(instance, [[0, 2], [1, 2]])
    assert ordered.chunk_order[2] == (1, 0)
    assert time_ns(ordered, alone(ordered)) == 1400


def test_a_link_is_free_again_while_a_message_is_on_its_way() -> None:
    # Chunk 0 leaves first, with the longer way to go; chunk 1 follows after 200 ns and is at rank 1 after 1400, before
    # chunk 2 (2000).
    chunks = (Chunk(100, (0,), (4,)), Chunk(100, (0,), (2,)), Chunk(100, (3,), (2,)))
    ordered = order(meeting(slow=(1900, 500), chunks=chunks), [[0, 3], [0, 2], [1, 2]])
    assert ordered.chunk_order == {0: (0, 1), 1: (2,), 2: (1, 2), 3: (0,)}


def test_the_way_to_go_is_counted_with_its_latency() -> None:
    # After the wire that both want, chunk 1 is 1200 ns on its way, chunk 0 600 ns at work.
    links = (
        Link(0, 1, 0, 100, 1.0, (0,)),
        Link(1, 2, 1000, 100, 1.0, (1,)),
        Link(1, 3, 0, 500, 1.0, (2,)),
    )
    topology = Topology("fork", (0,) * 4, links, ("both", "far", "dear"))
    chunks = (Chunk(100, (0,), (3,)), Chunk(100, (0,), (2,)))
    ordered = order(Instance(topology, chunks), [[0, 2], [0, 1]])
    assert ordered.chunk_order[0] == (1, 0)
    assert time_ns(ordered, alone(ordered)) == 1400


def test_a_resource_of_two_links_on_a_way_is_free_before_the_chunk_is_there() -> None:
    # One NIC holds both links: free after 200 ns, but the chunk is at rank 1 after 1200.
    links = (Link(0, 1, 1000, 100, 1.0, (0,)), Link(1, 2, 1000, 100, 1.0, (0,)))
    instance = Instance(Topology("shared", (0,) * 3, links, ("NIC",)), (Chunk(100, (0,), (2,)),))
    ordered = order(instance, [[0, 1]])
    assert [send.start_ns for send in sends(ordered, alone(ordered))] == [0, 1200]
    assert time_ns(ordered, alone(ordered)) == 2400
