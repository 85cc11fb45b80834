"""Lower bounds: never above the best schedule there is, and equal to it where theory says so."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.collective.bounds import NEVER, all_bounds, lower_bound
from loadmaster.models.collective.checker import check
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.collective.problem import Collective
from loadmaster.models.topologies.presets import preset
from loadmaster.models.topologies.topology import Link, Topology
from tests.models.collective.optimal_schedules import Search
from tests.models.collective.tiny import problem, ring, switched


def instance(topology: Topology, collective: Collective, size_bytes: int, chunks: int = 1, **more: object) -> Instance:
    return instance_of(problem(topology, collective, size_bytes, **more), size_bytes, chunks)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """2 to 4 ranks on 1 or 2 nodes: a ring that connects them, more links, and resources shared at random."""
    count = draw(st.integers(2, 4))
    pairs = {(r, (r + 1) % count) for r in range(count)}
    rest = [(a, b) for a in range(count) for b in range(count) if a != b and (a, b) not in pairs]
    pairs |= set(draw(st.lists(st.sampled_from(rest), unique=True))) if rest else set()
    shared = draw(st.integers(1, 4))
    links = []
    for k, (a, b) in enumerate(sorted(pairs)):
        held = {shared + k} if draw(st.booleans()) else {draw(st.integers(0, shared - 1))}
        if draw(st.booleans()):
            held.add(draw(st.integers(0, shared - 1)))
        cost = draw(st.sampled_from([(0, 5), (5, 0), (3, 2), (0, 0)]))
        links.append(Link(a, b, *cost, draw(st.sampled_from([1.0, 2.0, 0.3])), tuple(sorted(held))))
    nodes = draw(st.sampled_from([(0,) * count, tuple(int(2 * r >= count) for r in range(count))]))
    names = tuple(f"resource {r}" for r in range(shared + len(pairs)))
    return Topology("random", nodes, tuple(links), names)


@st.composite
def clusters(draw: st.DrawFn) -> Topology:
    """Two nodes around a switch each, of 1 or 2 ranks, or 1 and 3; NICs of ranks or of nodes, on rails or to all."""
    nodes = draw(st.sampled_from([(0, 1), (0, 0, 1), (0, 0, 1, 1), (0, 0, 0, 1)]))
    count = len(nodes)
    local = draw(st.sampled_from([(0, 0, 2.0), (2, 0, 2.0), (0, 3, 5.0), (5, 1, 10.0)]))
    remote = draw(st.sampled_from([(0, 0, 0.5), (3, 0, 1.0), (0, 7, 2.0), (4, 2, 1.0)]))
    shared = draw(st.booleans())
    nic = [node if shared else r for r, node in enumerate(nodes)]
    rails = not shared and draw(st.booleans())
    links = []
    for a, b in ((a, b) for a in range(count) for b in range(count) if a != b):
        if nodes[a] == nodes[b]:
            links.append(Link(a, b, *local, (a, count + b)))
        elif not rails or a - nodes.index(nodes[a]) == b - nodes.index(nodes[b]):
            links.append(Link(a, b, *remote, (2 * count + nic[a], 3 * count + nic[b])))
    names = tuple(f"{what} {r}" for what in ("out", "in", "nic out", "nic in") for r in range(count))
    return Topology("cluster", nodes, tuple(links), names)


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    topology = draw(st.one_of(topologies(), clusters()))
    ranks = st.integers(0, topology.rank_count - 1)
    some = st.lists(ranks, min_size=1, unique=True).map(lambda found: tuple(sorted(found)))
    everyone = tuple(range(topology.rank_count))
    size_bytes = draw(st.sampled_from([1, 4, 10]))
    chunks = []
    for _ in range(draw(st.integers(1, 3 if topology.rank_count < 4 else 2))):
        reduces = draw(st.booleans())
        sources = draw(st.one_of(some, st.just(everyone))) if reduces else (draw(ranks),)
        targets = draw(st.one_of(some, st.just(everyone)))
        if draw(st.booleans()):
            size_bytes = draw(st.sampled_from([1, 4, 10]))
        chunks.append(Chunk(size_bytes, sources, targets, reduces and len(sources) > 1))
    return Instance(topology, tuple(chunks))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(instances())
def test_no_bound_is_above_the_best_schedule(found: Instance) -> None:
    search = Search(found, limit=4000)
    if search.best_ns is None:
        return
    verdict = check(found, search.sends)
    assert verdict.ok, verdict.violations
    assert verdict.time_ns == search.best_ns
    for bound in all_bounds(found):
        assert bound.ns <= search.best_ns, bound


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(topologies(), st.sampled_from(["allgather", "reduce_scatter", "allreduce", "alltoall", "broadcast", "gather"]))
def test_no_bound_of_a_collective_is_above_the_best_schedule(topology: Topology, collective: Collective) -> None:
    size_bytes = 4 * topology.rank_count
    found = instance(topology, collective, size_bytes, root=0)
    search = Search(found, limit=6000)
    if search.best_ns is not None:
        assert check(found, search.sends).ok
        for bound in all_bounds(found):
            assert bound.ns <= search.best_ns, bound


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(clusters(), st.data())
def test_no_bound_into_a_node_or_out_is_above_the_best_schedule(topology: Topology, data: st.DataObject) -> None:
    """Chunks of a node that the other needs, on all ranks or on one each, or sums that meet there."""
    node = data.draw(st.integers(0, 1))
    sources = st.sampled_from(topology.ranks_of_node[node])
    sizes = st.sampled_from([1, 4, 10])
    size_bytes = data.draw(sizes)
    mixed = data.draw(st.booleans())
    everyone = topology.ranks_of_node[1 - node]
    pairs = data.draw(st.booleans())
    sums = len(everyone) > 1 and not pairs and data.draw(st.booleans())
    others = st.sampled_from(everyone).map(lambda r: (r,)) if pairs else st.just(everyone)
    chunks = tuple(
        Chunk(
            data.draw(sizes) if mixed else size_bytes,
            *((data.draw(others), one) if sums else (one, data.draw(others))),
            sums,
        )
        for one in data.draw(st.lists(st.tuples(sources), min_size=1, max_size=4))
    )
    found = Instance(topology, chunks)
    search = Search(found, limit=4000)
    if search.best_ns is not None:
        assert check(found, search.sends).ok
        for bound in all_bounds(found):
            assert bound.ns <= search.best_ns, bound


@pytest.mark.slow
def test_equal_on_tiny_cases() -> None:
    """Where the search is exhaustive and the bound meets it."""
    cases = [
        instance(ring(3), "allgather", 300),
        instance(ring(3), "alltoall", 300),
        instance(ring(3), "reduce_scatter", 300),
        instance(switched(1, 3), "allgather", 24),
        instance(switched(1, 3, latency_ns=50, message_ns=0), "broadcast", 800, root=1),
        instance(switched(2, 1), "allreduce", 16),
    ]
    for found in cases:
        search = Search(found)
        assert search.exact
        assert lower_bound(found).ns == search.best_ns


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 16])
def test_a_broadcast_of_one_message_over_a_switch_doubles_its_ranks(ranks: int) -> None:
    """The postal model with latency 0: ceil(log2 n) rounds."""
    found = instance(switched(1, ranks), "broadcast", 8, root=0)
    assert lower_bound(found).ns == math.ceil(math.log2(ranks)) * 101


@pytest.mark.parametrize(("ranks", "latency"), [(5, 1), (9, 2), (14, 4)])
def test_a_broadcast_takes_as_long_as_the_postal_model_says(ranks: int, latency: int) -> None:
    """F(t) = F(t - 1) + F(t - 1 - latency) ranks know at t (Bar-Noy and Kipnis), a message taking 1."""
    known = [1]
    while known[-1] < ranks:
        known.append(known[-1] + (known[-1 - latency] if len(known) > latency else 0))
    topology = switched(1, ranks, latency_ns=latency * 100, message_ns=0, gbps=1.0)
    assert lower_bound(instance(topology, "broadcast", 100, root=0)).ns == (len(known) - 1) * 100


@pytest.mark.parametrize(("ranks", "chunks"), [(4, 3), (8, 8), (6, 5)])
def test_chunks_of_a_broadcast_follow_one_another(ranks: int, chunks: int) -> None:
    """k - 1 + ceil(log2 n) rounds: the optimum where sending and receiving are one message at a time."""
    topology = switched(1, ranks, message_ns=0, gbps=1.0)
    for collective in ("broadcast", "reduce"):
        found = instance(topology, collective, chunks * 10, chunks, root=0)
        assert lower_bound(found).ns == 10 * (chunks - 1 + math.ceil(math.log2(ranks)))


@pytest.mark.parametrize(
    ("ranks", "chunks", "chunk_ns", "latency_ns", "best_ns"),
    [(3, 4, 2, 1, 11), (4, 3, 2, 1, 10), (4, 4, 2, 1, 13), (4, 4, 10, 3, 59), (4, 4, 5, 4, 34), (4, 4, 4, 9, 37)],
)
def test_chunks_of_a_broadcast_with_latency(
    ranks: int, chunks: int, chunk_ns: int, latency_ns: int, best_ns: int
) -> None:
    """The optimum, as a constraint solver proves it (intervals on ports, a parent for each chunk on each rank)."""
    topology = switched(1, ranks, latency_ns=latency_ns, message_ns=0, gbps=1.0)
    for collective in ("broadcast", "reduce"):
        assert lower_bound(instance(topology, collective, chunks * chunk_ns, chunks, root=0)).ns == best_ns


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.integers(3, 4), st.integers(2, 3), st.integers(1, 6), st.integers(0, 8), st.sampled_from([0, 3]))
def test_no_bound_of_a_broadcast_is_above_the_best_schedule(
    ranks: int, chunks: int, chunk_ns: int, latency_ns: int, message_ns: int
) -> None:
    topology = switched(1, ranks, latency_ns=latency_ns, message_ns=message_ns, gbps=1.0)
    found = instance(topology, "broadcast", chunks * chunk_ns, chunks, root=0)
    search = Search(found, limit=3000)
    assert search.best_ns is not None
    for bound in all_bounds(found):
        assert bound.ns <= search.best_ns, bound


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_small_collectives_take_the_rounds_of_doubling(ranks: int) -> None:
    """A message costs 100, a byte next to nothing. A sum meets at one rank, and is spread from there."""
    rounds = int(math.log2(ranks))
    topology = switched(1, ranks, gbps=1e6)
    for collective, times in (("allgather", 1), ("allreduce", 2), ("reduce_scatter", 1)):
        found = lower_bound(instance(topology, collective, ranks))
        assert found.ns == times * rounds * 101


@pytest.mark.parametrize("ranks", [3, 4, 6])
def test_allgather_on_a_ring(ranks: int) -> None:
    """Both directions are full all the time: (n - 1) / 2 pieces each way, where n is odd or pieces are halves."""
    found = instance(ring(ranks, message_ns=0), "allgather", 200 * ranks, 2)
    assert lower_bound(found).ns == (ranks - 1) * 100


def test_allgather_on_a_switch_is_port_bound() -> None:
    found = instance(switched(1, 8, message_ns=0, gbps=1.0), "allgather", 800)
    assert lower_bound(found).ns == 700


def test_allreduce_moves_everything_twice_over() -> None:
    """2 (n - 1) / n of the buffer through every port, as reduce-scatter and all-gather on a switch do."""
    found = instance(switched(1, 8, message_ns=0, gbps=1.0), "allreduce", 800)
    assert lower_bound(found).ns == 1400


def test_chunks_through_one_nic_and_then_the_switch() -> None:
    """Two nodes of two: both NICs bring a chunk in, 80 each; the last one in is sent on to the other rank in 10."""
    topology = switched(2, 2, message_ns=0, gbps=1.0)
    assert lower_bound(instance(topology, "allgather", 40)).ns == 90


def test_the_last_round_of_all_nics_goes_on_through_one_port() -> None:
    """Two nodes of four: 4 chunks enter at once, at 80; each rank has one, and gets 3 more from the others."""
    topology = switched(2, 4, message_ns=0, gbps=1.0)
    assert lower_bound(instance(topology, "allgather", 80)).ns == 80 + 3 * 10


def test_one_of_two_ranks_on_a_nic_gets_nothing_of_its_last_round() -> None:
    """Two chunks come over the NIC that two ranks share, 80 each. Only one gets the second from the NIC."""
    links = tuple(Link(0, r, 0, 0, 0.125, (r, 5)) for r in (1, 2))
    links += (Link(1, 2, 0, 0, 0.5, (1, 4)), Link(2, 1, 0, 0, 0.5, (2, 3)))
    topology = Topology("shared", (0, 1, 1), links, tuple("abcdef"))
    found = Instance(topology, (Chunk(10, (0,), (1, 2)), Chunk(10, (0,), (1, 2))))
    assert lower_bound(found).ns == 160 + 20 == Search(found).best_ns


@pytest.mark.slow
def test_one_message_over_a_nic_is_gathered_before_and_handed_out_after() -> None:
    """Two nodes of two share a NIC each, a message of 100: four chunks in one message cost less than two messages."""
    links = [Link(a, b, 0, 30, 1.0, (a, 4 + b)) for a, b in ((0, 1), (1, 0), (2, 3), (3, 2))]
    links += [Link(a, b, 0, 100, 1.0, (8, 9)) for a in (0, 1) for b in (2, 3)]
    topology = Topology("shared", (0, 0, 1, 1), tuple(links), tuple("abcdefghij"))
    found = Instance(topology, tuple(Chunk(1, (a,), (b,)) for a in (0, 1) for b in (2, 3)))
    assert lower_bound(found).ns == 32 + 104 + 32 == Search(found).best_ns


def test_the_last_chunk_over_an_only_nic_goes_on_to_the_others() -> None:
    """Rank 0 reaches 1, 2 and 3 over one NIC, 50 each; from one to the next of them it takes 40."""
    links = [Link(0, r, 0, 40, 1.0, (0,)) for r in (1, 2, 3)]
    links += [Link(1, 2, 0, 30, 1.0, (1,)), Link(2, 1, 0, 30, 1.0, (2,))]
    links += [Link(2, 3, 0, 30, 1.0, (3,)), Link(3, 2, 0, 30, 1.0, (4,))]
    found = Instance(Topology("path", (0, 1, 1, 1), tuple(links), tuple("abcde")), (Chunk(10, (0,), (1, 2, 3)),))
    assert lower_bound(found).ns == 50 + 40 == Search(found).best_ns


def test_a_sum_comes_from_the_farthest_rank_and_goes_back_to_it() -> None:
    """Around eight ranks, wherever a sum is whole: 4 links there and 4 back, of 1000 ns and the byte's each."""
    found = lower_bound(instance(ring(8, latency_ns=1000, message_ns=0), "allreduce", 8))
    assert found.ns == 8 * 1001 and found.by == "sum at one rank, then spread"


