"""Step 3 of TACCL's pipeline: which neighbours on a link travel together, and when every message starts, exactly.

Source: [Shah23], section 5.5.3, with the costs of :mod:`loadmaster.models.topologies.topology`.

Sets: hops h = (c, src, r) with what they wait for; the order of every resource, from step 2; stretches: hops of one
link that are neighbours in the orders of all its resources; runs: up to ``limit`` neighbours of a stretch. D_R is the
occupancy of the link by a message of run R, latency that of the link.

Variables, times in thousandths of the horizon:
    send[h]      start of the message that carries h, in [its earliest, its latest start under ``horizon_ns``]
    lat[h]       occupancy of that message
    together[R]  binary: the hops of run R are a message
    time         when all is done
[Shah23]'s is_together(c, o, r) is the sum of together[R] over the runs that hold both (pairwise variables would allow
nothing more, and make occupancy a product); its start[c, r] is send + lat + latency, and is not written out.

Minimize time (5.1) subject to
(5.2)  time >= start[c,r] for every hop - `end_after_every_hop`
(5.3)  start[c,r] = 0 where c is at the start: send >= 0, a bound on the column
(5.4)  send[h] >= start[c,src]: >= send[g] + lat[g] + latency of every g that h waits for - `send_what_has_arrived`
(5.16) hops of a message start together: send[i+1] <= send[i] + M (1 - sum of together[R] with i, i+1 in R) for
       neighbours i, i+1 of a stretch - `start_together`
(5.17) lat[h] = sum of D_R together[R] over runs with h - `occupy_for_the_whole_message`
(5.18) start = send + lat + latency: substituted
(5.19) send[i+1] >= send[i] + sum of D_R together[R] over runs that end with i, for neighbours of a stretch (when both
       travel in one message, no such run is chosen): without M - `follow_on_the_link`
(5.20) send[o] >= send[c] + lat[c] for neighbours c, o in the order of any resource that are not of one stretch:
(5.21) egress ports, ingress ports, NICs, shared wires - `follow_on_the_resource`
(R)    each hop of a stretch is in one chosen run - `travel_in_one_run`

M = latest start of i+1 - earliest start of i, from the longest paths before and after; every schedule of these orders
that ends by ``horizon_ns`` (as the heuristic's own does) keeps within it.

Hops of one orbit (:mod:`loadmaster.models.collective.hops`) share their columns, and rows are written for one of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from loadmaster.models.collective.plan import Send
from loadmaster.models.collective.taccl.ordering import Message, Ordered, alone, runs_within, sends, starts, time_ns
from loadmaster.solvers.program import FloatArray, IntArray, Program, ProgramBuilder
from loadmaster.solvers.solution import Solution

Term = tuple[ArrayLike, ArrayLike, ArrayLike]
# Columns count time in this part of the horizon: with binaries, the simplex method stalls on nanoseconds.
_UNITS = 1_000
# As many chunks in one message as TACCL's released code merges.
LIMIT = 6


class ContiguityVariables:
    """The variables of one program, and the sets and figures that its rows are written from.

    Attributes:
        own: the hops that have columns, one of each orbit; ``send`` and ``lat`` are the columns of these.
        unit_ns: what the columns count time in.
        stretches: those of two hops or more, one of each orbit.
        runs, lasts: the runs and D_R, in units; ``runs_with``: for each of ``own``, the runs with a hop of its orbit.
        earliest, latest: of the start of each hop's message, in units.
    """

    def __init__(
        self, b: ProgramBuilder, ordered: Ordered, limit: int, merging: frozenset[int], horizon_ns: int
    ) -> None:
        self.ordered, self.merging, self.horizon_ns = ordered, merging, horizon_ns
        self.unit_ns = max(1.0, horizon_ns / _UNITS)
        self.own = sorted(set(ordered.orbit_of))
        self._place = {h: i for i, h in enumerate(self.own)}
        self.stretches = self._find_stretches()
        self.runs = [run for stretch in self.stretches for run in runs_within(stretch, limit)]
        self.runs_with: dict[int, list[int]] = {h: [] for h in self.own}
        for i, run in enumerate(self.runs):
            for h in run:
                self.runs_with[ordered.orbit_of[h]].append(i)
        self.earliest, self.latest = self._windows()
        self.lasts = [self.occupancy_ns(run) / self.unit_ns for run in self.runs]
        self._add(b)

    def _add(self, b: ProgramBuilder) -> None:
        own = self.own
        low, high = ([of[h] for h in own] for of in (self.earliest, self.latest))
        single = [self.occupancy_ns([h]) / self.unit_ns for h in own]
        most = [max([one, *(self.lasts[i] for i in self.runs_with[h])]) for h, one in zip(own, single, strict=True)]
        self.send = b.columns("send", len(own), lower=low, upper=high)
        self.lat = b.columns("lat", len(own), lower=single, upper=most)
        self.together = b.columns("together", len(self.runs), upper=1, integer=True)
        self.time = int(b.columns("time", (), upper=self.horizon_ns / self.unit_ns, cost=self.unit_ns))

    def of(self, h: int) -> int:
        """The place of a hop among those that have columns."""
        return self._place[self.ordered.orbit_of[h]]

    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of neighbours in all stretches."""
        return [pair for stretch in self.stretches for pair in itertools.pairwise(stretch)]

    def continued(self, h: int) -> int | None:
        """The hop of the same link that comes just before on every resource and may travel with this one, if any."""
        ordered, hop = self.ordered, self.ordered.hops[h]
        # Hops of one link hold the same resources: where one hop alone comes before, it does so on all of them.
        if hop.link not in self.merging or len(ordered.before[h]) != 1:
            return None
        (earlier,) = ordered.before[h]
        other, chunks = ordered.hops[earlier], ordered.instance.chunks
        alike = other.link == hop.link and chunks[other.chunk].reduces == chunks[hop.chunk].reduces
        return earlier if alike else None

    def occupancy_ns(self, run: Sequence[int]) -> int:
        """Occupancy of the link by a message of these hops."""
        hops, instance = self.ordered.hops, self.ordered.instance
        link = instance.topology.links[hops[run[0]].link]
        return link.occupancy_ns(sum(instance.chunks[hops[h].chunk].size_bytes for h in run))

    def latency(self, h: int) -> float:
        """Latency of the hop's link, in units."""
        return self._latency_ns(h) / self.unit_ns

    def _latency_ns(self, h: int) -> int:
        return self.ordered.instance.topology.links[self.ordered.hops[h].link].latency_ns

    def _find_stretches(self) -> list[Message]:
        """Stretches of two hops or more; of an orbit of stretches the one whose first hop speaks for its orbit."""
        found: dict[int, list[int]] = {}
        head_of: dict[int, int] = {}
        for h in self.ordered.sequence:
            earlier = self.continued(h)
            head_of[h] = h if earlier is None else head_of[earlier]
            found.setdefault(head_of[h], []).append(h)
        return [tuple(hops) for head, hops in found.items() if len(hops) > 1 and self.ordered.orbit_of[head] == head]

    def _windows(self) -> tuple[list[float], list[float]]:
        """Earliest and latest start of each hop's message in any schedule that ends by the horizon, in units."""
        ordered, count = self.ordered, len(self.ordered.hops)
        occupancy = [self.occupancy_ns([h]) for h in range(count)]
        transfer = [occupancy[h] + self._latency_ns(h) for h in range(count)]
        earliest, tail = [0] * count, list(transfer)
        for h in ordered.sequence:
            for g in ordered.hops[h].after:
                earliest[h] = max(earliest[h], earliest[g] + transfer[g])
            for g in ordered.before[h]:
                earliest[h] = max(earliest[h], earliest[g] + (0 if self.continued(h) == g else occupancy[g]))
        for h in reversed(ordered.sequence):
            for g in ordered.hops[h].after:
                tail[g] = max(tail[g], transfer[g] + tail[h])
            for g in ordered.before[h]:
                tail[g] = max(tail[g], tail[h] + (0 if self.continued(h) == g else occupancy[g]))
        latest = [self.horizon_ns - ns for ns in tail]
        return [ns / self.unit_ns for ns in earliest], [ns / self.unit_ns for ns in latest]


