"""What sketches make of topologies and chunks: the published cases by hand, lanes, symmetries and their refusal."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.instance import Chunk, Instance, Symmetry
from loadmaster.models.collective.problem import Collective, CollectiveProblem, Sketch, SwitchPolicy
from loadmaster.models.collective.sketch import logical_topology
from loadmaster.models.collective.symmetry import breaks_chunks, chunk_images, rotation
from loadmaster.models.collective.taccl.sketch_files import published_sketch, read_sketch
from loadmaster.models.topologies.presets import preset
from loadmaster.models.topologies.profiles import load_profile, published_profile
from loadmaster.models.topologies.topology import Topology
from tests.models.collective.tiny import problem, ring, switched

CHUNK_BYTES = {"1KB": 2**10, "1MB": 2**20}


def case(sketch: str, size: str, collective: Collective) -> Instance:
    """A published sketch on its machine, with chunks of the profile's size."""
    document = published_sketch(sketch)
    topology = load_profile(published_profile(f"topo-{sketch.split('-')[1]}-{size}"), document["nnodes"])
    read = read_sketch(document, topology, collective, sketch)
    assert read.chunk_count is not None
    size_bytes = topology.rank_count * read.chunk_count * CHUNK_BYTES[size]
    posed = CollectiveProblem(sketch, topology, collective, (size_bytes,), sketch=read)
    found = instance_of(posed, size_bytes, read.chunk_count)
    assert {chunk.size_bytes for chunk in found.chunks} == {CHUNK_BYTES[size]}
    return found


def crossing(topology: Topology) -> set[tuple[int, int]]:
    return {(k.source, k.target) for k in topology.links if topology.crosses(k)}


def test_dgx2_sk_1_sends_from_odd_to_even_ranks() -> None:
    instance = case("sk1-dgx2-n2", "1MB", "allgather")
    topology = instance.topology
    assert crossing(topology) == {(a, a + 15) for a in range(1, 16, 2)} | {(a, a - 17) for a in range(17, 32, 2)}
    assert instance.connections == (1, 1)
    assert len(instance.chunks) == 64
    for index, chunk in enumerate(instance.chunks):
        sender = index // 2 % 16 | 1
        assert chunk.senders == {sender, 16 + sender}
    assert {k.occupancy_ns(2**20) for k in topology.links} == {8300, 107_600}
    assert topology.switches == (tuple(range(16)), tuple(range(16, 32)))


def test_dgx2_sk_2_gives_two_senders_half_a_nic_each() -> None:
    """The seed, 5.8.2.1: since the IB is shared, double the beta cost of each IB transfer."""
    instance = case("sk2-dgx2-n2", "1KB", "allgather")
    topology = instance.topology
    assert crossing(topology) == {(r, (r + 16) % 32) for r in range(32)}
    assert instance.connections == (-1, -1)
    found = {k.occupancy_ns(1024) for k in topology.links if topology.crosses(k)}
    assert found == {2600 + 205}
    users = defaultdict(list)
    for link in topology.links:
        for resource in link.resources:
            users[resource].append((link.source, link.target))
    assert all(len(of) == 1 for r, of in users.items() if "nic" in topology.resources[r])
    # Each rank takes in its 30 chunks that do not come over InfiniBand through one port: the notes' 9.3 us.
    assert 30 * topology.links[0].occupancy_ns(1024) == 9300


def test_ndv2_sk_2_gives_each_of_64_links_its_lane() -> None:
    instance = case("sk2-ndv2-n2", "1KB", "alltoall")
    topology = instance.topology
    assert len(crossing(topology)) == 128
    # The notes' 916 (units of 10 ns): one chunk over one lane.
    assert {k.occupancy_ns(1024) for k in topology.links if topology.crosses(k)} == {9160}


def test_ndv2_sk_1_relays_through_one_pair() -> None:
    two, four = case("sk1-ndv2-n2", "1MB", "allgather"), case("sk1-ndv2-n4", "1MB", "allgather")
    assert crossing(two.topology) == {(0, 9), (8, 1)}
    assert crossing(four.topology) == {(8 * a, 8 * b + 1) for a in range(4) for b in range(4) if a != b}
    shared = defaultdict(set)
    for link in four.topology.links:
        if link.source == 0 and four.topology.crosses(link):
            shared[link.resources[0]].add(link.target)
    assert [sorted(of) for of in shared.values()] == [[9, 17, 25]], "one NIC sends to all nodes, in turns"