def test_reversing_time_keeps_the_bound() -> None:
    """ReduceScatter is AllGather from the end, on the reversed topology."""
    for topology in (ring(5, latency_ns=7), switched(2, 3, latency_ns=11), switched(1, 5)):
        for size_bytes in (60, 60_000):
            gathers = lower_bound(instance(topology.reversed(), "allgather", size_bytes))
            scatters = lower_bound(instance(topology, "reduce_scatter", size_bytes))
            assert scatters.ns == gathers.ns


def test_relays_hold_chunks_back() -> None:
    """Only rank 0 may send to the other node: its NIC takes one chunk after another, which go on over the switch."""
    topology = switched(2, 2, message_ns=0, gbps=1.0)
    chunks = tuple(Chunk(10, (r,), (0, 1, 2, 3), senders=frozenset({0, 2})) for r in range(4))
    assert lower_bound(Instance(topology, chunks)).ns == 80 + 80 + 10


def test_one_of_the_ranks_that_share_a_nic_comes_last() -> None:
    """Ranks 1 and 2 hear of rank 0 through one NIC, a message of 100 each; they have no other links."""
    links = tuple(Link(0, r, 0, 90, 1.0, (r, 3)) for r in (1, 2))
    topology = Topology("shared", (0, 1, 1), links, ("wire", "wire 1", "wire 2", "nic"))
    assert lower_bound(Instance(topology, (Chunk(10, (0,), (1, 2)),))).ns == 200


