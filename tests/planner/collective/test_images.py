"""Classic algorithms made from a few chunks and their images: the same messages, and right."""

from __future__ import annotations

from collections import Counter

import pytest

from loadmaster.models.collective.checker import check
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.instance import Chunk, Instance, Symmetry
from loadmaster.models.collective.problem import Collective, Sketch
from loadmaster.models.topologies.presets import preset
from loadmaster.models.topologies.topology import Topology
from loadmaster.planner.collective.images import images_of
from loadmaster.planner.collective.queueing import queued
from loadmaster.planner.collective.sketches import turning
from loadmaster.planner.collective.trees import messages, tree_classics
from tests.models.collective.tiny import problem, ring, switched


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["alltoall", "allgather", "reduce_scatter", "allreduce"])
@pytest.mark.parametrize("machine", [ring(8), preset("torus", 16), switched(4, 4, latency_ns=7), switched(1, 6)])
def test_images_make_the_messages_of_all_chunks(machine: Topology, collective: Collective) -> None:
    size_bytes = machine.rank_count * 120
    whole = problem(machine, collective, size_bytes)
    sketch = turning(whole)
    assert sketch is not None
    plain = instance_of(whole, size_bytes, 2)
    turned = instance_of(whole, size_bytes, 2, sketch=sketch)
    tried = 0
    for classic in tree_classics(machine, rooted=False):
        made, every = messages(turned, classic), messages(plain, classic)
        assert made is not None and every is not None
        assert made.count == len(every.sends) and every.images is None
        assert (made.images is not None) == classic.is_alike
        if made.images is None:
            continue
        tried += 1
        first = queued(turned, made.sends, made.turns, images=made.images)
        assert first is not None
        sends = made.images.all_of(first)
        verdict = check(plain, sends)
        assert verdict.ok, (classic.name, verdict.violations[:2])
        assert verdict.time_ns == check(plain, first).time_ns or collective != "alltoall"
        if collective != "allreduce" and len(machine.links) == machine.rank_count * (machine.rank_count - 1):
            moves = Counter((s.source, s.target, s.chunks) for s in sends)
            assert moves == Counter((s.source, s.target, s.chunks) for s in every.sends)
    assert tried >= 3


def test_they_take_about_as_long_as_all_in_one_queue() -> None:
    """AllToAll both ways around a ring: every wire is busy all the time, and the longest ways take turns."""
    size_bytes = 16 * 1000
    whole = problem(ring(16, message_ns=0), "alltoall", size_bytes)
    turned = instance_of(whole, size_bytes, 1, sketch=turning(whole))
    classic = next(c for c in tree_classics(whole.topology, rooted=False) if c.name == "both ways")
    made = messages(turned, classic)
    assert made is not None and made.images is not None and len(made.images.group) == 8
    first = queued(turned, made.sends, made.turns, images=made.images)
    assert first is not None
    # Distances 1 .. 7 both ways, and 8 by turns: 2 * 28 + 8 hops a rank on two wires.
    assert check(turned, made.images.all_of(first)).time_ns == (28 + 4) * 1000


def test_there_are_none_where_a_symmetry_leaves_a_chunk_or_a_link_where_it_is() -> None:
    everyone = (0, 1, 2, 3)
    turn = Symmetry((1, 2, 3, 0), (0,))
    fixed = Instance(ring(4), (Chunk(10, everyone, everyone, reduces=True),), (turn,))
    assert images_of(fixed) is None
    assert images_of(fixed.without_symmetry()) is None
    whole = problem(switched(1, 4), "alltoall", 400)
    swap = Symmetry((0, 1, 3, 2), tuple(range(16)))
    assert images_of(Instance(whole.topology, instance_of(whole, 400, 1).chunks, (swap,))) is None
    assert turning(problem(ring(4), "alltoall", 400, sketch=Sketch())) is None
    assert turning(problem(ring(4), "broadcast", 400, root=0)) is None
