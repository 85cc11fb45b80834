"""What cannot be reached is told with its cut, and only that."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.collective.checker import check
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.collective.problem import Collective, Sketch, SwitchPolicy
from loadmaster.models.collective.reach import unreachable
from loadmaster.models.collective.taccl.sketch_files import published_sketch, read_sketch, sketch_names
from loadmaster.models.topologies.presets import preset
from loadmaster.models.topologies.profiles import load_profile, published_profile
from loadmaster.models.topologies.topology import Link, Topology
from tests.models.collective.tiny import problem, switched


@pytest.mark.parametrize("name", sketch_names())
@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce", "alltoall"])
def test_every_published_sketch_has_schedules(name: str, collective: Collective) -> None:
    document = published_sketch(name)
    topology = load_profile(published_profile(f"topo-{name.split('-')[1]}-1MB"), document["nnodes"])
    parts = document["hyperparameters"]["input_chunkup"]
    size_bytes = topology.rank_count * parts * 2**20
    sketch = read_sketch(document, topology, collective)
    posed = problem(topology, collective, size_bytes, sketch=sketch)
    instance = instance_of(posed, size_bytes, parts)
    assert unreachable(instance) is None
    assert len(instance.generators) == len(document["symmetry_offsets"])


def test_a_node_that_sends_nothing_keeps_its_chunks() -> None:
    instance = instance_of(problem(switched(2, 2), "allgather", 4), 4, 1, sketch=Sketch(internode={}))
    found = unreachable(instance)
    assert found is not None
    assert (found.chunk, found.rank, found.reached) == (0, 2, (0, 1))
    assert "Chunk 0, from rank 0, cannot reach rank 2" in found.why
    assert "ranks 0, 1" in found.why and "sketch.internode" in found.why


def test_relays_that_reach_no_link_are_named() -> None:
    """Rank 1 may send chunks of rank 0 on, but half of the switch was left out: they never come to it."""
    sketch = Sketch(switches=(SwitchPolicy((0, 2)), SwitchPolicy((1, 3))), relays={0: 1, 2: 1})
    instance = instance_of(problem(switched(2, 4), "alltoall", 8), 8, 1, sketch=sketch)
    found = unreachable(instance)
    assert found is not None
    assert found.reached == (0, 2)
    assert instance.chunks[found.chunk].sources[0] in (0, 2) and found.rank not in (0, 2)
    assert "0 -> 4" in found.why and "sketch.relays" in found.why
    assert "only ranks 1, 5 may send it" in found.why


def test_every_part_of_a_sum_must_arrive() -> None:
    topology = Topology("one way", (0, 0), (Link(0, 1, 0, 1, 1.0, (0,)),), ("wire",))
    found = unreachable(
        Instance(topology, (Chunk(1, (0, 1), (1,), reduces=True), Chunk(1, (0, 1), (0,), reduces=True)))
    )
    assert found is not None
    assert (found.chunk, found.rank, found.reached) == (1, 0, (1,))
    assert unreachable(Instance(topology, (Chunk(1, (0, 1), (0, 1)),))) is None


def one_way(count: int, *ends: tuple[int, int]) -> Topology:
    """Links each over a wire of its own."""
    links = tuple(Link(a, b, 0, 100, 1.0, (k,)) for k, (a, b) in enumerate(ends))
    return Topology("one way", (0,) * count, links, tuple(f"wire {a}->{b}" for a, b in ends))


def test_a_sum_that_nobody_can_complete_for_all_is_told() -> None:
    """Each part could reach each target; but a part is sent on once, and no target reaches the other."""
    parts = Chunk(1000, (0, 1), (2, 3), reduces=True)
    found = unreachable(Instance(one_way(4, (0, 2), (1, 2), (0, 3), (1, 3)), (parts,)))
    assert found is not None and (found.chunk, found.rank, found.reached) == (0, 3, (2,))
    assert "sum of the parts of ranks 0, 1" in found.why and "not to rank 3" in found.why
    assert unreachable(Instance(one_way(5, (0, 4), (1, 4), (4, 2), (4, 3)), (parts,))) is None


def test_no_bytes_are_everywhere() -> None:
    """The checker says so."""
    instance = Instance(one_way(2, (0, 1)), (Chunk(0, (1,), (0,)), Chunk(0, (0, 1), (0, 1), reduces=True)))
    assert unreachable(instance) is None and check(instance, ()).ok


def test_large_clusters_are_checked_quickly() -> None:
    instance = instance_of(problem(preset("hgx-h200", 16), "alltoall", 128), 128, 1)
    assert unreachable(instance) is None


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_cut_is_a_cut_and_its_absence_a_way(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 6))
    node_of = tuple(sorted(data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    chosen = data.draw(st.lists(st.sampled_from(pairs), unique=True))
    links = tuple(Link(a, b, 0, 1, 1.0, (k,)) for k, (a, b) in enumerate(chosen))
    topology = Topology("random", node_of, links, tuple(map(str, range(len(links)))))
    ranks = st.lists(st.integers(0, count - 1), min_size=1, unique=True)
    sources, targets = data.draw(ranks), data.draw(ranks)
    senders = data.draw(st.none() | st.frozensets(st.integers(0, count - 1)))
    reduces = data.draw(st.booleans())
    chunk = Chunk(1, tuple(sources), tuple(targets), reduces, senders)
    usable = nx.DiGraph()
    usable.add_nodes_from(range(count))
    for a, b in chosen:
        if senders is None or a in senders or node_of[a] == node_of[b]:
            usable.add_edge(a, b)
    ways = {(s, t): nx.has_path(usable, s, t) for s in sources for t in targets}
    if reduces:
        # A part is sent on once, so there is one rank where the sum is whole first.
        onto = [all(nx.has_path(usable, s, r) for s in sources) for r in range(count)]
        on = [all(nx.has_path(usable, r, t) for t in targets) for r in range(count)]
        needed = any(a and b for a, b in zip(onto, on, strict=True))
    else:
        needed = all(any(ways[s, t] for s in sources) for t in targets)
    found = unreachable(Instance(topology, (chunk,)))
    assert (found is None) == needed
    if found is not None:
        assert found.rank in targets and found.rank not in found.reached
        assert set(found.reached) & {*sources, *targets}
        inside = set(found.reached)
        assert not any(a in inside and b not in inside for a, b in usable.edges)
