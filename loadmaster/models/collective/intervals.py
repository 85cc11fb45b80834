"""Scheduling with intervals: when every hop starts, and, where there is a choice, which way every chunk goes.

With each chunk's links limited to those of its route this is exact scheduling of fixed routes in any order; with all
its links it is routing and scheduling at once. Every message carries one chunk. For solvers that know intervals.
Source: [Shah23], section 5.5 (the variables and what a schedule must keep to); its two steps and the orders between
them are one here, since intervals need no order fixed beforehand.

Sets: chunks c of at least one byte; links k = (u, v) that c may use and over which, by shortest times, it can still be
where it must be by ``horizon_ns``. A chunk that is copied goes away from its sources, each other rank getting it once.
A sum goes the other way, each rank sending its part once: what holds of links into ranks holds of links out of them.

Variables, all whole numbers:
    used[c,k]   binary, is_sent of [Shah23]: c goes over k; presence of the interval
    send[c,k]   when, in the window that shortest times and the horizon leave
    start[c,r]  when c is at r (of a sum: when r's part is complete)
    time        in [bound_ns, horizon_ns]

Minimize time (5.1) subject to
(5.2)  time >= start[c,r] for every target r - `end_after_every_target`
(5.3)  start[c,r] = 0 at the sources of what is not a sum: a bound on the column
(5.4)  used[c,k] -> send[c,k] >= start[c,u] - `send_what_has_arrived`
(5.5)  used[c,k] -> start[c,v] >= send[c,k] + transfer of k - `arrive_after_the_transfer`
(J1)   every target but the sources is entered once, every other rank at most once (of a sum: every source but the
       target is left once) - `receive_once`
(J2)   a rank that is neither source nor target passes on all it gets, and gets all it passes on - `relay_with_reason`
(J3)   [send, send + occupancy) of the used hops of a resource do not overlap (5.6 to 5.8 made exact, 5.19 to 5.21
       without an order) - `take_turns`

Implications are rows with the smallest M that makes them empty: the width of the columns' own windows. A transfer of no
time counts as one nanosecond, so that no chunk turns in circles. Hops of one orbit
(:mod:`loadmaster.models.collective.hops`) share their columns; those that collide are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx as nx
import numpy as np

from loadmaster.models.collective.hops import Routes, colliding, expect_one_target, orbits, rank_orbits
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send
from loadmaster.solvers.program import FloatArray, IntArray, Program, ProgramBuilder
from loadmaster.solvers.solution import Solution

Pair = tuple[int, int]


class IntervalVariables:
    """The variables of one program, and the sets and figures that its rows are written from.

    Attributes:
        windows: by (chunk, link) considered, earliest and latest start.
        pairs: the (chunk, link) but those that collide; ``own`` of them have columns, the others are their images.
        place: of each of ``pairs``, where its columns are in those of ``own``.
        used, send, start: the columns; ``used`` and ``send`` of ``own``, ``start`` of ``own_ranks``, (chunk, rank).
        latest_start: the upper bound of each column of ``start``.
    """

    def __init__(self, b: ProgramBuilder, instance: Instance, horizon_ns: int, bound_ns: int, links: Routes) -> None:
        self.instance = instance
        self.horizon_ns, self.bound_ns = horizon_ns, bound_ns
        self.windows: dict[Pair, tuple[int, int]] = {}
        for index, chunk in enumerate(instance.chunks):
            if chunk.size_bytes:
                self.windows |= self._windows_of(index, links[index])
        self._share_columns()
        self._add(b)

    def _windows_of(self, c: int, links: Sequence[int]) -> dict[Pair, tuple[int, int]]:
        """Earliest and latest start of every hop that a schedule could have: none else gets columns."""
        chunk, topology = self.instance.chunks[c], self.instance.topology
        graph = nx.DiGraph()
        graph.add_nodes_from(range(topology.rank_count))
        kept = []
        for k in links:
            link = topology.links[k]
            if link.source in chunk.targets if chunk.reduces else link.target in chunk.sources:
                continue
            kept.append(k)
            graph.add_edge(link.source, link.target, ns=self.transfer_ns(c, k))
        head = nx.multi_source_dijkstra_path_length(graph, set(chunk.sources), weight="ns")
        tail = nx.multi_source_dijkstra_path_length(graph.reverse(copy=False), set(chunk.targets), weight="ns")
        found = {}
        for k in kept:
            link = topology.links[k]
            if link.source in head and link.target in tail:
                latest = self.horizon_ns - self.transfer_ns(c, k) - tail[link.target]
                if head[link.source] <= latest:
                    found[c, k] = (head[link.source], latest)
        return found

    def _share_columns(self) -> None:
        """Orbits, where the links considered are closed under the symmetries; every hop alone where they are not."""
        pairs = sorted(self.windows)
        orbit_of = orbits(self.instance, pairs)
        alone = orbit_of is None
        if orbit_of is not None:
            lost = colliding(self.instance, pairs, orbit_of)
            kept = [i for i, orbit in enumerate(orbit_of) if orbit not in lost]
            pairs, orbit_of = [pairs[i] for i in kept], tuple(orbit_of[i] for i in kept)
        else:
            orbit_of = tuple(range(len(pairs)))
        own = sorted(set(orbit_of))
        column = {orbit: i for i, orbit in enumerate(own)}
        self.pairs: tuple[Pair, ...] = tuple(pairs)
        self.place = [column[orbit] for orbit in orbit_of]
        first: dict[int, Pair] = {}
        for pair, i in zip(self.pairs, self.place, strict=True):
            first.setdefault(i, pair)
        self.own = [first[i] for i in range(len(own))]
        # Ranks where each chunk may be; shared like the hops.
        links = self.instance.topology.links
        ends = {(c, rank) for c, k in self.pairs for rank in (links[k].source, links[k].target)}
        sized = [(c, chunk) for c, chunk in enumerate(self.instance.chunks) if chunk.size_bytes]
        ends |= {(c, rank) for c, chunk in sized for rank in (*chunk.sources, *chunk.targets)}
        places = sorted(ends)
        shared = range(len(places)) if alone else rank_orbits(self.instance, places)
        self._rank_orbit = dict(zip(places, shared, strict=True))
        self.own_ranks = [pair for i, pair in enumerate(places) if self._rank_orbit[pair] == i]

    def _add(self, b: ProgramBuilder) -> None:
        count, horizon, chunks = len(self.own), self.horizon_ns, self.instance.chunks
        low, high = ([self.windows[pair][end] for pair in self.own] for end in (0, 1))
        self.used = b.columns("used", count, upper=1, integer=True)
        self.send = b.columns("send", count, lower=low, upper=high, integer=True)
        latest = [0 if r in chunks[c].sources and not chunks[c].reduces else horizon for c, r in self.own_ranks]
        self.start = b.columns("start", len(latest), upper=latest, integer=True)
        self.time = int(b.columns("time", (), lower=self.bound_ns, upper=horizon, cost=1, integer=True))
        by_orbit = {self._rank_orbit[pair]: int(self.start[i]) for i, pair in enumerate(self.own_ranks)}
        self._start_of = {pair: by_orbit[orbit] for pair, orbit in self._rank_orbit.items()}
        self.latest_start = dict(zip(self.start.tolist(), latest, strict=True))

    @cached_property
    def goals(self) -> list[Pair]:
        """Pairs (chunk, target) with columns of their own, of chunks that are not there already."""
        return [(c, r) for c, r in self.own_ranks if r in self.instance.chunks[c].targets]

    def at(self, c: int, rank: int) -> int:
        """Column of start[c, rank]."""
        return self._start_of[c, rank]

    def around(self, *, into: bool) -> dict[Pair, list[int]]:
        """Places of the hops into, or out of, each (chunk, rank) with columns of its own."""
        links = self.instance.topology.links
        found: dict[Pair, list[int]] = defaultdict(list)
        for (c, k), place in zip(self.pairs, self.place, strict=True):
            found[c, links[k].target if into else links[k].source].append(place)
        return {pair: found.get(pair, []) for pair in self.own_ranks}

    def transfer_ns(self, c: int, k: int) -> int:
        """Transfer time of a link for a chunk; at least one nanosecond."""
        return max(1, self.instance.topology.links[k].transfer_ns(self.instance.chunks[c].size_bytes))


@dataclass(frozen=True)
class IntervalSchedule:
    """The program, whose objective is in nanoseconds, and the way back from its points to schedules."""

    program: Program
    variables: IntervalVariables

    @property
    def interval_count(self) -> int:
        """Intervals of the program: the measure of how hard it is."""
        return len(self.variables.own)

    def schedule(self, solution: Solution) -> tuple[Send, ...]:
        """The sends of a solution. Raises ValueError: the solution has no incumbent."""
        v = self.variables
        used, send = solution.block(v.used).tolist(), solution.block(v.send).tolist()
        found = []
        for (c, k), place in zip(v.pairs, v.place, strict=True):
            if used[place] > 0.5:
                link = v.instance.topology.links[k]
                reduces = v.instance.chunks[c].reduces
                found.append(Send(round(send[place]), link.source, link.target, (c,), reduces))
        return tuple(sorted(found, key=lambda s: (s.start_ns, s.source, s.target)))

    def start_from(self, sends: Sequence[Send]) -> tuple[IntArray, FloatArray]:
        """Columns and values of a schedule: a feasible point if its messages carry one chunk each, it ends by the
        horizon, and it has the symmetries of the instance; otherwise a hint."""
        v = self.variables
        between, program = v.instance.topology.link_between, self.program
        values = program.lower.copy()
        values[v.used] = 0.0
        place = dict(zip(v.pairs, v.place, strict=True))
        for send in sends:
            k = between[send.source, send.target]
            for c in send.chunks:
                if (c, k) in place:
                    values[v.used[place[c, k]]] = 1.0
                    values[v.send[place[c, k]]] = send.start_ns
                    at = v.at(c, send.target)
                    values[at] = max(values[at], send.start_ns + v.transfer_ns(c, k))
        values[v.time] = max([v.bound_ns, *(values[v.at(c, r)] for c, r in v.goals)])
        return np.arange(program.column_count), np.clip(values, program.lower, program.upper)


def formulate(
    instance: Instance, *, horizon_ns: int, bound_ns: int = 0, routes: Routes | None = None
) -> IntervalSchedule:
    """The program of an instance, for schedules that end by ``horizon_ns``; it is proved that none ends before
    ``bound_ns``. ``routes``: per chunk, the links it may use; None: all that it may. ``InputError``: a sum has several
    targets."""
    for index, chunk in enumerate(instance.chunks):
        expect_one_target(index, chunk)
    b = ProgramBuilder()
    links = instance.usable_links if routes is None else routes
    v = IntervalVariables(b, instance, horizon_ns, min(bound_ns, horizon_ns), links)
    end_after_every_target(b, v)
    send_what_has_arrived(b, v)
    arrive_after_the_transfer(b, v)
    receive_once(b, v)
    relay_with_reason(b, v)
    take_turns(b, v)
    return IntervalSchedule(b.build(), v)


def end_after_every_target(b: ProgramBuilder, v: IntervalVariables) -> None:
    """Add (5.2): the time is no less than the start at any target."""
    columns = sorted({v.at(c, r) for c, r in v.goals})
    row = np.arange(len(columns))
    b.rows("end_after_every_target", len(row), [(row, v.time, 1), (row, columns, -1)], lower=0)


def send_what_has_arrived(b: ProgramBuilder, v: IntervalVariables) -> None:
    """Add (5.4): a chunk leaves a rank once it is there."""
    rows = b.row_list("send_what_has_arrived")
    for i, (c, k) in enumerate(v.own):
        at = v.at(c, v.instance.topology.links[k].source)
        big = float(max(0, v.latest_start[at] - v.windows[c, k][0]))
        rows.add([int(v.send[i]), at, int(v.used[i])], [1.0, -1.0, -big], lower=-big)
    rows.done()


def arrive_after_the_transfer(b: ProgramBuilder, v: IntervalVariables) -> None:
    """Add (5.5): a chunk is at a rank once its transfer has ended."""
    rows = b.row_list("arrive_after_the_transfer")
    for i, (c, k) in enumerate(v.own):
        at, transfer = v.at(c, v.instance.topology.links[k].target), v.transfer_ns(c, k)
        big = float(v.windows[c, k][1] + transfer)
        rows.add([at, int(v.send[i]), int(v.used[i])], [1.0, -1.0, -big], lower=transfer - big)
    rows.done()


def receive_once(b: ProgramBuilder, v: IntervalVariables) -> None:
    """Add (J1): a chunk enters each target once, and every other rank at most once."""
    into, out = v.around(into=True), v.around(into=False)
    rows = b.row_list("receive_once")
    for c, r in v.own_ranks:
        chunk = v.instance.chunks[c]
        starts, ends = chunk.tree_ends
        if r in starts:
            continue
        places = (out if chunk.reduces else into)[c, r]
        columns = [int(v.used[i]) for i in places]
        rows.add(columns, [1.0] * len(columns), lower=1.0 if r in ends else 0.0, upper=1.0)
    rows.done()


def relay_with_reason(b: ProgramBuilder, v: IntervalVariables) -> None:
    """Add (J2): ranks between pass on all they get, and get all they pass on."""
    into, out = v.around(into=True), v.around(into=False)
    rows = b.row_list("relay_with_reason")
    for c, r in v.own_ranks:
        chunk = v.instance.chunks[c]
        if r in chunk.sources or r in chunk.targets:
            continue
        for these, those in ((into[c, r], out[c, r]), (out[c, r], into[c, r])):
            for i in these:
                columns = [int(v.used[i]), *(int(v.used[j]) for j in those)]
                rows.add(columns, [1.0] + [-1.0] * len(those), upper=0.0)
    rows.done()


def take_turns(b: ProgramBuilder, v: IntervalVariables) -> None:
    """Add (J3): the used hops of a resource do not overlap."""
    topology, chunks = v.instance.topology, v.instance.chunks
    lasts = [topology.links[k].occupancy_ns(chunks[c].size_bytes) for c, k in v.own]
    intervals = b.intervals.add(v.send, lasts, presence=v.used)
    sharing: dict[int, list[int]] = defaultdict(list)
    for (_, k), place in zip(v.pairs, v.place, strict=True):
        for resource in topology.links[k].resources:
            sharing[resource].append(int(intervals[place]))
    for group in sorted({tuple(sorted(places)) for places in sharing.values() if len(places) > 1}):
        b.intervals.keep_apart(group)
