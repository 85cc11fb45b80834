r"""Step 1 of TACCL's pipeline: which links each chunk takes, as a mixed-integer program.

Source: [Shah23], section 5.5.1, equations 5.1 to 5.15; chunks that no two ranks add up.

Sets: chunks c of the instance, ranks r, links (src, r) in L_c; resources p, with the links that hold them; nodes. L_c
are the links that c may use between ranks that, as published, are on a way of fewest hops from its sources to one of
its targets (found after the relay map: links that the sketch closes to c do not count). Of a chunk with one target they
are the links of such ways themselves. None leads back to a source. occ and lat are the occupancy and the transfer time
of a link for a chunk; where messages have no latency they are equal to lat = alpha + beta of [Shah23].

Variables:
    time               continuous
    start[c,r]         continuous, 0 where c starts (5.3)
    is_sent[c,src,r]   binary
    is_util[src,r]     binary, of links through switches whose connections are wanted few or many
[Shah23]'s send[c,src,r] >= start[c,src] (5.4), which only occurs in start[c,r] = send + lat (5.5), is projected out.
Under symmetries there is one variable for each orbit instead of equations 5.12 to 5.14, and equal rows are there once:
see :mod:`loadmaster.models.collective.symmetry`.

Minimize time + gamma_s sum of is_util over links of switch s (5.1, 5.11; on the columns)
subject to
(5.2)   time >= start[c,r] for targets r of c - `end_last`
(5.5)   start[c,r] >= start[c,src] + lat - M (1 - is_sent[c,src,r]) - `arrive_after_leaving`
(5.6)   time >= sum of occ is_sent over all chunks and the links that hold p; with p a wire (5.6), a port of a switch
        (5.7, 5.8), a NIC - `carry_on_resources`
(5.9)   is_util[src,r] >= is_sent[c,src,r] - `use_what_is_sent_over`
(5.10)  is_util[src,r] <= sum of is_sent[c,src,r] over c - `use_only_then`
(5.15)  sum of is_sent[c,.] over links into a node that has targets of c, but no source, >= 1 - `enter_nodes`
and, "less important" in [Shah23] and left out there:
(a)     a target that is not a source gets c once: sum of is_sent[c,.,r] = 1; another rank at most once - `arrive_once`
(b)     is_sent[c,r,dst] <= sum of is_sent[c,.,r] where r is not a source - `send_what_arrived`
(c)     sum of is_sent[c,.,r] <= sum of is_sent[c,r,.] where r is not a target - `pass_on_what_arrived`

M is the longest that start[c,src] + lat can be: hops of c's longest way times its longest lat. gamma_s is +g where few
connections are wanted (uc-min), -g where many (uc-max), with g such that all links together weigh as much as one part
in a hundred of the longest way: it decides between routes of about equal times.

The program is a restriction (few hops, symmetric routes, one copy to each rank) of a relaxation (chunks share links at
no cost but the sum): its optimum is not a bound. For one see :mod:`loadmaster.models.collective.routing_bound`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import networkx as nx
import numpy as np

from loadmaster.errors import InputError
from loadmaster.models.collective.hops import Routes, hops_of
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.reach import NO_WAY, fewest_hops
from loadmaster.models.collective.symmetry import Aliases, IntArray, holders_of
from loadmaster.solvers.program import INFINITY, FloatArray, Program, ProgramBuilder


def way_links(instance: Instance) -> tuple[tuple[int, ...], ...]:
    """L_c of each chunk. A chunk of no bytes needs none. Raises InputError: a target cannot be reached."""
    found: dict[tuple[object, ...], tuple[int, ...]] = {}
    hops: dict[tuple[frozenset[int] | None, tuple[int, ...], bool], list[int]] = {}
    ways = []
    for index, chunk in enumerate(instance.chunks):
        key = (chunk.senders, chunk.sources, chunk.targets, bool(chunk.size_bytes))
        if key not in found:
            found[key] = _way_links(instance, index, hops)
        ways.append(found[key])
    return tuple(ways)


def _way_links(
    instance: Instance, index: int, hops: dict[tuple[frozenset[int] | None, tuple[int, ...], bool], list[int]]
) -> tuple[int, ...]:
    chunk, topology = instance.chunks[index], instance.topology
    if not chunk.size_bytes:
        return ()
    usable = instance.usable_links[index]

    def count(ranks: tuple[int, ...], backwards: bool) -> list[int]:
        key = (chunk.senders, ranks, backwards)
        if key not in hops:
            hops[key] = fewest_hops(instance, usable, ranks, backwards=backwards)
        return hops[key]

    out = count(chunk.sources, False)
    taken: set[int] = set()
    for target in chunk.targets:
        if out[target] == NO_WAY:
            raise InputError(
                f"chunks[{index}].targets", target, "cannot be reached", "Give links, or senders, that lead there."
            )
        back = count((target,), True)
        for k in usable:
            link = topology.links[k]
            if out[link.source] + 1 + back[link.target] == out[target]:
                taken.add(k)
    if len(chunk.targets) > 1:
        ranks = {rank for k in taken for rank in (topology.links[k].source, topology.links[k].target)}
        inner = ranks.difference(chunk.sources)
        taken = {k for k in usable if topology.links[k].source in ranks and topology.links[k].target in inner}
    return tuple(sorted(taken))


# All links of switches together weigh this share of the longest way.
_CONNECTIONS_SHARE = 0.01
_USED = 0.5


class RoutingVariables:
    """The variables of one program, and the sets and figures that its rows are written from.

    Attributes:
        chunk, link: c and the link of every is_sent [pairs].
        pairs: those of the first chunk of each orbit; rows are written for them.
        time, sent, start, util: columns: of time, of is_sent [pairs], of start by (chunk, rank), of is_util by link.
        connection_weight_ns: g, what one link of a switch weighs; 0 where no policy asks.
    """

    def __init__(self, b: ProgramBuilder, instance: Instance) -> None:
        self.instance = instance
        self.aliases = Aliases(instance)
        ways = way_links(instance)
        self.chunk = np.array([c for c, links in enumerate(ways) for _ in links], dtype=np.int64)
        self.link = np.array([k for links in ways for k in links], dtype=np.int64)
        orbit = self.aliases.of_links(self.chunk, self.link) if len(self.link) else self.link
        self.pairs = [p for p in range(len(self.link)) if self.aliases.chunks[self.chunk[p]] == self.chunk[p]]
        self.time = int(b.columns("time", (), cost=1.0, lower=0.0, upper=INFINITY))
        count = int(orbit.max()) + 1 if len(orbit) else 0
        self.sent = b.columns("is_sent", count, lower=0.0, upper=1.0, integer=True)[orbit]
        self.start = self._starts(b)
        self.connection_weight_ns, self.util = self._connections(b)

    @cached_property
    def longest_ns(self) -> list[int]:
        """Upper limit on each chunk's longest way: the most hops times the longest transfer."""
        topology = self.instance.topology
        found = [0] * len(self.instance.chunks)
        ranks: list[set[int]] = [set() for _ in found]
        for c, k in zip(self.chunk, self.link, strict=True):
            link = topology.links[k]
            ranks[c].update((link.source, link.target))
            found[c] = max(found[c], link.transfer_ns(self.instance.chunks[c].size_bytes))
        return [longest * max(0, len(around) - 1) for longest, around in zip(found, ranks, strict=True)]

    @cached_property
    def arriving(self) -> dict[tuple[int, int], dict[int, float]]:
        """Columns that bring each chunk that is the first of its orbit to each rank."""
        found: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
        for p in self.pairs:
            terms = found[int(self.chunk[p]), self.instance.topology.links[self.link[p]].target]
            terms[int(self.sent[p])] = terms.get(int(self.sent[p]), 0.0) + 1.0
        return dict(found)

    def _starts(self, b: ProgramBuilder) -> dict[tuple[int, int], int]:
        """Columns of start[c, r], where c may be sent to r and does not start there."""
        links = self.instance.topology.links
        pairs = sorted({(int(c), links[k].target) for c, k in zip(self.chunk, self.link, strict=True)})
        pairs = [(c, r) for c, r in pairs if r not in self.instance.chunks[c].sources]
        if not pairs:
            return {}
        chunk, rank = (np.array(of, dtype=np.int64) for of in zip(*pairs, strict=True))
        orbit: IntArray = self.aliases.of_ranks(chunk, rank)
        upper = np.zeros(int(orbit.max()) + 1)
        upper[orbit] = [self.longest_ns[c] for c, _ in pairs]
        columns = b.columns("start", len(upper), lower=0.0, upper=upper)[orbit]
        return {pair: int(column) for pair, column in zip(pairs, columns, strict=True)}

    def _connections(self, b: ProgramBuilder) -> tuple[float, dict[int, int]]:
        """Weight g, and the columns of is_util with their costs (5.11), where a policy asks for them."""
        links, wishes = self.instance.topology.links, self.instance.connections
        counted = []
        for k in sorted(set(self.link.tolist())):
            switch = links[k].switch
            if switch is not None and switch < len(wishes) and wishes[switch]:
                counted.append((k, wishes[switch]))
        if not counted:
            return 0.0, {}
        weight = _CONNECTIONS_SHARE * max(self.longest_ns) / len(counted)
        first, orbit = np.unique(self.aliases.links[[k for k, _ in counted]], return_inverse=True)
        cost = np.zeros(len(first))
        np.add.at(cost, orbit, [weight * wish for _, wish in counted])
        columns = b.columns("is_util", len(first), cost=cost, lower=0.0, upper=1.0, integer=True)[orbit]
        return weight, {k: int(column) for (k, _), column in zip(counted, columns, strict=True)}