def test_what_cannot_be_reached_is_never() -> None:
    topology = switched(2, 2, nic=False)
    assert lower_bound(instance(topology, "allgather", 40)).ns >= NEVER


def test_chunks_of_no_bytes_take_no_time() -> None:
    topology = ring(3)
    assert lower_bound(Instance(topology, (Chunk(0, (0,), (1, 2)),))).ns == 0


Costs = tuple[int, int, float]


def two_nodes(node_of: tuple[int, ...], local: Costs, remote: Costs, *, one_nic: bool) -> Topology:
    """A switch in each node; NICs of nodes or of ranks, from each rank to all of the other nodes."""
    count, links = len(node_of), []
    nic = [node if one_nic else r for r, node in enumerate(node_of)]
    for a, b in ((a, b) for a in range(count) for b in range(count) if a != b):
        if node_of[a] == node_of[b]:
            links.append(Link(a, b, *local, (a, count + b)))
        else:
            links.append(Link(a, b, *remote, (2 * count + nic[a], 3 * count + nic[b])))
    return Topology("nodes", node_of, tuple(links), tuple(f"resource {r}" for r in range(4 * count)))


def bus(*gbps: float, node_of: tuple[int, ...] = (0, 0, 0), latency_ns: int = 0, message_ns: int = 0) -> Topology:
    """Rank 0 and each other rank, there and back, one message at a time in all."""
    ends = [(a, b, speed) for r, speed in enumerate(gbps, 1) for a, b in ((0, r), (r, 0))]
    links = [Link(a, b, latency_ns, message_ns, speed, (0,)) for a, b, speed in ends]
    return Topology("bus", node_of, tuple(links), ("bus",))


