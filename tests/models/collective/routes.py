"""Routes for tests: random trees, and small instances to draw them on."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.topologies.topology import Link, Topology


def random_routes(instance: Instance, seed: int) -> list[list[int]]:
    """Per chunk a random tree from its sources to its targets (for a sum: from its target, the other way)."""
    chance, links = random.Random(seed), instance.topology.links
    found = []
    for index, chunk in enumerate(instance.chunks):
        starts, ends = (chunk.targets, chunk.sources) if chunk.reduces else (chunk.sources, chunk.targets)

        def enters(k: int, up: bool = chunk.reduces) -> tuple[int, int]:
            return (links[k].target, links[k].source) if up else (links[k].source, links[k].target)

        reached: dict[int, int | None] = dict.fromkeys(starts)
        while set(ends) - set(reached):
            fresh = [k for k in instance.usable_links[index] if enters(k)[0] in reached and enters(k)[1] not in reached]
            k = chance.choice(fresh)
            reached[enters(k)[1]] = k
        used = set()
        for rank in ends:
            while (k := reached[rank]) is not None:
                used.add(k)
                rank = enters(k)[0]
        found.append(sorted(used))
    return found


@st.composite
def small_instances(draw: st.DrawFn, *, sums: bool = True, most_chunks: int = 3) -> Instance:
    """Three or four ranks with wires and perhaps shared ports, up to three chunks of one to three sizes."""
    count = draw(st.integers(3, 4))
    pairs = {(r, (r + 1) % count) for r in range(count)} | {((r + 1) % count, r) for r in range(count)}
    pairs |= set(draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=2)))
    ends = sorted((a, b) for a, b in pairs if a != b)
    ports = draw(st.booleans())
    names = tuple(f"wire {a}->{b}" for a, b in ends) + tuple(f"egress {r}" for r in range(count))
    links = []
    for k, (a, b) in enumerate(ends):
        held = (k, len(ends) + a) if ports and draw(st.booleans()) else (k,)
        latency_ns, message_ns = draw(st.sampled_from([0, 30])), draw(st.sampled_from([0, 50, 200]))
        links.append(Link(a, b, latency_ns, message_ns, draw(st.sampled_from([1.0, 2.0])), held))
    rank, size = st.integers(0, count - 1), st.sampled_from([100, 200])
    chunks = []
    for _ in range(draw(st.integers(1, most_chunks))):
        many = tuple(sorted(draw(st.sets(rank, min_size=1))))
        if sums and draw(st.booleans()):
            chunks.append(Chunk(draw(size), many, (draw(rank),), reduces=True))
        else:
            chunks.append(Chunk(draw(size), (draw(rank),), many))
    return Instance(Topology("small", (0,) * count, tuple(links), names), tuple(chunks))