@dataclass(frozen=True)
class Routing:
    """The program, its times in nanoseconds, and the way back from its points to routes."""

    program: Program
    variables: RoutingVariables

    def routes(self, values: FloatArray) -> tuple[tuple[int, ...], ...]:
        """Links that each chunk takes at a point [columns], ascending: a tree from its sources."""
        v = self.variables
        used = values[v.sent] > _USED
        found: list[list[int]] = [[] for _ in v.instance.chunks]
        for c, k in zip(v.chunk[used], v.link[used], strict=True):
            found[int(c)].append(int(k))
        return tuple(tuple(links) for links in found)

    def point(self, routes: Routes) -> FloatArray:
        """The point [columns] of known routes, for a solver to start from; not a solution if the program excludes them.
        ``InputError``: they are not trees from the sources to the targets."""
        v = self.variables
        topology, values = v.instance.topology, np.zeros(self.program.column_count)
        used = {(c, k) for c, links in enumerate(routes) for k in links}
        arrival: dict[tuple[int, int], int] = {}
        hops = hops_of(v.instance, routes)
        order = nx.DiGraph((before, index) for index, hop in enumerate(hops) for before in hop.after)
        order.add_nodes_from(range(len(hops)))
        busy = np.zeros(len(topology.resources))
        for hop in (hops[index] for index in nx.topological_sort(order)):
            link, size_bytes = topology.links[hop.link], v.instance.chunks[hop.chunk].size_bytes
            left = arrival.get((hop.chunk, link.source), 0)
            arrival[hop.chunk, link.target] = left + link.transfer_ns(size_bytes)
            busy[list(link.resources)] += link.occupancy_ns(size_bytes)
        for p, pair in enumerate(zip(v.chunk.tolist(), v.link.tolist(), strict=True)):
            values[v.sent[p]] = pair in used
            if pair in used and pair[1] in v.util:
                values[v.util[pair[1]]] = 1.0
        for at, arrival_ns in arrival.items():
            if at in v.start:
                values[v.start[at]] = arrival_ns
        ends = [arrival.get((c, t), 0) for c, chunk in enumerate(v.instance.chunks) for t in chunk.targets]
        values[v.time] = max(float(busy.max(initial=0.0)), *map(float, ends), 0.0)
        return values


