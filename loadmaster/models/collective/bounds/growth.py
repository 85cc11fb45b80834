"""The growth engine: how soon can a rank, or a node, have a number of units?

A *unit* is something that ranks hand on and keep: a chunk, or the part of a rank in a sum. tau[v, j] is to be a time
before which no schedule has j units on rank v. Messages carry at most what their sender holds, several units in one
message if the schedule likes; so there is no count of messages here but the one that follows:

(1) tau[v, j] = 0 for the units that v starts with. The others arrive over machines (resources that together hold every
    link into v, each link counted at one of them); v has j units once its machines have delivered j less the first
    ones: tau[v, .] is the sorted union of phi[m, .] + after[m] over its machines m.
(2) A machine delivers one message after another. Before the i-th unit is delivered the last message, of n units over
    link k from rank w, was sent: after the machine had delivered i - n; after w held n; and, if all senders of the
    machine are in one node U, after U as a whole had i units, since units on one machine are all different:
        phi[m, i] = min over k, n of max(phi[m, i-n], tau[w, n] + before[k], tau[U, i] + before[k]) + occupancy[k](n)
    n is at most the number of units that may use k at all (a sketch's relays), i their sum over the links of m.
(3) tau[U, j] is (1) and (2) for the machines of the links into node U. What v has, U has; beyond what U started with,
    the last unit to enter U has yet to come from an entry of U to v: tau[v, j] >= tau[U, j] + distance of v from the
    nearest entry, and from nowhere else.

By induction over its messages in the order of time, every schedule has v hold j units at tau[v, j] or later, for any
solution of these equations: (1) and (2) follow a message to what must have been there when it was sent. An iteration
from above finds the largest.

Time runs either way. Forwards, links are followed from source to target, a unit is on its way for latency after its
occupancy. Backwards, from the end, tau[w, j] is the least time left in which what w has may serve j units (targets, or
chunks to be handed in); links are followed from target to source, and the latency comes before the occupancy.

Units cost bytes each (chunks that are copied) or nothing beyond the first in a message (parts of one sum, forwards;
targets of one chunk, backwards).

**Divisible chunks.** Where chunks may be cut into any number of parts, let a unit be u bytes, and let "to have j units"
mean to have more than (j - 1) u bytes. With amounts in place of numbers, all of the above holds: a message of x bytes,
(n - 1) u < x <= n u, brings a machine from i units to no less than i - n before it; machines that bring x_m bytes each
bring more than the sum of their units less one each, and so the sorted union of (1) counts each at its first byte. Only
a message of n units costs no more than (n - 1) u + 1 bytes. What this loses with every message, bytes make good:
(4) phi[m, i] >= the first start on m + message_ns + the bytes of i units.

**Example.** Two chunks of 100 bytes at rank 0, wanted by ranks 1 and 2 of a line 0 -> 1 -> 2, where a message costs
100 ns and a byte 1 ns; a message of one chunk takes 200 ns, one of both 300. Rank 1: tau[1, 1] = 200; its second chunk
comes at 300 with the first, or at 200 + 200 after it: tau[1, 2] = 300. Rank 2: tau[2, 1] = tau[1, 1] + 200 = 400; both
are there at tau[1, 2] + 300 = 600 in one message, or at max(400, tau[1, 1]) + 200 = 600 in two: tau[2, 2] = 600. So no
schedule is faster than 600 ns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from loadmaster.models.collective.bounds.network import NEVER, BoolArray, IntArray, Machine, Network, numbered
from loadmaster.models.topologies.topology import Link

# Costs of links are rounded to six decimals before they are rounded up; sums of quotients stay within this.
_HAIR_NS = 1e-3


@dataclass(frozen=True)
class Units:
    """The units that grow: where they start, what they cost, which links they may use.

    Attributes:
        first: [ranks] units that each rank starts with (backwards: that end there).
        message_bytes: [units] what a message of 1, 2 .. units carries at least.
        partial: the last unit of a message, or of a rank, may be there in part (divisible chunks).
        limit: [links] how many units may use each link; 0 closes it.
        backwards: time runs from the end.
    """

    first: IntArray
    count: int
    message_bytes: IntArray
    unit_bytes: int
    partial: bool
    limit: IntArray
    backwards: bool


def entered_nodes(network: Network, units: Units, wanting: BoolArray) -> Iterator[tuple[int, list[int]]]:
    """One node of each look that all units start outside of, with its ranks that need all of them, if any do."""
    for node in network.typical_nodes:
        ranks = network.topology.ranks_of_node[node]
        together = [r for r in ranks if wanting[r]]
        if together and not units.first[list(ranks)].any():
            yield node, together


@dataclass(frozen=True)
class _Row:
    """The equation (2) for links of equal costs, to one machine, from senders of one colour."""

    machine: int
    sender: int
    occupancy_ns: IntArray
    before_ns: int
    node: int
    crosses: bool
    latency_ns: int


@dataclass
class _Table:
    """Rows of (2), by machine; per machine the latency after it, how many units may use it, and [units] time by (4)."""

    rows: list[_Row] = field(default_factory=list)
    after_ns: list[int] = field(default_factory=list)
    cap: list[int] = field(default_factory=list)
    together_ns: list[IntArray] = field(default_factory=list)

    @cached_property
    def _arrays(self) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
        rows = self.rows
        machine, sender, node = (np.array(x) for x in zip(*((r.machine, r.sender, r.node) for r in rows), strict=True))
        occupancy, before = np.array([r.occupancy_ns for r in rows]), np.array([[r.before_ns] for r in rows])
        return machine, sender, node, occupancy, before

    def arrivals(self, tau: IntArray, of_node: IntArray, first_ns: int = 0) -> IntArray:
        """Times when each machine may have brought 1, 2 .. units, [machines, units]; none before ``first_ns``."""
        machine, sender, node, occupancy, before = self._arrays
        width = tau.shape[1]
        sent = np.minimum(tau[sender, 1:] + before, NEVER)
        there = np.where(node[:, None] >= 0, of_node[node] + before, 0)
        starts = np.flatnonzero(np.r_[True, machine[1:] != machine[:-1]])
        phi = np.full((len(starts), width), NEVER, dtype=np.int64)
        phi[:, 0] = first_ns
        first = np.maximum(np.minimum.reduceat(sent[:, 0], starts), first_ns)
        together = np.minimum(first[:, None] + np.array(self.together_ns), NEVER)
        rows = phi[machine]
        for i in range(1, width):
            # Messages of n = 1 .. i units, when the machine had delivered i - n.
            begin = np.maximum(rows[:, i - 1 :: -1], sent[:, :i])
            end = np.maximum(begin, there[:, i : i + 1]) + occupancy[:, :i]
            alone = np.minimum(np.minimum.reduceat(end.min(axis=1), starts), NEVER)
            phi[:, i] = np.maximum(alone, together[:, i - 1])
            rows[:, i] = phi[machine, i]
        arrived = np.minimum(phi[:, 1:] + np.array(self.after_ns)[:, None], NEVER)
        return np.where(np.arange(1, width) <= np.array(self.cap)[:, None], arrived, NEVER)


# A kind of links of a machine: (latency, message cost, GB/s, crosses, limit, colours of sender and of its node).
_Kind = tuple[int, int, float, bool, int, int, int]
# A machine: whether all its senders are in one node, and its kinds of links.
_Look = tuple[bool, tuple[_Kind, ...]]


class Growth:
    """Least times tau of all ranks and numbers of units: ``tau[colour_of[rank], j]``. Ranks of one colour have the same
    equations, and so have nodes: colours are refined until their machines, and the colours at the other ends, are the
    same."""

    def __init__(self, network: Network, units: Units) -> None:
        self._network, self._units = network, units
        nodes = network.topology.ranks_of_node
        into = network.exits if units.backwards else network.entries
        into_node = network.node_exits if units.backwards else network.node_entries
        self.colour_of = [int(f) for f in units.first]
        self._node_colour = dict.fromkeys(nodes, 0)
        seen = (0, 0)
        while True:
            looks = [tuple(sorted(self._look(m) for m in machines)) for machines in into]
            of_node = {node: tuple(sorted(self._look(m) for m in into_node[node])) for node in nodes}
            inside = {node: tuple(sorted(self.colour_of[r] for r in ranks)) for node, ranks in nodes.items()}
            homes = [self._node_colour[node] for node in network.topology.node_of]
            self.colour_of = numbered(list(zip(self.colour_of, homes, looks, strict=True)))
            fresh = numbered([(self._node_colour[node], inside[node], of_node[node]) for node in nodes])
            self._node_colour = dict(zip(nodes, fresh, strict=True))
            count = (len(set(self.colour_of)), len(set(fresh)))
            if count == seen:
                break
            seen = count
        self._table = _Table()
        first = {colour: rank for rank, colour in reversed(list(enumerate(self.colour_of)))}
        first_node = {colour: node for node, colour in reversed(self._node_colour.items())}
        self._ranks = [first[colour] for colour in range(len(first))]
        self._nodes = [first_node[colour] for colour in range(len(first_node))]
        self._machines_of_colour = [self._add(self._table, into[r], inside_node=True) for r in self._ranks]
        self._machines_of_node = [self._add(self._table, into_node[node], inside_node=False) for node in self._nodes]
        self._solve()

    def time_ns(self, rank: int, count: int) -> int:
        """Earliest time at which a rank may have that many units."""
        return int(self.tau[self.colour_of[rank], count])

    def node_time_ns(self, node: int, count: int) -> int:
        """Earliest time at which the ranks of a node may have that many different units together."""
        return int(self._of_node[self._node_colour[node], count])

    def _look(self, machine: Machine) -> _Look:
        """Describe a machine in the colours of this round: whether one node sends over it, and its kinds of links."""
        topology, limit, kinds, nodes = self._network.topology, self._units.limit, set(), set()
        for k in machine.links:
            if limit[k]:
                link = topology.links[k]
                sender = link.target if self._units.backwards else link.source
                node = topology.node_of[sender]
                nodes.add(node)
                colours = (self.colour_of[sender], self._node_colour[node])
                costs = link.latency_ns, link.message_ns, link.gbps, topology.crosses(link)
                kinds.add((*costs, int(limit[k]), *colours))
        return len(nodes) == 1, tuple(sorted(kinds))

    def arrivals_ns(self, machine: Machine, first_ns: int = 0) -> IntArray:
        """Times when a machine may have brought a rank 1, 2 .. new units, [units]; none starts before ``first_ns``."""
        table = _Table()
        self._add(table, (machine,), inside_node=True)
        if not table.rows:
            return np.full(self._units.count, NEVER, dtype=np.int64)
        found: IntArray = table.arrivals(self.tau, self._of_node, first_ns)[0]
        return found

    def _add(self, table: _Table, machines: Sequence[Machine], *, inside_node: bool) -> list[int]:
        """Rows for the machines of a rank (``inside_node``: where senders are in one node, it counts) or of a node."""
        units, links, found = self._units, self._network.topology.links, []
        for machine in machines:
            alone, kinds = self._look(machine)
            if not kinds:
                continue
            found.append(len(table.after_ns))
            table.cap.append(min(units.count, sum(int(units.limit[k]) for k in machine.links)))
            table.after_ns.append(0 if units.backwards else min(latency_ns for latency_ns, *_ in kinds))
            fastest, cheapest = max(gbps for _, _, gbps, *_ in kinds), min(message_ns for _, message_ns, *_ in kinds)
            table.together_ns.append(cheapest + np.ceil(units.message_bytes / fastest - _HAIR_NS).astype(np.int64))
            examples = {(k.latency_ns, k.message_ns, k.gbps): k for k in (links[j] for j in machine.links)}
            for latency_ns, message_ns, gbps, crosses, limit, sender, node in kinds:
                occupancy = self._occupancy(examples[latency_ns, message_ns, gbps], limit)
                before = latency_ns if units.backwards else 0
                node = node if inside_node and alone else -1
                table.rows.append(_Row(found[-1], sender, occupancy, before, node, crosses, latency_ns))
        return found

    def _occupancy(self, link: Link, limit: int) -> IntArray:
        """Occupancy of a message of 1, 2 .. units over a link, [units]; NEVER above the limit."""
        found = np.full(self._units.count, NEVER, dtype=np.int64)
        for n, size_bytes in enumerate(self._units.message_bytes[:limit].tolist()):
            found[n] = link.occupancy_ns(size_bytes)
        return found

    def _solve(self) -> None:
        """Iterate (1) to (3) from above until they rest."""
        units, table, width = self._units, self._table, self._units.count + 1
        self.tau = self._start([int(units.first[r]) for r in self._ranks], width)
        topology = self._network.topology
        members = topology.ranks_of_node
        held = [min(units.count, sum(int(units.first[r]) for r in members[node])) for node in self._nodes]
        self._of_node = self._start(held, width)
        if not table.rows:
            return
        entry, home = self._from_entries(), np.array([self._node_colour[topology.node_of[r]] for r in self._ranks])
        beyond = np.arange(width) > np.array(held)[home][:, None]
        while True:
            arrived = table.arrivals(self.tau, self._of_node)
            tau = self._merge(self.tau, self._machines_of_colour, arrived)
            tau = np.where(beyond, np.minimum(np.maximum(tau, self._of_node[home] + entry), NEVER), tau)
            of_node = self._merge(self._of_node, self._machines_of_node, arrived)
            if np.array_equal(tau, self.tau) and np.array_equal(of_node, self._of_node):
                return
            self.tau, self._of_node = tau, of_node

    def _from_entries(self) -> IntArray:
        """Least time of a unit to a rank from where it entered the rank's node, [colours, 1]."""
        found = [NEVER] * len(self._ranks)
        into = [[row for row in self._table.rows if row.machine in machines] for machines in self._machines_of_colour]
        for _ in found:
            for colour, rows in enumerate(into):
                for row in rows:
                    on_the_way = 0 if row.crosses else found[row.sender] + row.latency_ns + int(row.occupancy_ns[0])
                    found[colour] = min(found[colour], on_the_way)
        return np.array(found, dtype=np.int64)[:, None]

    @staticmethod
    def _start(first: Sequence[int], width: int) -> IntArray:
        found = np.full((len(first), width), NEVER, dtype=np.int64)
        for row, held in enumerate(first):
            found[row, : held + 1] = 0
        return found

    @staticmethod
    def _merge(tau: IntArray, machines: Sequence[Sequence[int]], arrived: IntArray) -> IntArray:
        """Apply (1): the sorted union of what the machines deliver."""
        found = tau.copy()
        for row, members in enumerate(machines):
            held = int(np.count_nonzero(tau[row] == 0))
            if members and held < tau.shape[1]:
                found[row, held:] = np.sort(arrived[list(members)].ravel())[: tau.shape[1] - held]
        return found


def flat_growth(network: Network, ranks: BoolArray, size_bytes: int, usable: BoolArray, *, backwards: bool) -> Growth:
    """Growth where some ranks have one unit at first, and only a message's first costs bytes. ``usable``: [links]."""
    count = int(ranks.sum())
    sizes = np.full(count, size_bytes, dtype=np.int64)
    limit = usable.astype(np.int64) * count
    return Growth(network, Units(ranks.astype(np.int64), count, sizes, size_bytes, False, limit, backwards))


def open_links(network: Network, chunks: BoolArray) -> IntArray:
    """Number of the given chunks that may use each link, [links]."""
    count = np.bincount(network.kind_of[chunks], minlength=len(network.first_of_kind))
    found: IntArray = (network.usable * count[:, None]).sum(axis=0).astype(np.int64)
    return found