@dataclass(frozen=True)
class Contiguity:
    """The program, whose objective is in nanoseconds, and the way back from its points to schedules."""

    program: Program
    variables: ContiguityVariables

    def schedule(self, solution: Solution) -> tuple[Send, ...]:
        """The sends of a solution, as early as the order allows. Raises ValueError: it has no incumbent."""
        v = self.variables
        chosen = solution.block(v.together)
        orbit_of = v.ordered.orbit_of
        joined = {
            (orbit_of[earlier], orbit_of[later])
            for run, value in zip(v.runs, chosen.tolist(), strict=True)
            if value > 0.5
            for earlier, later in itertools.pairwise(run)
        }
        messages: dict[int, list[int]] = {}
        head_of: dict[int, int] = {}
        for h in v.ordered.sequence:
            earlier = v.continued(h)
            joins = earlier is not None and (orbit_of[earlier], orbit_of[h]) in joined
            head_of[h] = head_of[earlier] if joins and earlier is not None else h
            messages.setdefault(head_of[h], []).append(h)
        return sends(v.ordered, [tuple(hops) for hops in messages.values()])

    def start(self, messages: Sequence[Message] | None = None) -> tuple[IntArray, FloatArray]:
        """Columns and values of the schedule with these messages; None: with every hop alone. A feasible point where
        the messages are runs of their stretches and all ends by the horizon."""
        v = self.variables
        messages = alone(v.ordered) if messages is None else messages
        begins: dict[int, int] = {}
        lasts: dict[int, int] = {}
        for message, start_ns in zip(messages, starts(v.ordered, messages), strict=True):
            begins |= dict.fromkeys(message, start_ns)
            lasts |= dict.fromkeys(message, v.occupancy_ns(message))
        chosen = set(messages)
        values = [
            *(begins[h] / v.unit_ns for h in v.own),
            *(lasts[h] / v.unit_ns for h in v.own),
            *(run in chosen for run in v.runs),
            time_ns(v.ordered, messages) / v.unit_ns,
        ]
        return np.arange(self.program.column_count), np.array(values, dtype=np.float64)