def formulate(instance: Instance) -> Routing:
    """The program of an instance. Raises InputError: it combines, or a chunk cannot reach a target."""
    if instance.combines:
        raise InputError("chunks", "sums", "are not routed", "Route the reversed instance, or form 'gather'.")
    b = ProgramBuilder()
    v = RoutingVariables(b, instance)
    end_last(b, v)
    arrive_after_leaving(b, v)
    carry_on_resources(b, v)
    if v.util:
        use_what_is_sent_over(b, v)
        use_only_then(b, v)
    enter_nodes(b, v)
    arrive_once(b, v)
    send_what_arrived(b, v)
    pass_on_what_arrived(b, v)
    return Routing(b.build(), v)


def end_last(b: ProgramBuilder, v: RoutingVariables) -> None:
    """Add (5.2): the time is no less than the arrival at any target."""
    rows = _OnceRows(b, "end_last")
    for (c, r), column in v.start.items():
        if r in v.instance.chunks[c].targets:
            rows.add({v.time: 1.0, column: -1.0}, lower=0.0)
    rows.done()


def arrive_after_leaving(b: ProgramBuilder, v: RoutingVariables) -> None:
    """Add (5.5): a chunk arrives a transfer after it leaves."""
    rows = _OnceRows(b, "arrive_after_leaving")
    for p in v.pairs:
        c, link = int(v.chunk[p]), v.instance.topology.links[v.link[p]]
        lat = link.transfer_ns(v.instance.chunks[c].size_bytes)
        longest = v.longest_ns[c]
        terms = {v.start[c, link.target]: 1.0, int(v.sent[p]): -float(longest)}
        if (c, link.source) in v.start:
            terms[v.start[c, link.source]] = -1.0
        rows.add(terms, lower=float(lat - longest))
    rows.done()


