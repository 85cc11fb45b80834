"""Automatic sketches: what to try where the user draws none.

Every sketch here only leaves links out, or lets fewer ranks send a chunk to another node; none changes a cost. So its
schedules are schedules of the physical topology, and a bound of the physical topology is one for all of them.

Relay patterns, between nodes: one sender and one receiver for each NIC (as dgx2-sk-1 and ndv2-sk-1), each rank to its
counterparts (as dgx2-sk-2), every link; of an AllReduce also one rank for each NIC, where sums are completed too: it
sends the parts of its node in one message, and what is whole makes no detour. Symmetries: the rotations of whole nodes,
then of ranks inside a node, that are automorphisms of what the pattern leaves; with the first, one decision stands for
all nodes, with both for all ranks. Fewer symmetries leave more schedules and cost more search.

Source: [Shah23], sections 5.4.1 and 5.8.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from loadmaster.errors import InputError
from loadmaster.models.collective.collectives import ROOTED, cuts, instance_of, named_chunk_counts
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Form
from loadmaster.models.collective.problem import CollectiveProblem, Sketch
from loadmaster.models.collective.reach import unreachable
from loadmaster.models.collective.sketch import local_ranks
from loadmaster.models.collective.symmetry import generator, rotation
from loadmaster.models.topologies.topology import Topology
from loadmaster.planner.collective.images import orbits_share_nothing

# More chunks than this in all are not tried: what they gain in pipelining is little by then.
MOST_CHUNKS = 1024
# Parts are not cut so small that the fixed cost of a message on its link is more than so many times the time of its
# bytes there, or its latency more than so many times: of that, more parts may be on their way at a time.
LARGEST_FIXED_SHARE, LARGEST_LATENCY_SHARE = 4.0, 16.0

# Of so few pieces among so few ranks two parts are tried, however small, where links of one node differ in speed: they
# share a piece.
FEW_PIECES, FEW_RANKS = 64, 16

Rotation = tuple[int, int]
Ranks = tuple[int, ...]


@dataclass(frozen=True)
class Pattern:
    """Pattern of links in use between nodes; fields as of :class:`Sketch`."""

    name: str
    internode: Mapping[int, tuple[int, ...]] | None = None
    relays: Mapping[int, int] = field(default_factory=dict)


def candidates(problem: CollectiveProblem, over: Callable[[], bool] = lambda: False) -> list[Sketch]:
    """List sketches worth trying, the most promising first; the user's own alone if the problem has one. They leave the
    chunk count open: :func:`chunk_counts`. Once ``over`` says so, symmetries are no longer looked for."""
    if problem.sketch is not None:
        return [problem.sketch]
    by_symmetry: dict[int, list[Sketch]] = {}
    for pattern in _patterns(problem):
        if pattern.internode is not None and unreachable(_probe(problem, pattern)):
            continue
        chain = _rotations(problem, pattern, over)
        per_node = _ranks_per_node(problem.topology) or problem.topology.rank_count
        between = tuple((o, g) for o, g in chain if o % per_node == 0)
        for place, rotations in enumerate((chain, between, ())):
            if rotations in (chain, between, ())[:place]:
                continue
            name = f"{pattern.name}{''.join(f' [{o}, {g}]' for o, g in rotations)}"
            sketch = Sketch(name=name, internode=pattern.internode, relays=pattern.relays, symmetry=rotations)
            by_symmetry.setdefault(place, []).append(sketch)
    return [sketch for _, sketches in sorted(by_symmetry.items()) for sketch in sketches]


def turning(problem: CollectiveProblem, over: Callable[[], bool] = lambda: False) -> Sketch | None:
    """Sketch of every link, with rotations that are symmetries of the whole; None without any, or if a user drew some.
    They go by twice as many places as must be: the turns of ranks with their neighbours stay as they are."""
    chain = () if problem.sketch is not None else _rotations(problem, Pattern("every link"), over)
    twice = tuple((2 * offset, group) for offset, group in chain if 2 * offset < group and group % (2 * offset) == 0)
    return Sketch("turning", symmetry=twice) if twice else None


def chunk_counts(
    problem: CollectiveProblem, size_bytes: int, form: Form, sketch: Sketch | None = None
) -> tuple[int, ...]:
    """List parts of each rank's piece worth trying at a size, ascending; those of the problem or sketch if named.

    Powers of two, and three times those, that divide the size, up to 64 and to parts so small that a message's fixed
    cost outweighs them; two parts of few pieces in any case where slow and fast links may share them. Where none of
    those divide the size, the nearest numbers that do; 1 where nothing does: the refusal then says what would.
    """
    named = named_chunk_counts(problem if sketch is None else replace(problem, sketch=sketch))
    if named:
        return named
    ranks = problem.topology.rank_count
    cut = ranks**2 if problem.collective == "alltoallv" else cuts(problem, 1, form)
    squared = problem.collective in ("alltoall", "alltoallv") or (form, problem.collective) == (
        "gather",
        "reduce_scatter",
    )
    many = ranks * ranks if squared else ranks if form == "gather" else cut
    # The link on which a part takes least time compared with its fixed cost decides: there, smaller parts pay longest.
    least_bytes = 1.0
    for link in problem.topology.links:
        worth_ns = max(link.message_ns / LARGEST_FIXED_SHARE, link.latency_ns / LARGEST_LATENCY_SHARE)
        least_bytes = max(least_bytes, worth_ns * link.gbps)
    local_gbps = {link.gbps for link in problem.topology.links if not problem.topology.crosses(link)}
    at_least = 2 if many <= FEW_PIECES and ranks <= FEW_RANKS and len(local_gbps) > 1 else 1

    def worth(parts: int) -> bool:
        small = many * parts > MOST_CHUNKS or size_bytes / cut / parts < least_bytes
        divides = problem.collective == "alltoallv" or size_bytes % (cut * parts) == 0
        return divides and (parts <= at_least or not small)

    usual = sorted({1 << e for e in range(7)} | {3 << e for e in range(5)})
    found = {parts for parts in usual if worth(parts)}
    if found == {1}:
        for parts in usual[1:]:
            near = range(math.ceil(parts / 1.5), int(parts * 1.5) + 1)
            found |= set(sorted(filter(worth, near), key=lambda n: abs(n - parts))[:1])
    return tuple(sorted(found)) or (1,)


def _patterns(problem: CollectiveProblem) -> list[Pattern]:
    """Relay patterns that this topology has, each of other links."""
    topology = problem.topology
    everything = Pattern("every link")
    if topology.node_count == 1 or _ranks_per_node(topology) is None:
        return [everything]
    local = local_ranks(topology)
    pairs = {(local[k.source], local[k.target]) for k in topology.links if topology.crosses(k)}
    direct = {i: (i,) for i in range(max(local) + 1)}
    found = []
    groups = _nic_groups(topology)
    if groups and any(len(group) > 1 for group in groups):
        ends = [_ends(topology, group) for group in groups]
        internode = {sender: (receiver,) for sender, receiver in ends}
        sums_or_root = problem.collective not in ("allgather", "alltoall")
        relays = {} if sums_or_root else {i: s for group, (s, _) in zip(groups, ends, strict=True) for i in group}
        if problem.collective == "allreduce" and all((group[0], group[0]) in pairs for group in groups):
            found.append(Pattern("one rank per NIC", {group[0]: (group[0],) for group in groups}))
        if all(end in pairs for end in ends):
            found.append(Pattern("one pair per NIC", internode, relays))
    if all((i, i) in pairs for i in direct) and len(pairs) > len(direct):
        found.append(Pattern("direct map", direct))
    return [*found, everything]


def _ranks_per_node(topology: Topology) -> int | None:
    """Ranks of each node; None where nodes differ, or are not ranges of ranks one after another."""
    count = topology.rank_count // topology.node_count
    like = tuple(topology.node_of[r // count * count] for r in range(topology.rank_count))
    same = like == topology.node_of and all(len(ranks) == count for ranks in topology.ranks_of_node.values())
    return count if same else None


def _nic_groups(topology: Topology) -> list[tuple[int, ...]]:
    """Local ranks that share a NIC, group by group; empty where nodes differ in that."""
    local = local_ranks(topology)
    shared: dict[int, frozenset[int]] = {}
    for link in topology.links:
        if topology.crosses(link):
            held = frozenset(link.resources)
            shared[link.source] = shared.get(link.source, held) & held
    found: set[tuple[tuple[int, ...], ...]] = set()
    for ranks in topology.ranks_of_node.values():
        of_nic: dict[frozenset[int], list[int]] = {}
        for rank in ranks:
            if shared.get(rank):
                of_nic.setdefault(shared[rank], []).append(local[rank])
        found.add(tuple(tuple(group) for group in of_nic.values()))
    return list(found.pop()) if len(found) == 1 else []


def _ends(topology: Topology, group: tuple[int, ...]) -> tuple[int, int]:
    """Sender and receiver of a NIC: two ranks where there are, the first pair with the fastest link between."""
    if len(group) == 1:
        return group[0], group[0]
    node = next(iter(topology.ranks_of_node.values()))

    def gbps(pair: tuple[int, int]) -> float:
        link = topology.link_between.get((node[pair[0]], node[pair[1]]))
        return 0.0 if link is None else topology.links[link].gbps

    return max(((a, b) for a in group for b in group if a != b), key=gbps)


def _rotations(problem: CollectiveProblem, pattern: Pattern, over: Callable[[], bool]) -> tuple[Rotation, ...]:
    """List rotations that are symmetries under a pattern, from whole nodes down to ranks, each inside the one before.
    Each is by the least offset that is one, so together they map a rank to as many others as they can, short of mapping
    a link to one that it shares a resource with: such links could not be used at one time."""
    topology = problem.topology
    per_node = _ranks_per_node(topology)
    # A rotation moves every rank, a root too.
    if per_node is None or problem.collective in ROOTED or over():
        return ()
    instance = _probe(problem, pattern)
    found: list[Rotation] = []
    elements = [tuple(range(topology.rank_count))]
    for unit, size in ((per_node, topology.rank_count), (1, per_node)):
        group, offset = size, unit
        while offset < group and not over():
            if group % offset == 0 and _is_symmetry(instance, offset, group):
                together = _products(elements, rotation(topology.rank_count, offset, group))
                if orbits_share_nothing(instance.topology, together):
                    found.append((offset, group))
                    elements = together
                    group, offset = offset, unit
                    continue
            offset += unit
    return tuple(found)


def _products(elements: Sequence[Ranks], generator_: Ranks) -> list[Ranks]:
    """Extend a group of permutations by one that commutes with them."""
    found, power = list(elements), generator_
    while power != elements[0]:
        found += [tuple(power[r] for r in element) for element in elements]
        power = tuple(generator_[r] for r in power)
    return found


def _probe(problem: CollectiveProblem, pattern: Pattern) -> Instance:
    """Instance with the symmetries of the problem's: where every rank has like chunks, one for each will do."""
    sketch = Sketch(internode=pattern.internode, relays=pattern.relays)
    if problem.collective in ("alltoallv", "custom"):
        return instance_of(problem, problem.sizes_bytes[0], 1, sketch=sketch)
    ranks = problem.topology.rank_count
    return instance_of(replace(problem, collective="allgather", sizes_bytes=(ranks,)), ranks, 1, sketch=sketch)


def _is_symmetry(instance: Instance, offset: int, group: int) -> bool:
    try:
        generator(instance, offset, group)
    except InputError:
        return False
    return True