def to_all(size_bytes: int, count: int, *sources: int) -> tuple[Chunk, ...]:
    return tuple(Chunk(size_bytes, (s,), tuple(range(count))) for s in sources)


ONE_SUM = (Chunk(10, (0, 1, 2), (0, 1, 2), reduces=True),)
TWO_SUMS = 2 * (Chunk(10, (0, 1), (0, 1), reduces=True),)
_ONE_WAY = ((0, 1, 3, 2, 0.5), (1, 0, 0, 20, 2.0), (1, 2, 5, 0, 0.5), (2, 0, 5, 0, 0.5))
_UNEVEN = (
    (0, 1, 0, 20, 0.5, 0),
    (0, 2, 0, 20, 0.5, 0),
    (1, 2, 5, 0, 2.0, 1),
    (2, 0, 5, 0, 2.0, 0),
    (2, 1, 0, 5, 0.5, 0),
)
_WIRES = ((0, 1, 5, 0, 2.0), (0, 2, 0, 5, 2.0), (1, 2, 5, 0, 1.0), (2, 0, 0, 20, 1.0), (2, 1, 0, 5, 2.0))


def wires(*costs: tuple[int, int, int, int, float]) -> Topology:
    """Links with a wire each."""
    links = tuple(Link(*cost, (k,)) for k, cost in enumerate(costs))
    return Topology("wires", (0,) * (1 + max(k.target for k in links)), links, tuple(map(str, range(len(links)))))


