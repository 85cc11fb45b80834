"""The classic algorithms for many bytes: chunks follow one another down trees, each a message of its own.

Each chunk goes down a tree of its own from where it starts, through the dimensions of a grid, one after another: every
rank that has it by then is the root of a tree along the next dimension (:mod:`grids`).

A chunk of one target goes the way to that target alone: AllToAll by dimensions, or pairwise. Sums come up the trees;
copies that follow go down. *Turned*: chunks take turns in the dimension that comes first, so that all links of a torus
are in use. *Scattered*, of chunks that all start on one rank, or end there: the root sends each chunk to one rank of
its node, in turns, which sends it to its like in other nodes, and everyone to their neighbours: broadcast by scatter
and all-gather, over every NIC of a node.

Ranks without a link between them send over the shortest way, whose ranks keep what passes.
:mod:`loadmaster.planner.collective.queueing` settles when a message starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.collective.plan import Send
from loadmaster.models.topologies.topology import Topology
from loadmaster.planner.collective.grids import Dimension, Edges, Shape, flat, node_grid, shapes_of, torus_grids, tree
from loadmaster.planner.collective.images import Images, images_of, representatives
from loadmaster.planner.collective.reversal import choose_roots, gathering, reversed_summing
from loadmaster.planner.collective.routes import ShortestWays

# All shapes, the likeliest first: where all ranks are joined, where some have no link, and for chunks of one root.
_JOINED: tuple[Shape, ...] = ("direct", "both ways", "relayed", "disjoint", "binary", "chains", "chain", "binomial")
_LINKED: tuple[Shape, ...] = ("both ways", "chains", "direct", "relayed", "disjoint", "binary", "chain", "binomial")
_SCATTERED: tuple[Shape, ...] = ("disjoint", "binary", "relayed", "direct", "both ways", "chains", "chain", "binomial")
# Along the dimensions of a torus; within nodes; and around a rank that has what nobody else around has.
_ALONG: tuple[Shape, ...] = ("both ways", "chains")
_WITHIN: tuple[Shape, ...] = ("direct", "binomial", "both ways")
_AROUND: tuple[Shape, ...] = ("chain", "direct")
# Those that look the same from every other root.
_ALIKE: tuple[Shape, ...] = ("chain", "both ways", "direct")
# The turn of a chunk among those with its ends, the place of an edge in its tree, the chunk, from, and to.
_Step = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class TreeClassic:
    """Classic algorithm of trees by name: ``phases`` are the trees of each dimension, in order. ``turned``: chunks take
    turns in the dimension that comes first; ``scattered``: in the first phase the root sends each chunk to one rank
    there."""

    name: str
    phases: tuple[tuple[Dimension, Shape], ...]
    turned: bool = False
    scattered: bool = False

    @property
    def is_alike(self) -> bool:
        """True if trees of one root are those of the next but one, turned."""
        return not self.turned and not self.scattered and all(shape in _ALIKE for _, shape in self.phases)


def tree_classics(topology: Topology, *, rooted: bool) -> Iterator[TreeClassic]:
    """Yield the tree algorithms of a topology, the likeliest for many bytes first. ``rooted``: all chunks start at one
    rank, or end there."""
    for dimensions in torus_grids(topology):
        for shape in _ALONG:
            phases = tuple((dimension, shape) for dimension in dimensions)
            yield TreeClassic(f"{shape}, by dimensions in turns", phases, turned=True)
            yield TreeClassic(f"{shape}, by dimensions", phases)
            yield TreeClassic(f"{shape}, by dimensions from the last", phases[::-1])
    grid = node_grid(topology)
    if grid is not None:
        inside, between = grid
        for far, near in product(shapes_of(between, _SCATTERED), _AROUND) if rooted else ():
            name = f"scattered, {far} between nodes, then {near}"
            yield TreeClassic(name, ((between, far), (inside, near)), scattered=True)
        for near, far in product(_WITHIN, shapes_of(between, _JOINED)):
            yield TreeClassic(f"{far} between nodes, then {near}", ((between, far), (inside, near)))
        yield TreeClassic("direct within nodes, then between", ((inside, "direct"), (between, "direct")))
    row = flat(topology)
    for near in _AROUND if rooted and grid is None else ():
        yield TreeClassic(f"scattered, then {near}", ((row, near),), scattered=True)
    is_joined = len(topology.links) == row.size * (row.size - 1)
    yield from (TreeClassic(shape, ((row, shape),)) for shape in shapes_of(row, _JOINED if is_joined else _LINKED))


@dataclass(frozen=True)
class Messages:
    """The messages of an algorithm, in a sequence that works; starts are not settled. ``turns``: per message, how many
    chunks with the ends of its chunk come before; ``images``: the symmetries that make all others (None: these are
    all)."""

    sends: tuple[Send, ...]
    turns: tuple[int, ...]
    images: Images | None = None

    @property
    def count(self) -> int:
        """Number of all messages, images included."""
        return len(self.sends) * (1 if self.images is None else len(self.images.group))


def messages(instance: Instance, classic: TreeClassic) -> Messages | None:
    """Messages of a tree algorithm on an instance; None where a rank cannot reach another. Where instance and algorithm
    have symmetries, only messages of which these make the others."""
    images = images_of(instance) if classic.is_alike else None
    if images is not None:
        found = _all_messages(representatives(instance, images), classic)
        return None if found is None else replace(found, images=images)
    return _all_messages(instance, classic)


def _all_messages(instance: Instance, classic: TreeClassic) -> Messages | None:
    if not instance.combines:
        copies = _down(instance, classic, instance.usable_links)
        return None if copies is None else _in_sequence([], copies)
    instance, roots = choose_roots(instance.without_symmetry())
    spreading = reversed_summing(instance, roots)
    sums = _down(spreading, classic, instance.usable_links)
    copies = _down(gathering(instance, roots), classic, instance.usable_links)
    if sums is None or copies is None:
        return None
    return _in_sequence([(turn, -step, c, target, source) for turn, step, c, source, target in sums], copies)


def _in_sequence(sums: list[_Step], copies: list[_Step]) -> Messages:
    sums.sort()
    copies.sort()
    sends = [Send(0, source, target, (c,), combines=True) for _, _, c, source, target in sums]
    sends += [Send(0, source, target, (c,)) for _, _, c, source, target in copies]
    return Messages(tuple(sends), tuple(step[0] for steps in (sums, copies) for step in steps))


def _down(instance: Instance, classic: TreeClassic, usable: Sequence[Sequence[int]]) -> list[_Step] | None:
    """Send every chunk of an instance without sums down its tree to its targets; None where one gets stuck. In the
    order of these steps no two ranks send to one at a time where trees look the same from all roots."""
    trees = _Trees(instance, classic, usable)
    found: list[_Step] = []
    turns: dict[tuple[int, tuple[int, ...]], int] = {}
    for c, chunk in enumerate(instance.chunks):
        if not chunk.size_bytes or set(chunk.targets) <= set(chunk.sources):
            continue
        start = chunk.sources[0]
        turn = turns.get((start, chunk.targets), 0)
        turns[start, chunk.targets] = turn + 1
        edges = trees.edges(c, start, turn + (trees.turn_of(chunk.targets[0]) if len(chunk.targets) == 1 else 0))
        if edges is None:
            return None
        found += [(turn, step, c, a, b) for step, (a, b) in enumerate(_needed(edges, chunk))]
    return found


def _needed(edges: Edges, chunk: Chunk) -> list[tuple[int, int]]:
    """Keep the edges of a tree that lead to a target; ranks that start with the chunk get it from nobody."""
    wanted = set(chunk.targets).difference(chunk.sources)
    if len(wanted) == len(edges):
        return list(edges)
    found = []
    for source, target in reversed(edges):
        if target in wanted:
            found.append((source, target))
            if source not in chunk.sources:
                wanted.add(source)
    found.reverse()
    return found


class _Trees:
    """Trees of one algorithm; those of one root, turn and choice of links are made once."""

    def __init__(self, instance: Instance, classic: TreeClassic, usable: Sequence[Sequence[int]]) -> None:
        self._classic, self._usable, self._ways = classic, usable, ShortestWays(instance, usable)
        self._known: dict[tuple[int, int, int], Edges | None] = {}

    def edges(self, chunk: int, root: int, turn: int) -> Edges | None:
        """Build the tree of a chunk from its root to all ranks, each edge after the one into its source. ``turn``: how
        many chunks with its ends come before."""
        key = id(self._usable[chunk]), root, turn % self._period
        if key not in self._known:
            plan = self._scattered(root, key[2]) if self._classic.scattered else self._plan(root, key[2])
            self._known[key] = self._over_links(chunk, root, plan)
        return self._known[key]

    def turn_of(self, target: int) -> int:
        """Offset of a chunk's turn by its one target, so that every rank sends along each dimension first."""
        phases = self._classic.phases
        return sum(d.at(target) for d, _ in phases) % (2 * len(phases)) if self._classic.turned else 0

    @property
    def _period(self) -> int:
        """Number of turns after which trees repeat, or nearly."""
        count = len(self._classic.phases)
        return 2 * count * max(dimension.size for dimension, _ in self._classic.phases)

    def _plan(self, root: int, turn: int) -> Edges:
        """Plan who sends to whom, with or without a link between them."""
        phases, found, holders = list(self._classic.phases), [], [root]
        # Neighbours take their turns one after the other, along every dimension.
        turn += sum(dimension.at(root) for dimension, _ in phases)
        if self._classic.turned:
            first, turn = turn % len(phases), turn // len(phases)
            phases = phases[first:] + phases[:first]
        for dimension, shape in phases:
            fresh = []
            for holder in holders:
                for a, b in tree(dimension, shape, holder, turn):
                    found.append((a, b))
                    fresh.append(b)
            holders += fresh
        return tuple(found)

    def _scattered(self, root: int, turn: int) -> Edges:
        """Plan the edges from the root to one rank of its node, from there to others' nodes, and to all around. Where
        there are other nodes, the root itself has a turn; then one rank around hears it first and tells the others, so
        that the root sends nothing twice there."""
        *between, (inside, near) = self._classic.phases
        around = [inside.moved(root, (inside.at(root) + step) % inside.size) for step in range(1, inside.size)]
        group, turn = ([*around, root] if between else around), turn
        owner, turn = group[turn % len(group)], turn // len(group)
        found = [] if owner == root else [(root, owner)]
        owners = [owner]
        for dimension, shape in between:
            for a, b in tree(dimension, shape, owner, turn):
                found.append((a, b))
                owners.append(b)
        teller = around[turn % len(around)] if owner == root else owner
        if owner == root:
            found.append((root, teller))
        for holder in (teller, *owners[1:]):
            found += _without(tree(inside, near, holder, turn), root)
        return tuple(found)

    def _over_links(self, chunk: int, root: int, plan: Edges) -> Edges | None:
        """Replace the edges of a plan by links that a chunk may use; None where a rank cannot be reached."""
        found, has = [], {root}
        for source, target in plan:
            if target in has:
                continue
            way = self._ways.way(chunk, source, target)
            if not way:
                return None
            for a, b in pairwise(way):
                if b not in has:
                    has.add(b)
                    found.append((a, b))
        return tuple(found)


def _without(edges: Edges, rank: int) -> Edges:
    """Take a rank other than the root out of a tree: what it would pass on comes from where it would get it."""
    before = next((a for a, b in edges if b == rank), rank)
    return tuple((before if a == rank else a, b) for a, b in edges if b != rank)