def test_a_sketch_without_a_beta_split_only_removes() -> None:
    physical = preset("dgx2", 2)
    sketch = Sketch(internode={0: (1,), 3: (3,)}, switches=(SwitchPolicy(tuple(range(8))),))
    logical = logical_topology(physical, sketch)
    for link in logical.links:
        like = physical.links[physical.link_between[link.source, link.target]]
        assert (link.latency_ns, link.message_ns, link.gbps) == (like.latency_ns, like.message_ns, like.gbps)
        held = [{t.resources[r] for r in k.resources} for t, k in ((logical, link), (physical, like))]
        assert held[0] == held[1]
    assert crossing(logical) == {(0, 17), (3, 19), (16, 1), (19, 3)}
    inside = {(k.source, k.target) for k in logical.links if not logical.crosses(k)}
    assert inside == {(16 * n + a, 16 * n + b) for n in range(2) for a in range(8) for b in range(8) if a != b}
    assert logical.switches == (tuple(range(8)), tuple(range(16, 24)))
    assert logical_topology(physical, Sketch()) is physical


def nic_bandwidths(physical: Topology, logical: Topology) -> dict[str, float]:
    """Of each NIC's resource, what all its lanes ask of it, as a part of its bandwidth."""
    asked: dict[str, dict[int, float]] = defaultdict(dict)
    for link in logical.links:
        if logical.crosses(link):
            full = physical.links[physical.link_between[link.source, link.target]].gbps
            for resource in link.resources:
                asked[logical.resources[resource].split(", lane")[0]][resource] = link.gbps / full
    return {name: sum(of_lane.values()) for name, of_lane in asked.items()}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_lanes_never_promise_more_than_a_nic_has(data: st.DataObject) -> None:
    physical = preset(data.draw(st.sampled_from(["ndv2", "dgx1"])), data.draw(st.integers(2, 3)))
    ranks = st.integers(0, 7)
    internode = data.draw(st.dictionaries(ranks, st.lists(ranks, min_size=1, max_size=3, unique=True), min_size=1))
    split = data.draw(st.dictionaries(ranks, st.sampled_from([1.0, 2.0, 4.0, 8.0, 24.0]), min_size=1))
    sketch = Sketch(internode={s: tuple(r) for s, r in internode.items()}, beta_split=split)
    per_nic = {"ndv2": 8, "dgx1": 2}[physical.name.split()[0]]
    senders: dict[int, float] = defaultdict(float)
    arriving: dict[int, set[int]] = defaultdict(set)
    for sender, receivers in internode.items():
        senders[sender // per_nic] += 1 / split.get(sender, 1)
        for receiver in receivers:
            arriving[receiver // per_nic].add(sender)
    into = [sum(1 / split.get(s, 1) for s in of) for of in arriving.values()]
    if max([*senders.values(), *into]) > 1 + 1e-9:
        with pytest.raises(InputError) as refused:
            logical_topology(physical, sketch)
        assert refused.value.field == "sketch.beta_split"
        return
    logical = logical_topology(physical, sketch)
    assert all(share <= 1 + 1e-9 for share in nic_bandwidths(physical, logical).values())
    for link in logical.links:
        full = physical.links[physical.link_between[link.source, link.target]].gbps
        n = split.get(link.source % 8, 1) if logical.crosses(link) else 1
        assert link.gbps == pytest.approx(full / n)


def test_senders_of_one_lane_take_turns_where_links_do_not_fit() -> None:
    physical = preset("ndv2", 2)
    everyone = {i: tuple(range(8)) for i in range(8)}
    logical = logical_topology(physical, Sketch(internode=everyone, beta_split=dict.fromkeys(range(8), 8.0)))
    lanes: dict[int, set[int]] = defaultdict(set)
    for link in logical.links:
        if logical.crosses(link):
            for resource in link.resources:
                lanes[resource].add(link.source)
    assert all(len(of) == 1 for of in lanes.values())
    assert len(lanes) == 2 * 8 * 2


@pytest.mark.parametrize(
    ("sketch", "field"),
    [
        (Sketch(internode={8: (0,)}), "sketch.internode"),
        (Sketch(internode={0: (8,)}), "sketch.internode.0"),
        (Sketch(internode={0: (1,)}), "sketch.internode.0"),
        (Sketch(relays={0: 9}), "sketch.relays.0"),
        (Sketch(internode={1: (1,)}, relays={0: 0}), "sketch.relays.0"),
        (Sketch(beta_split={0: 0.5}), "sketch.beta_split.0"),
        (Sketch(beta_split={9: 2.0}), "sketch.beta_split"),
        (Sketch(switches=(SwitchPolicy((0, 8)),)), "sketch.switches[0].ranks"),
        (Sketch(switches=(SwitchPolicy((0, 1, 2)), SwitchPolicy((1, 2, 3)))), "sketch.switches[1].ranks"),
        (Sketch(symmetry=((1, 3),)), "sketch.symmetry[0]"),
        (Sketch(symmetry=((8, 16), (8, 8))), "sketch.symmetry[1]"),
        (Sketch(symmetry=((0, 8),)), "sketch.symmetry[0]"),
    ],
)
def test_sketches_that_do_not_fit_are_refused(sketch: Sketch, field: str) -> None:
    """On rails: local rank 0 has no link to local rank 1 of another node."""
    posed = problem(preset("hgx-h200", 2), "allgather", 16)
    with pytest.raises(InputError) as refused:
        instance_of(posed, 16, 1, sketch=sketch)
    assert refused.value.field == field


def test_a_generator_that_is_no_automorphism_is_refused_with_its_pair() -> None:
    ndv2 = preset("ndv2", 2)
    with pytest.raises(InputError, match=r"link 0 -> 1 maps to 1 -> 2, which has other costs") as refused:
        instance_of(problem(ndv2, "allgather", 16), 16, 1, sketch=Sketch(symmetry=((8, 16), (1, 8))))
    assert refused.value.field == "sketch.symmetry[1]"
    pair = Sketch(internode={0: (1,)}, symmetry=((4, 8),))
    with pytest.raises(InputError, match=r"link 0 -> 9 maps to 4 -> 13, which is no link"):
        instance_of(problem(ndv2, "allgather", 16), 16, 1, sketch=pair)
    with pytest.raises(InputError, match="chunk 0 maps to one of 16 bytes from 8"):
        instance_of(problem(ndv2, "broadcast", 16, root=0), 16, 1, sketch=Sketch(symmetry=((8, 16),)))
    relays = Sketch(relays={0: 1, 1: 1}, symmetry=((1, 4),))
    with pytest.raises(InputError, match="chunk"):
        instance_of(problem(switched(2, 4), "allgather", 8), 8, 1, sketch=relays)
    uneven = tuple(tuple(8 * (a == 0) for b in range(4)) for a in range(4))
    posed = problem(ring(4), "alltoallv", 32, pair_bytes=uneven)
    with pytest.raises(InputError, match="chunk"):
        instance_of(posed, 32, 1, sketch=Sketch(symmetry=((1, 4),)))


@pytest.mark.parametrize(
    ("offset", "group", "expected"),
    [
        (2, 4, (2, 3, 0, 1, 6, 7, 4, 5)),
        (1, 4, (1, 2, 3, 0, 5, 6, 7, 4)),
        (4, 8, (4, 5, 6, 7, 0, 1, 2, 3)),
    ],
)
def test_rotations_turn_every_group_at_once(offset: int, group: int, expected: tuple[int, ...]) -> None:
    assert rotation(8, offset, group) == expected


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce", "alltoall"])
@pytest.mark.parametrize("parts", [1, 3])
def test_chunks_go_along_with_their_ranks(collective: Collective, parts: int) -> None:
    count = 8
    posed = problem(switched(2, 4), collective, count * parts)
    sketch = Sketch(symmetry=((1, 4), (4, 8)))
    instance = instance_of(posed, count * parts, parts, sketch=sketch)
    for (offset, group), found in zip(sketch.symmetry, instance.generators, strict=True):
        turn = rotation(count, offset, group)
        if collective == "alltoall":
            pairs = [(s, d, j) for s in range(count) for d in range(count) for j in range(parts)]
            expected = tuple((turn[s] * count + turn[d]) * parts + j for s, d, j in pairs)
        else:
            expected = tuple(turn[r] * parts + j for r in range(count) for j in range(parts))
        assert found == Symmetry(turn, expected)


def test_forms_that_gather_have_their_symmetries_too() -> None:
    posed = problem(switched(2, 2), "allreduce", 4)
    instance = instance_of(posed, 4, 1, "gather", sketch=Sketch(symmetry=((1, 2),)))
    assert instance.generators == (Symmetry((1, 0, 3, 2), (1, 0, 3, 2)),)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_images_of_random_chunks_are_automorphisms_or_refused(data: st.DataObject) -> None:
    count = 4
    ranks = st.lists(st.integers(0, count - 1), min_size=1, unique=True)
    chunk = st.builds(
        lambda size, sources, targets, senders: Chunk(
            size, tuple(sources), tuple(targets), senders=None if senders is None else frozenset(senders)
        ),
        st.sampled_from([4, 8]),
        ranks,
        ranks,
        st.none() | ranks,
    )
    base = data.draw(st.lists(chunk, min_size=1, max_size=3))
    turn = rotation(count, data.draw(st.integers(1, count - 1)), count)

    def image(of: Chunk) -> Chunk:
        senders = None if of.senders is None else frozenset(turn[r] for r in of.senders)
        sources, targets = (tuple(turn[r] for r in ends) for ends in (of.sources, of.targets))
        return replace(of, sources=sources, targets=targets, senders=senders)

    whole = list(base)
    for _ in range(count - 1):
        whole += [image(of) for of in whole[-len(base) :]]
    closed = data.draw(st.permutations(whole))
    images = chunk_images(closed, turn)
    assert sorted(images) == list(range(len(closed)))
    assert breaks_chunks(closed, Symmetry(turn, images)) is None
    try:
        partial = chunk_images(base, turn)
    except InputError as refused:
        assert "is no symmetry" in str(refused)
    else:
        assert breaks_chunks(base, Symmetry(turn, partial)) is None


def test_an_instance_without_a_sketch_is_the_problem_itself() -> None:
    posed = problem(switched(2, 2), "allgather", 4)
    instance = instance_of(posed, 4, 1)
    assert instance.topology is posed.topology
    assert (instance.generators, instance.connections) == ((), (0, 0))


def test_a_chunk_count_that_does_not_divide_is_refused() -> None:
    posed = problem(switched(2, 2), "allgather", 8, sketch=Sketch(symmetry=((1, 2),)))
    with pytest.raises(InputError, match="does not divide 8 bytes") as refused:
        instance_of(posed, 8, 3)
    assert refused.value.field == "chunk_counts"


def test_the_given_sketch_replaces_the_problems() -> None:
    posed = problem(switched(2, 2), "allgather", 4, sketch=Sketch(internode={0: (0,)}))
    assert crossing(instance_of(posed, 4, 1).topology) == {(0, 2), (2, 0)}
    assert crossing(instance_of(posed, 4, 1, sketch=Sketch(internode={1: (1,)})).topology) == {(1, 3), (3, 1)}


def test_sums_are_not_bound_to_relays() -> None:
    sketch = Sketch(relays={0: 1})
    gathered = instance_of(problem(switched(2, 2), "allgather", 4), 4, 1, sketch=sketch).chunks
    assert [c.senders for c in gathered] == [{1, 3}, None, {1, 3}, None]
    assert {c.senders for c in instance_of(problem(switched(2, 2), "allreduce", 4), 4, 1, sketch=sketch).chunks} == {
        None
    }


def lines_run(call: Callable[[], object]) -> int:
    """Lines of Python that a call runs: the work it does, on a machine of any speed."""
    count, before = 0, sys.gettrace()

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("collective", ["allgather", "alltoall", "allreduce"])
def test_the_work_for_an_instance_grows_as_the_instance_does(collective: Collective) -> None:
    """Not as pairs of links or of chunks do: those would be 16 times as many."""
    work, size = [], []
    for nodes in (2, 4):
        topology = preset("hgx-h200", nodes)
        posed = problem(topology, collective, 2**20)
        sketch = Sketch(symmetry=((1, 8), (8, 8 * nodes)))
        work.append(lines_run(lambda posed=posed, sketch=sketch: instance_of(posed, 2**20, 1, sketch=sketch)))
        chunks = instance_of(posed, 2**20, 1).chunks
        size.append(len(topology.links) + sum(len(chunk.sources) + len(chunk.targets) for chunk in chunks))
    assert work[1] / work[0] < 1.5 * size[1] / size[0]
