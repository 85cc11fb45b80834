"""Sums from copies, by time reversal.

A schedule that spreads a chunk from its root to all ranks, run backwards over the links the other way, brings every
rank's part to the root: where a rank received a copy once, it now sends its part once, after all parts that are added
to it have come, so every part is summed exactly once. ReduceScatter and Reduce are reversed AllGathers and Broadcasts
of the reversed topology; AllReduce goes on with an AllGather from the roots.

A reversed send that arrived at a has to start at (finish - a) and holds its resources from then on; where links of one
resource differ in latency these spans may overlap, so starts are computed again with the order kept.

A sum with several targets has two phases: until it is whole at its root, and copied from there on. Programs plan one at
a time (:mod:`loadmaster.models.collective.hops`); put together again, copies follow sums as closely as the orders of
the resources allow. Source: [Shah23], section 5.7 (combining collectives).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from loadmaster.models.collective.bounds import lower_bound
from loadmaster.models.collective.instance import Chunk, Instance, Symmetry
from loadmaster.models.collective.plan import Send
from loadmaster.models.collective.reach import Reach
from loadmaster.models.collective.symmetry import breaks_chunks, closure, holders_of
from loadmaster.models.topologies.topology import Topology
from loadmaster.planner.collective.prune import finish_ns, in_order, retime
from loadmaster.planner.effort import Effort


def choose_roots(instance: Instance) -> tuple[Instance, tuple[int, ...]]:
    """Choose for each chunk the rank where its sum is completed: one of its targets, shared out evenly over those with
    links to other nodes and from there, if any: what comes to others has farther to go. Where no target can reach the
    others, another rank that all parts can reach.

    Returns the instance, and the roots. Its symmetries map the root of a chunk to the root of its image; where no such
    roots exist, the instance comes back without symmetries.
    """
    topology = instance.topology
    group = closure(instance.generators, topology.rank_count, len(instance.chunks))
    crossing = [k for k in topology.links if topology.crosses(k)]
    gateways = {k.source for k in crossing} & {k.target for k in crossing}
    roots: dict[int, int] = {}
    reach = Reach(instance)
    for index, chunk in enumerate(instance.chunks):
        if index in roots:
            continue
        targets = chunk.targets
        if len(chunk.sources) == 1:
            targets = chunk.sources  # whole from the start
        elif chunk.goes_on:
            possible = reach.roots(index)
            targets = tuple(rank for rank in targets if rank in possible) or possible or targets
        likely = tuple(rank for rank in targets if rank in gateways) or targets
        first = index * len(likely) // len(instance.chunks)
        for root in likely[first:] + likely[:first]:
            images: dict[int, int] = {}
            if all(images.setdefault(g.chunks[index], g.ranks[root]) == g.ranks[root] for g in group):
                roots.update(images)
                break
        else:
            return choose_roots(instance.without_symmetry())
    return instance, tuple(roots[index] for index in range(len(instance.chunks)))


def gathering(instance: Instance, roots: Sequence[int]) -> Instance:
    """Build the instance that is left once sums are complete at their roots: copying all chunks to their targets."""
    chunks = tuple(
        replace(chunk, sources=(root,), reduces=False) if chunk.reduces else chunk
        for chunk, root in zip(instance.chunks, roots, strict=True)
    )
    return replace(instance, chunks=chunks)


def reversed_summing(instance: Instance, roots: Sequence[int]) -> Instance:
    """Build the spreading of each sum's chunk from its root to all that have a part, over the links the other way. A
    link keeps its index, and with it the chunks that may use it; the senders of chunks are therefore left out here."""
    chunks = tuple(
        Chunk(chunk.size_bytes, (root,), chunk.sources) if chunk.reduces else Chunk(0, chunk.sources, chunk.sources)
        for chunk, root in zip(instance.chunks, roots, strict=True)
    )
    return replace(instance, topology=instance.topology.reversed(), chunks=chunks)


def relabelling(spreading: Instance, usable: Sequence[Sequence[int]], after: Instance) -> Symmetry | None:
    """Find new names of ranks and chunks under which spreading a sum, reversed, is the copying that follows it: the
    schedule of the one then serves the other. Tried are turns, reflections and exchanges of the ranks of every node;
    None where none of those fits. ``usable``: per chunk the links that spreading may use."""
    before, copying = spreading.topology, after.topology
    held = {frozenset(of) for of in holders_of(copying)}
    allowed = {id(links): frozenset(links) for links in (*usable, *after.usable_links)}
    chunks: dict[tuple[int, frozenset[int], frozenset[int], frozenset[int]], list[int]] = {}
    for c in reversed(range(len(after.chunks))):
        chunk = after.chunks[c]
        ends = frozenset(chunk.sources), frozenset(chunk.targets)
        chunks.setdefault((chunk.size_bytes, *ends, allowed[id(after.usable_links[c])]), []).append(c)
    for ranks in _likely(before):
        links = _images(before, copying, ranks)
        if links is None or {frozenset(links[k] for k in of) for of in holders_of(before)} != held:
            continue
        ways = {index: frozenset(links[k] for k in of) for index, of in allowed.items()}
        left = {key: list(of) for key, of in chunks.items()}
        found: list[int] = []
        for c, chunk in enumerate(spreading.chunks):
            ends = frozenset(ranks[r] for r in chunk.sources), frozenset(ranks[r] for r in chunk.targets)
            same = left.get((chunk.size_bytes, *ends, ways[id(usable[c])]))
            if not same:
                break
            found.append(same.pop())
        else:
            return Symmetry(ranks, tuple(found))
    return None


def relabelled(sends: Sequence[Send], names: Symmetry) -> tuple[Send, ...]:
    """Rename the ranks and chunks of sends."""
    return in_order(
        [
            Send(
                send.start_ns,
                names.ranks[send.source],
                names.ranks[send.target],
                tuple(sorted(names.chunks[c] for c in send.chunks)),
            )
            for send in sends
        ]
    )


def _likely(topology: Topology) -> Iterator[tuple[int, ...]]:
    """Yield permutations of ranks that move all nodes in the same way: none, exchanges, reflections and turns."""
    nodes = list(topology.ranks_of_node.values())
    size = len(nodes[0])
    if any(len(node) != size for node in nodes):
        nodes, size = [tuple(range(topology.rank_count))], topology.rank_count
    exchanges = [[place ^ mask for place in range(size)] for mask in range(size)] if size & (size - 1) == 0 else []
    turns = [[(turn + sign * place) % size for place in range(size)] for sign in (1, -1) for turn in range(size)]
    for places in dict.fromkeys(map(tuple, (*exchanges, *turns))):
        ranks = [0] * topology.rank_count
        for node in nodes:
            for rank, place in zip(node, places, strict=True):
                ranks[rank] = node[place]
        yield tuple(ranks)


def _images(before: Topology, after: Topology, ranks: Sequence[int]) -> list[int] | None:
    """Image of each link of a topology in another; None where a link has none like it."""
    if len(before.links) != len(after.links):
        return None
    found: list[int] = []
    for link in before.links:
        index = after.link_between.get((ranks[link.source], ranks[link.target]))
        if index is None:
            return None
        other = after.links[index]
        costs = [(k.latency_ns, k.message_ns, k.gbps) for k in (link, other)]
        if costs[0] != costs[1]:
            return None
        found.append(index)
    return found


def reverse(instance: Instance, spreading: Instance, sends: Sequence[Send]) -> tuple[Send, ...]:
    """Turn sends of ``spreading``, an instance of :func:`reversed_summing`, into the sends of ``instance`` that sum."""
    finish = finish_ns(spreading, sends)
    mirrored = [
        Send(finish - finish_ns(spreading, (send,)), send.target, send.source, send.chunks, combines=True)
        for send in sends
    ]
    return retime(instance, in_order(mirrored))


def sums_ready_ns(instance: Instance, roots: Sequence[int], sends: Sequence[Send]) -> dict[tuple[int, int], int]:
    """Time in ns at which each sum is complete at its root, by (chunk, root); other chunks are missing."""
    ready = {(c, roots[c]): 0 for c, chunk in enumerate(instance.chunks) if chunk.reduces}
    for send in sends:
        arrival = finish_ns(instance, (send,))
        for c in send.chunks:
            if send.target == roots[c]:
                ready[c, send.target] = max(ready[c, send.target], arrival)
    return ready


def taken(instance: Instance, sends: Sequence[Send]) -> dict[int, list[tuple[int, int]]]:
    """Spans of time in which sends hold each resource."""
    topology = instance.topology
    spans: dict[int, list[tuple[int, int]]] = {}
    for send in sends:
        link = topology.links[topology.link_between[send.source, send.target]]
        size_bytes = sum(instance.chunks[c].size_bytes for c in send.chunks)
        for resource in link.resources:
            spans.setdefault(resource, []).append((send.start_ns, send.start_ns + link.occupancy_ns(size_bytes)))
    return {resource: sorted(of) for resource, of in spans.items()}


# Instance, a schedule of it, a bound of all of them in ns, seconds at most -> a schedule that is no slower.
Move = Callable[[Instance, Sequence[Send], int, float, Effort], tuple[Send, ...]]


def summing(instance: Instance, roots: Sequence[int]) -> Instance:
    """Build the first phase: sums to their roots. Other chunks stay where they are."""
    chunks = tuple(
        replace(chunk, targets=(root,)) if chunk.reduces else replace(chunk, targets=chunk.sources)
        for chunk, root in zip(instance.chunks, roots, strict=True)
    )
    return replace(instance, chunks=chunks)


def joined(instance: Instance, sums: Sequence[Send], copies: Sequence[Send]) -> tuple[Send, ...]:
    """Join both phases in one schedule."""
    end_ns = finish_ns(instance, sums)
    later = tuple(replace(send, start_ns=send.start_ns + end_ns) for send in copies)
    return retime(instance, in_order((*sums, *later)))


def phase_by_phase(
    instance: Instance, sends: Sequence[Send], move: Move, seconds: float, effort: Effort
) -> tuple[Send, ...]:
    """Make a move on each phase of a schedule, for half of the seconds; the schedule itself where that makes nothing
    faster, or a sum is completed in several places."""
    best = tuple(sends)
    roots = _roots(instance, best)
    if roots is None:
        return best
    sums = tuple(send for send in best if send.combines)
    copies = tuple(send for send in best if not send.combines)

    def moved(phase: Instance, of_phase: Sequence[Send]) -> tuple[Send, ...]:
        phase = _symmetric(phase)
        return move(phase, retime(phase, of_phase), lower_bound(phase).ns, seconds / 2, effort)

    found = joined(instance, moved(summing(instance, roots), sums), moved(gathering(instance, roots), copies))
    return min(best, found, key=lambda candidate: finish_ns(instance, candidate))


def _roots(instance: Instance, sends: Sequence[Send]) -> tuple[int, ...] | None:
    """Root of each chunk: the one rank whose part of the sum is not sent on; any source of a chunk without a sum."""
    left = [set(chunk.sources) for chunk in instance.chunks]
    for send in sends:
        if send.combines:
            for c in send.chunks:
                left[c].add(send.target)
    for send in sends:
        if send.combines:
            for c in send.chunks:
                left[c].discard(send.source)
    if any(chunk.reduces and len(ranks) != 1 for chunk, ranks in zip(instance.chunks, left, strict=True)):
        return None
    return tuple(min(ranks) for ranks in left)


def _symmetric(phase: Instance) -> Instance:
    return replace(phase, generators=tuple(g for g in phase.generators if breaks_chunks(phase.chunks, g) is None))