def carry_on_resources(b: ProgramBuilder, v: RoutingVariables) -> None:
    """Add (5.6) to (5.8): the time covers what each resource carries."""
    rows = _OnceRows(b, "carry_on_resources")
    on_link: dict[int, list[int]] = defaultdict(list)
    for p, k in enumerate(v.link):
        on_link[int(k)].append(p)
    for links in holders_of(v.instance.topology):
        terms: dict[int, float] = {}
        for k in links:
            for p in on_link[k]:
                size_bytes = v.instance.chunks[v.chunk[p]].size_bytes
                occupancy_ns = v.instance.topology.links[k].occupancy_ns(size_bytes)
                column = int(v.sent[p])
                terms[column] = terms.get(column, 0.0) - occupancy_ns
        if terms:
            rows.add({v.time: 1.0, **terms}, lower=0.0)
    rows.done()


def use_what_is_sent_over(b: ProgramBuilder, v: RoutingVariables) -> None:
    """Add (5.9): a link over which a chunk is sent is used."""
    rows = _OnceRows(b, "use_what_is_sent_over")
    for p, k in enumerate(v.link):
        if int(k) in v.util:
            rows.add({v.util[int(k)]: 1.0, int(v.sent[p]): -1.0}, lower=0.0)
    rows.done()


def use_only_then(b: ProgramBuilder, v: RoutingVariables) -> None:
    """Add (5.10): only such links are used."""
    rows = _OnceRows(b, "use_only_then")
    sent: dict[int, dict[int, float]] = defaultdict(dict)
    for p, k in enumerate(v.link):
        column = int(v.sent[p])
        sent[int(k)][column] = sent[int(k)].get(column, 0.0) - 1.0
    for k, column in v.util.items():
        rows.add({column: 1.0, **sent[k]}, upper=0.0)
    rows.done()


def enter_nodes(b: ProgramBuilder, v: RoutingVariables) -> None:
    """Add (5.15): a chunk enters each node with targets but without a source."""
    topology = v.instance.topology
    rows = _OnceRows(b, "enter_nodes")
    entering: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for p in v.pairs:
        link = topology.links[v.link[p]]
        if topology.crosses(link):
            terms = entering[int(v.chunk[p]), topology.node_of[link.target]]
            terms[int(v.sent[p])] = terms.get(int(v.sent[p]), 0.0) + 1.0
    for (c, node), terms in entering.items():
        chunk = v.instance.chunks[c]
        starts, ends = ({topology.node_of[r] for r in ranks} for ranks in (chunk.sources, chunk.targets))
        if node in ends - starts:
            rows.add(terms, lower=1.0)
    rows.done()


def arrive_once(b: ProgramBuilder, v: RoutingVariables) -> None:
    """Add (a): a chunk gets to each target once, and to other ranks at most once."""
    rows = _OnceRows(b, "arrive_once")
    for (c, r), arriving in v.arriving.items():
        rows.add(arriving, lower=float(r in v.instance.chunks[c].targets), upper=1.0)
    rows.done()


def send_what_arrived(b: ProgramBuilder, v: RoutingVariables) -> None:
    """Add (b): a rank sends on what arrived."""
    rows = _OnceRows(b, "send_what_arrived")
    for p in v.pairs:
        c, source = int(v.chunk[p]), v.instance.topology.links[v.link[p]].source
        if source not in v.instance.chunks[c].sources:
            terms = dict(v.arriving.get((c, source), {}))
            terms[int(v.sent[p])] = terms.get(int(v.sent[p]), 0.0) - 1.0
            rows.add(terms, lower=0.0)
    rows.done()


def pass_on_what_arrived(b: ProgramBuilder, v: RoutingVariables) -> None:
    """Add (c): a rank that is not a target passes on what arrived."""
    rows = _OnceRows(b, "pass_on_what_arrived")
    leaving: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for p in v.pairs:
        terms = leaving[int(v.chunk[p]), v.instance.topology.links[v.link[p]].source]
        terms[int(v.sent[p])] = 1.0
    for (c, r), arriving in v.arriving.items():
        chunk = v.instance.chunks[c]
        if r not in chunk.targets and r not in chunk.sources:
            terms = dict(leaving.get((c, r), {}))
            for column, value in arriving.items():
                terms[column] = terms.get(column, 0.0) - value
            rows.add(terms, lower=0.0)
    rows.done()


class _OnceRows:
    """A block of rows in which each is there once: symmetries make many equal."""

    def __init__(self, builder: ProgramBuilder, name: str) -> None:
        self._rows = builder.row_list(name)
        self._seen: set[tuple[object, ...]] = set()

    def add(self, terms: dict[int, float], *, lower: float = -INFINITY, upper: float = INFINITY) -> None:
        key = (*sorted(terms.items()), lower, upper)
        if key not in self._seen:
            self._seen.add(key)
            self._rows.add(list(terms), list(terms.values()), lower=lower, upper=upper)

    def done(self) -> None:
        self._rows.done()