# Two nodes of two ranks; the inner ones take turns on one way between the nodes.
_LINE = Topology(
    "line",
    (0, 0, 1, 1),
    (
        *(Link(a, b, 5, 0, 1e9, (k,)) for k, (a, b) in enumerate(((0, 1), (1, 0), (2, 3), (3, 2)))),
        *(Link(a, b, 0, 7, 1.0, (4,)) for a, b in ((1, 2), (2, 1))),
    ),
    tuple(map(str, range(5))),
)

TIGHT: list[tuple[str, Topology, tuple[Chunk, ...], int]] = [
    ("dilation", wires(*_ONE_WAY), tuple(Chunk(1, (a,), (b,)) for a, b in ((0, 1), (1, 2), (2, 0), (1, 0))), 14),
    (
        "lengths of ways",
        wires((0, 1, 0, 7, 1.0), (1, 2, 0, 7, 1.0)),
        tuple(Chunk(10, (a,), (b,)) for a, b in ((0, 1), (0, 1), (0, 2), (1, 2), (1, 2))),
        2 * 7 + 3 * 10,
    ),
    ("ingress ports of a rank", ring(2), tuple(Chunk(100, (a,), (1 - a,)) for a in (0, 0, 0, 1)), 400),
    ("egress ports of a rank", ring(2), tuple(Chunk(100, (a,), (1 - a,)) for a in (0, 0, 0, 1)), 400),
    ("links into a node", two_nodes((0, 1), (0, 0, 2.0), (3, 0, 1.0), one_nic=True), to_all(10, 2, 0, 0), 23),
    ("parts to and fro between ranks", bus(2.0, 2.0), ONE_SUM, 20),
    ("parts to and fro between nodes", bus(2.0, 2.0, node_of=(0, 1, 2)), ONE_SUM, 20),
    ("parts, then copies between ranks", bus(1.0, node_of=(0, 0), latency_ns=30), TWO_SUMS, 30 + 2 * 30),
    ("parts, then copies between nodes", bus(1.0, node_of=(0, 1), latency_ns=30), TWO_SUMS, 30 + 2 * 30),
    (
        "growth of what ranks know",
        wires(*_WIRES),
        tuple(Chunk(1, (a,), (b,)) for a, b in ((0, 2), (1, 0), (2, 0), (2, 1))),
        28,
    ),
    (
        "growth of what a node knows",
        two_nodes((0, 0, 1, 1), (0, 0, 2.0), (4, 2, 1.0), one_nic=False),
        to_all(1, 4, 2, 0, 2),
        9,
    ),
    (
        "growth of what a node knows, from the end",
        two_nodes((0, 1, 1, 1), (0, 20, 1.0), (0, 7, 2.0), one_nic=False),
        tuple(Chunk(40, (0, 1, 2, 3), (t,), reduces=True) for t in (2, 0)),
        87,
    ),
    (
        "few messages into a node",
        two_nodes((0, 0, 0, 1), (0, 5, 1e9), (0, 20, 1.0), one_nic=True),
        tuple(Chunk(1, (a,), (3,)) for a in (0, 1, 2)),
        2 * 5 + 20 + 3,
    ),
    (
        "last chunk over an only entry",
        two_nodes((0, 0, 1, 1), (5, 1, 10.0), (0, 7, 2.0), one_nic=True),
        to_all(1, 4, 2, 3),
        22,
    ),
    ("release into a node", switched(2, 2, message_ns=0, gbps=1.0), to_all(10, 4, 0, 1), 90),
    (
        "delivery by a rank",
        Topology("uneven", (0, 0, 1), tuple(Link(*k[:5], (k[5],)) for k in _UNEVEN), ("shared", "wire")),
        tuple(Chunk(10, (a,), (b,)) for a, b in ((0, 1), (0, 2), (1, 0), (1, 2))),
        70,
    ),
    (
        "sum at one rank, then spread",
        two_nodes((0, 1, 1), (0, 20, 1.0), (3, 0, 1.0), one_nic=True),
        (Chunk(1, (0, 1, 2), (0, 1, 2), reduces=True),),
        10,
    ),
    ("sums of whole nodes", _LINE, 2 * (Chunk(10, (0, 1, 2, 3), (0, 1, 2, 3), reduces=True),), 2 * 5 + 2 * (7 + 20)),
    (
        "pipelined broadcast",
        two_nodes((0, 1, 1, 1), (2, 0, 2.0), (0, 0, 0.5), one_nic=True),
        to_all(40, 4, 0, 0),
        202,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("by", "topology", "chunks", "best_ns"), TIGHT, ids=[case[0] for case in TIGHT])
def test_each_bound_is_the_optimum_somewhere(
    by: str, topology: Topology, chunks: tuple[Chunk, ...], best_ns: int
) -> None:
    """By trying all schedules; a bound that is weaker than its argument would miss it, one that is wrong exceed it."""
    found = Instance(topology, chunks)
    search = Search(found, limit=60_000)
    assert search.exact and search.best_ns == best_ns
    bounds = list(all_bounds(found))
    assert max(bound.ns for bound in bounds if bound.by == by) == best_ns
    assert max(bound.ns for bound in bounds) == best_ns


def test_parts_and_copies_take_two_messages() -> None:
    """Of two ranks: a part one way and the sum back, on one bus, or each of two sums on the wires of both."""
    for topology, chunks, best_ns in (
        (bus(1.0, node_of=(0, 0), message_ns=7), TWO_SUMS[:1], 2 * (10 + 7)),
        (wires((0, 1, 0, 7, 1.0), (1, 0, 0, 7, 1.0)), TWO_SUMS, 2 * (10 + 7)),
    ):
        found = Instance(topology, chunks)
        assert Search(found).best_ns == best_ns
        assert [b.ns for b in all_bounds(found) if b.by == "parts to and fro between ranks"] == [best_ns]


@pytest.mark.slow
def test_parts_of_many_nodes_are_in_before_the_first_copy_has_left() -> None:
    """Sixteen nodes, 8 NICs of 50 GB/s each, on rails: parts over NICs, 5 us and 1 us to all; copies as long.

    A part over a NIC within the first 1 us is of one rank alone, and all 8 of its node must go so.
    """
    size_bytes = 1 << 20
    found = instance(preset("hgx-h200", 16), "allreduce", size_bytes)
    one_way_ns = 5000 + size_bytes * 15 / 16 / 400
    (bound,) = (b.ns for b in all_bounds(found, divisible=True) if b.by == "parts, then copies between nodes")
    assert 5000 + 1000 + one_way_ns + 1000 * 7 / 8 < bound < 5000 + 1000 + one_way_ns + 1000 * 7 / 8 + 10


def test_nics_wait_for_the_sums_of_their_nodes() -> None:
    """Two DGX-1: 1.4 us until a node is summed up on one GPU, two messages on each NIC, 1.4 us to spread what came."""
    found = instance(preset("dgx1", 2), "allreduce", 1 << 19)
    (bound,) = (b.ns for b in all_bounds(found, divisible=True) if b.by == "sums of whole nodes")
    by_hand_ns = 1400 + 2 * 1700 + 2 * (1 << 18) / (4 * 2**20 / 106e3) + 1400
    assert by_hand_ns < bound < by_hand_ns + 10


def test_few_messages_have_few_sources_or_few_targets() -> None:
    """AllToAll of two DGX-2: 32 chunks of 1 KiB over each NIC in two messages, and one within a node at an end."""
    found = instance(preset("dgx2", 2), "alltoall", 32 << 10)
    (bound,) = (b.ns for b in all_bounds(found) if b.by == "few messages into a node")
    nic, port = 2**20 / 106e3, 2**20 / 8e3
    assert bound == 2 * 1700 + math.ceil(32 * 1024 / nic) + 700 + math.ceil(1024 / port)


def test_all_chunks_of_the_last_message_have_yet_to_be_spread() -> None:
    """Two chunks over a bus to rank 1, in one message or two; then over a wire, 1 ns a byte, to rank 2."""
    links = (Link(0, 1, 0, 50, 1.0, (0,)), Link(1, 2, 0, 5, 1.0, (1,)))
    found = Instance(Topology("line", (0, 1, 1), links, ("nic", "wire")), 2 * (Chunk(10, (0,), (1, 2)),))
    search = Search(found)
    assert search.exact and search.best_ns == 50 + 20 + 5 + 20
    assert [b.ns for b in all_bounds(found) if b.by == "last chunk over an only entry"] == [search.best_ns]


def test_all_chunks_of_the_last_message_go_on_over_several_links() -> None:
    """The same and one wire more, to rank 3: one chunk after the other on the first, so that the second can follow."""
    ends = ((0, 1, 50), (1, 2, 5), (2, 3, 5))
    links = tuple(Link(a, b, 0, message_ns, 1.0, (a,)) for a, b, message_ns in ends)
    found = Instance(Topology("line", (0, 1, 1, 1), links, ("nic", "a", "b")), 2 * (Chunk(10, (0,), (1, 2, 3)),))
    search = Search(found)
    assert search.exact and search.best_ns == 50 + 20 + 3 * (5 + 10)
    assert [b.ns for b in all_bounds(found) if b.by == "last chunk over an only entry"] == [search.best_ns]


def test_an_only_nic_serves_one_rank_with_each_message() -> None:
    """Two chunks over a bus to rank 1, 70 ns; to ranks 2 and 3 over it again, 70 each, or over wires, 110."""
    links = [Link(0, r, 0, 50, 1.0, (0,)) for r in (1, 2, 3)] + [Link(1, r, 0, 90, 1.0, (r,)) for r in (2, 3)]
    found = Instance(Topology("star", (0, 1, 1, 1), tuple(links), tuple("0123")), to_all(10, 4, 0, 0))
    search = Search(found)
    assert search.exact and search.best_ns == 70 + 110
    assert [b.ns for b in all_bounds(found) if b.by == "last chunk over an only entry"] == [search.best_ns]


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(clusters(), st.sampled_from([1, 3]), st.integers(1, 2))
def test_no_bound_of_sums_for_all_is_above_the_best_schedule(topology: Topology, size_bytes: int, count: int) -> None:
    everyone = tuple(range(topology.rank_count))
    found = Instance(topology, count * (Chunk(size_bytes, everyone, everyone, reduces=True),))
    search = Search(found, limit=6000)
    if search.best_ns is not None:
        assert check(found, search.sends).ok
        for bound in all_bounds(found):
            assert bound.ns <= search.best_ns, bound


def test_a_shared_resource_counts_at_the_speed_of_its_fastest_link() -> None:
    """Parts to and fro over one bus, to rank 2 at a quarter of the speed: at its own speed the bus would take 80."""
    for gbps, best_ns in (((2.0, 0.5), 50), ((0.5, 2.0), 50)):
        found = Instance(bus(*gbps), ONE_SUM)
        assert Search(found).best_ns == best_ns
        counted = [bound.ns for bound in all_bounds(found) if bound.by == "parts to and fro between ranks"]
        assert counted == [20]
        assert lower_bound(found).ns <= best_ns
