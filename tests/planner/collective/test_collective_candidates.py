"""Automatic sketches: of the physical topology's schedules, symmetric where it is, and few."""

from __future__ import annotations

import pytest

from loadmaster.models.collective.collectives import chunks_of, instance_of
from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.collective.problem import Collective, CollectiveProblem, Sketch
from loadmaster.models.collective.reach import unreachable
from loadmaster.models.collective.symmetry import closure
from loadmaster.models.topologies.networks import read_network
from loadmaster.models.topologies.presets import preset
from loadmaster.planner.collective.sketches import candidates, chunk_counts
from tests.models.collective.tiny import problem, ring, switched

MACHINES = [("ndv2", 1), ("ndv2", 2), ("dgx1", 2), ("dgx2", 2), ("hgx-h200", 3), ("ring", 6), ("torus", 6)]
MACHINES += [("fat-tree", 16)]


def posed(name: str, nodes: int, collective: Collective) -> CollectiveProblem:
    topology = preset(name, nodes)
    root = 1 if collective in ("broadcast", "reduce", "scatter", "gather") else None
    return problem(topology, collective, topology.rank_count * 2**20, root=root)


@pytest.mark.parametrize(("name", "nodes"), MACHINES)
@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce", "alltoall", "broadcast", "gather"])
def test_candidates_only_remove_and_leave_a_schedule(name: str, nodes: int, collective: Collective) -> None:
    whole = posed(name, nodes, collective)
    physical = whole.topology
    found = candidates(whole)
    assert 1 <= len(found) <= (12 if collective == "allreduce" else 9)
    assert len({sketch.name for sketch in found}) == len(found)
    for sketch in found:
        assert not sketch.beta_split
        instance = instance_of(whole, whole.sizes_bytes[0], 1, sketch=sketch)
        assert unreachable(instance) is None
        for link in instance.topology.links:
            like = physical.links[physical.link_between[link.source, link.target]]
            assert (link.latency_ns, link.message_ns, link.gbps) == (like.latency_ns, like.message_ns, like.gbps)
            named = [{t.resources[r] for r in k.resources} for t, k in ((instance.topology, link), (physical, like))]
            assert named[0] == named[1]


def orbit_conflicts(instance: Instance) -> list[tuple[int, int]]:
    """Links whose images share a resource with them: a symmetric schedule could not use them."""
    topology = instance.topology
    found = []
    for element in closure(instance.generators, topology.rank_count, len(instance.chunks)):
        for index, link in enumerate(topology.links):
            image = topology.link_between[element.ranks[link.source], element.ranks[link.target]]
            if image != index and set(link.resources) & set(topology.links[image].resources):
                found.append((index, image))
    return found


@pytest.mark.parametrize(("name", "nodes"), MACHINES)
def test_symmetric_links_can_be_used_at_one_time(name: str, nodes: int) -> None:
    whole = posed(name, nodes, "allgather")
    for sketch in candidates(whole):
        assert orbit_conflicts(instance_of(whole, whole.sizes_bytes[0], 1, sketch=sketch)) == []


@pytest.mark.parametrize(
    ("name", "nodes", "order"),
    [
        ("hgx-h200", 1, 8),
        ("hgx-h200", 4, 32),
        ("dgx2", 2, 16),
        ("ndv2", 1, 4),
        ("ring", 7, 7),
        ("torus", 12, 12),
        ("fat-tree", 32, 32),
    ],
)
def test_the_first_candidate_has_the_topologys_rotations(name: str, nodes: int, order: int) -> None:
    """Of a DGX-2 only rotations by pairs are left: two GPUs share a NIC."""
    whole = posed(name, nodes, "alltoall" if name != "fat-tree" else "allgather")
    instance = instance_of(whole, whole.sizes_bytes[0], 1, sketch=candidates(whole)[0])
    assert len(closure(instance.generators, whole.topology.rank_count, len(instance.chunks))) == order