def formulate(
    ordered: Ordered,
    *,
    limit: int = LIMIT,
    merging: frozenset[int] | None = None,
    horizon_ns: int | None = None,
) -> Contiguity:
    """The program of ordered hops, of which a message has at most ``limit`` chunks.

    Args:
        merging: links on which chunks may travel together; None: all where a message costs something (message_ns > 0).
        horizon_ns: only schedules that end by then are looked for; None: when the order ends with every hop alone.
    """
    if merging is None:
        merging = frozenset(k for k, link in enumerate(ordered.instance.topology.links) if link.message_ns)
    if horizon_ns is None:
        horizon_ns = time_ns(ordered, alone(ordered))
    b = ProgramBuilder()
    v = ContiguityVariables(b, ordered, limit, merging, horizon_ns)
    end_after_every_hop(b, v)
    send_what_has_arrived(b, v)
    start_together(b, v)
    occupy_for_the_whole_message(b, v)
    follow_on_the_link(b, v)
    follow_on_the_resource(b, v)
    travel_in_one_run(b, v)
    return Contiguity(b.build(), v)


def end_after_every_hop(b: ProgramBuilder, v: ContiguityVariables) -> None:
    """Add (5.2): the time is no less than the arrival of any hop."""
    row, latency = np.arange(len(v.own)), [v.latency(h) for h in v.own]
    terms: list[Term] = [(row, v.time, 1), (row, v.send, -1), (row, v.lat, -1)]
    b.rows("end_after_every_hop", len(row), terms, lower=latency)


def send_what_has_arrived(b: ProgramBuilder, v: ContiguityVariables) -> None:
    """Add (5.4): a hop starts once all it waits for has arrived."""
    pairs = {(v.of(h), v.of(g)): v.latency(g) for h in v.own for g in v.ordered.hops[h].after}
    _follow(b, v, "send_what_has_arrived", pairs)


def start_together(b: ProgramBuilder, v: ContiguityVariables) -> None:
    """Add (5.16): hops of one message start together."""
    rows = b.row_list("start_together")
    for earlier, later in v.pairs():
        big = v.latest[later] - v.earliest[earlier]
        both = [int(v.together[i]) for i, run in enumerate(v.runs) if earlier in run and later in run]
        columns = [int(v.send[v.of(later)]), int(v.send[v.of(earlier)]), *both]
        rows.add(columns, [1.0, -1.0, *[big] * len(both)], upper=big)
    rows.done()


def occupy_for_the_whole_message(b: ProgramBuilder, v: ContiguityVariables) -> None:
    """Add (5.17): a hop occupies its link for its whole message."""
    rows = b.row_list("occupy_for_the_whole_message")
    for h, lat in zip(v.own, v.lat.tolist(), strict=True):
        runs = v.runs_with[h]
        if runs:
            columns = [lat, *(int(v.together[i]) for i in runs)]
            rows.add(columns, [-1.0, *(v.lasts[i] for i in runs)], lower=0.0, upper=0.0)
    rows.done()


def follow_on_the_link(b: ProgramBuilder, v: ContiguityVariables) -> None:
    """Add (5.19): messages of one stretch follow one another."""
    rows = b.row_list("follow_on_the_link")
    for earlier, later in v.pairs():
        ending = [i for i, run in enumerate(v.runs) if run[-1] == earlier]
        columns = [int(v.send[v.of(later)]), int(v.send[v.of(earlier)])]
        columns += [int(v.together[i]) for i in ending]
        rows.add(columns, [1.0, -1.0, *(-v.lasts[i] for i in ending)], lower=0.0)
    rows.done()


def follow_on_the_resource(b: ProgramBuilder, v: ContiguityVariables) -> None:
    """Add (5.20) and (5.21): neighbours on a resource that are not of one stretch follow one another."""
    before = v.ordered.before
    pairs = {(v.of(h), v.of(g)): 0.0 for h in v.own for g in before[h] if v.continued(h) != g}
    _follow(b, v, "follow_on_the_resource", pairs)


def travel_in_one_run(b: ProgramBuilder, v: ContiguityVariables) -> None:
    """Add (R): each hop of a stretch travels in one chosen run."""
    members = [h for h in v.own if v.runs_with[h]]
    rows = b.row_list("travel_in_one_run")
    for h in members:
        columns = [int(v.together[i]) for i in v.runs_with[h]]
        rows.add(columns, [1.0] * len(columns), lower=1.0, upper=1.0)
    rows.done()


def _follow(b: ProgramBuilder, v: ContiguityVariables, name: str, pairs: Mapping[tuple[int, int], float]) -> None:
    """Add rows for (later, earlier) -> latency: the later starts after the earlier one's occupancy and that latency."""
    later, earlier = (np.array([pair[end] for pair in pairs], dtype=np.int64) for end in (0, 1))
    row = np.arange(len(pairs))
    terms: list[Term] = [(row, v.send[later], 1), (row, v.send[earlier], -1), (row, v.lat[earlier], -1)]
    b.rows(name, len(pairs), terms, lower=list(pairs.values()))