def test_the_patterns_of_the_published_sketches_are_among_them() -> None:
    ndv2 = candidates(posed("ndv2", 2, "allgather"))
    assert any(s.internode == {0: (1,)} and s.symmetry == ((8, 16),) for s in ndv2)
    dgx2 = candidates(posed("dgx2", 2, "allgather"))
    both = ((16, 32), (2, 16))
    assert any(s.internode == {i: (i,) for i in range(16)} and s.symmetry == both for s in dgx2)
    one_each = next(s for s in dgx2 if s.relays and s.symmetry == both)
    assert one_each.internode == {i: (i + 1,) for i in range(0, 16, 2)}
    assert one_each.relays == {i: i // 2 * 2 for i in range(16)}
    assert any(s.internode is None and not s.symmetry for s in dgx2)


def test_rails_have_one_pattern_and_roots_no_rotation() -> None:
    dgx1 = candidates(posed("dgx1", 2, "allreduce"))
    assert dgx1[0].internode == {0: (0,), 2: (2,), 4: (4,), 6: (6,)}
    assert {s.internode is None for s in candidates(posed("hgx-h200", 2, "allgather"))} == {True}
    assert all(not s.symmetry and not s.relays for s in candidates(posed("dgx2", 2, "broadcast")))


def test_a_users_sketch_is_the_only_candidate() -> None:
    own = Sketch("own", symmetry=((1, 4),))
    whole = problem(ring(4), "allgather", 64, sketch=own)
    assert candidates(whole) == [own]


def test_uneven_and_custom_chunks_keep_the_symmetries_they_have() -> None:
    even = tuple(tuple(4 for _ in range(4)) for _ in range(4))
    assert candidates(problem(ring(4), "alltoallv", 64, pair_bytes=even))[0].symmetry == ((1, 4),)
    half = tuple(tuple(4 + (a + b) % 2 * (a % 2) for b in range(4)) for a in range(4))
    assert candidates(problem(ring(4), "alltoallv", 68, pair_bytes=half))[0].symmetry == ((2, 4),)
    one = (Chunk(8, (0,), (2,)),)
    assert [s.symmetry for s in candidates(problem(ring(4), "custom", 8, custom=one))] == [()]


def test_nodes_that_differ_are_left_alone() -> None:
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    links = [{"source": a, "target": b, "gbps": 1.0} for a, b in pairs]
    topology = read_network({"node_of": [0, 0, 1], "links": links})
    assert [(s.internode, s.symmetry) for s in candidates(problem(topology, "allgather", 3))] == [(None, ())]


@pytest.mark.parametrize("collective", ["allgather", "allreduce", "alltoall", "alltoallv", "broadcast", "scatter"])
def test_chunk_counts_divide_and_start_with_one(collective: Collective) -> None:
    topology = switched(2, 2)
    pair_bytes = tuple(tuple(2**16 for _ in range(4)) for _ in range(4)) if collective == "alltoallv" else None
    root = 0 if collective in ("broadcast", "scatter") else None
    whole = problem(topology, collective, 2**20, root=root, pair_bytes=pair_bytes)
    counts = chunk_counts(whole, 2**20, "direct")
    assert counts[0] == 1 and len(counts) > 1
    assert list(counts) == sorted(set(counts))
    for count in counts:
        assert len(chunks_of(whole, 2**20, count)) <= 1024


def test_small_sizes_are_not_cut_and_users_choose() -> None:
    whole = problem(preset("hgx-h200", 1), "allgather", 8 * 1024)
    assert chunk_counts(whole, 8 * 1024, "direct") == (1,)
    wired = problem(preset("dgx1", 1), "allgather", 8 * 1024)
    assert chunk_counts(wired, 8 * 1024, "direct") == (1, 2), "slow and fast links share a piece"
    assert chunk_counts(wired, 8, "direct") == (1,)
    assert chunk_counts(whole, 7, "direct") == (1,), "the refusal then names what divides"
    assert chunk_counts(whole, 8 << 30, "direct") == (1, 2, 4, 8, 16, 32, 64)
    assert chunk_counts(whole, 8 << 30, "direct", Sketch(chunk_count=3)) == (3,)
    asked = problem(preset("hgx-h200", 1), "allgather", 8 * 1024, chunk_counts=(2, 6))
    assert chunk_counts(asked, 8 * 1024, "direct", Sketch(chunk_count=3)) == (2, 6)
    custom = problem(ring(2), "custom", 8, custom=(Chunk(8, (0,), (1,)),))
    assert chunk_counts(custom, 8, "direct") == (1,)


@pytest.mark.parametrize(("size_bytes", "counts"), [(4985, (1, 5)), (1105 * 1009, (1, 5, 13, 17, 65)), (4999, (1,))])
def test_an_odd_size_is_cut_by_what_divides_it(size_bytes: int, counts: tuple[int, ...]) -> None:
    """Next to the usual counts, as far as there are some: 997, 1009 and 4999 are prime, and 1105 is 5 x 13 x 17."""
    found = chunk_counts(problem(ring(5), "broadcast", size_bytes, root=0), size_bytes, "direct")
    assert all(size_bytes % n == 0 for n in found)
    assert found == counts
