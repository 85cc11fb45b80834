"""Logical topologies: a communication sketch cuts a physical one down to fewer links, split NICs, relays and policies.

A sketch keeps a subset of the links: within a node those through its switches, between nodes those from its senders to
their receivers. Links keep the resources that they hold, so senders on one NIC take turns on it, each at its full
bandwidth. ``beta_split`` replaces turns by *lanes*: each link between nodes runs at 1/n of its bandwidth, whatever the
others do. Turns and lanes exclude each other, or the sharing would be counted twice:

- The lanes of a resource (NIC out, NIC in) are resources of their own in its place, and may together promise no more
  than it has: the sum of 1/n over its lanes is at most 1.
- A lane is of one sender to one receiver (local ranks, whichever their nodes) where that sum allows; otherwise of one
  sender, whose links then take turns on its lane.

This is TACCL's cost of a shared NIC: its solver multiplies beta by the number of links between nodes per NIC and lets
them run side by side, alphas included. dgx2-sk-2 (two GPUs on a NIC, each to its counterpart) has n = 2, ndv2-sk-2
(each of 8 GPUs to each of 8) has n = 64: :func:`lanes_per_nic`. A schedule for lanes is one of the sketch's logical
topology; on the physical one, where messages take turns on a NIC, its time is an estimate. A sketch without
``beta_split`` only removes, so its schedules are schedules of the physical topology.

Source: [Shah23], section 5.4.1 (logical topology, switch-hyperedges), 5.8.2.1 and appendix B.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from loadmaster.errors import InputError
from loadmaster.models.collective.instance import Chunk
from loadmaster.models.collective.problem import Sketch, Strategy
from loadmaster.models.topologies.topology import Link, Topology

_WISH: Mapping[Strategy, int] = {"uc-min": 1, "free": 0, "uc-max": -1}
# Of the sum of 1/n over lanes: what is above 1 by less is a float's last bits.
_SLACK = 1e-9

LanePair = tuple[int, int]


def local_ranks(topology: Topology) -> tuple[int, ...]:
    """Place of each rank among the ranks of its node."""
    found = [0] * topology.rank_count
    for ranks in topology.ranks_of_node.values():
        for place, rank in enumerate(ranks):
            found[rank] = place
    return tuple(found)


def logical_topology(topology: Topology, sketch: Sketch) -> Topology:
    """The links that a sketch leaves, with the resources that they hold. ``InputError``: it names ranks, links or
    bandwidth that the topology does not have."""
    local = local_ranks(topology)
    _expect_local_ranks(sketch, max(local) + 1)
    if sketch.internode is None and not sketch.switches and not sketch.beta_split:
        return topology
    switches, switch_of = _switches(topology, sketch, local)
    links = []
    for link in topology.links:
        ends = local[link.source], local[link.target]
        if topology.crosses(link):
            if sketch.internode is None or ends[1] in sketch.internode.get(ends[0], ()):
                links.append(link)
        elif not sketch.switches:
            links.append(link)
        elif (link.source, link.target) in switch_of:
            links.append(replace(link, switch=switch_of[link.source, link.target]))
    _expect_internode(topology, sketch, links, local)
    names = list(topology.resources)
    if sketch.beta_split:
        links = _in_lanes(topology, links, sketch.beta_split, local, names)
    held = sorted({resource for link in links for resource in link.resources})
    place = {resource: index for index, resource in enumerate(held)}
    links = [replace(link, resources=tuple(place[r] for r in link.resources)) for link in links]
    return Topology(topology.name, topology.node_of, tuple(links), tuple(names[r] for r in held), switches)


def connections(topology: Topology, sketch: Sketch) -> tuple[int, ...]:
    """Wish for each switch of the logical topology: +1 few links (uc-min), -1 many (uc-max), 0 as many as it likes."""
    if not sketch.switches:
        return (0,) * len(topology.switches)
    return tuple(_WISH[policy.strategy] for policy in sketch.switches) * topology.node_count


def with_senders(topology: Topology, sketch: Sketch, chunks: Sequence[Chunk]) -> tuple[Chunk, ...]:
    """The chunks, each with the ranks that may send it to another node. A chunk that starts at local rank i leaves a
    node, its own or one that it came through, by the local rank ``relays[i]`` only. Sums start everywhere and are not
    bound; neither are chunks of ranks without an entry."""
    if not sketch.relays:
        return tuple(chunks)
    local = local_ranks(topology)
    by_place: dict[int, list[int]] = {}
    for rank, place in enumerate(local):
        by_place.setdefault(place, []).append(rank)
    found = []
    for chunk in chunks:
        places = {sketch.relays.get(local[source]) for source in chunk.sources}
        if chunk.reduces or None in places:
            found.append(chunk)
        else:
            senders = frozenset(rank for place in places if place is not None for rank in by_place.get(place, ()))
            found.append(replace(chunk, senders=senders))
    return tuple(found)


def lanes_per_nic(topology: Topology, internode: Mapping[int, Sequence[int]]) -> dict[int, float]:
    """The beta split of TACCL's solver: per sender, how many (sender, receiver) pairs share its NICs; empty if none
    do."""
    local = local_ranks(topology)
    users: dict[int, set[LanePair]] = {}
    held: dict[int, set[int]] = {}
    for link in topology.links:
        pair = local[link.source], local[link.target]
        if topology.crosses(link) and pair[1] in internode.get(pair[0], ()):
            held.setdefault(pair[0], set()).update(link.resources)
            for resource in link.resources:
                users.setdefault(resource, set()).add(pair)
    split = {sender: float(max(len(users[r]) for r in resources)) for sender, resources in sorted(held.items())}
    return split if any(n > 1 for n in split.values()) else {}


def _expect_local_ranks(sketch: Sketch, count: int) -> None:
    def expect(field: str, ranks: Sequence[int]) -> None:
        for rank in ranks:
            if not 0 <= rank < count:
                raise InputError(field, rank, "is no rank of a node", f"Local ranks are 0 to {count - 1}.")

    for index, policy in enumerate(sketch.switches):
        expect(f"sketch.switches[{index}].ranks", policy.ranks)
    for sender, receivers in (sketch.internode or {}).items():
        expect("sketch.internode", (sender,))
        expect(f"sketch.internode.{sender}", receivers)
    for rank, relay in sketch.relays.items():
        expect("sketch.relays", (rank,))
        expect(f"sketch.relays.{rank}", (relay,))
        if sketch.internode is not None and not sketch.internode.get(relay):
            remedy = f"Let {relay} send (sketch.internode), or relay through one that does."
            raise InputError(f"sketch.relays.{rank}", relay, "does not send to other nodes", remedy)
    for sender, n in sketch.beta_split.items():
        expect("sketch.beta_split", (sender,))
        if not n >= 1:
            raise InputError(f"sketch.beta_split.{sender}", n, "is less than 1", "Give n for 1/n of the bandwidth.")


def _switches(
    topology: Topology, sketch: Sketch, local: Sequence[int]
) -> tuple[tuple[tuple[int, ...], ...], dict[tuple[int, int], int]]:
    """The switches of the logical topology, node by node, and which of them each pair of ranks has in common."""
    if not sketch.switches:
        return topology.switches, {}
    switches: list[tuple[int, ...]] = []
    common: dict[tuple[int, int], int] = {}
    for ranks in topology.ranks_of_node.values():
        at = {local[rank]: rank for rank in ranks}
        for index, policy in enumerate(sketch.switches):
            around = tuple(at[place] for place in policy.ranks if place in at)
            for a in around:
                for b in around:
                    if a != b and common.setdefault((a, b), len(switches)) != len(switches):
                        remedy = "Give each pair of ranks one switch; parallel switches are one with their bandwidth."
                        raise InputError(
                            f"sketch.switches[{index}].ranks",
                            list(policy.ranks),
                            f"has ranks {local[a]} and {local[b]} in common with another",
                            remedy,
                        )
            switches.append(around)
    return tuple(switches), common


def _expect_internode(topology: Topology, sketch: Sketch, links: Sequence[Link], local: Sequence[int]) -> None:
    there = {(local[link.source], local[link.target]) for link in links if topology.crosses(link)}
    for sender, receivers in (sketch.internode or {}).items():
        for receiver in receivers:
            if (sender, receiver) not in there:
                raise InputError(
                    f"sketch.internode.{sender}",
                    receiver,
                    f"the topology has no link from a local rank {sender} to a local rank {receiver} of another node",
                    "Leave the pair out.",
                )


def _in_lanes(
    topology: Topology, links: Sequence[Link], split: Mapping[int, float], local: Sequence[int], names: list[str]
) -> list[Link]:
    """The links with those between nodes moved to lanes, whose names are appended to ``names``."""
    crossing = [link for link in links if topology.crosses(link)]

    def lanes(key: Callable[[Link], LanePair]) -> dict[int, set[LanePair]]:
        found: dict[int, set[LanePair]] = {}
        for link in crossing:
            for resource in link.resources:
                found.setdefault(resource, set()).add(key(link))
        return found

    def promised(of_resource: Mapping[int, set[LanePair]]) -> tuple[float, int]:
        """The most that the lanes of a resource ask of it, as a part of its bandwidth, and that resource."""
        shares = ((sum(1 / split.get(sender, 1) for sender, _ in keys), r) for r, keys in of_resource.items())
        return max(shares, default=(0.0, -1))

    def of_pair(link: Link) -> LanePair:
        return local[link.source], local[link.target]

    def of_sender(link: Link) -> LanePair:
        return local[link.source], -1

    key = of_pair if promised(lanes(of_pair))[0] <= 1 + _SLACK else of_sender
    of_resource = lanes(key)
    share, worst = promised(of_resource)
    if share > 1 + _SLACK:
        raise InputError(
            "sketch.beta_split",
            dict(split),
            f"promises {share:g} times the bandwidth of {names[worst]!r}",
            "Give each sender on it so large an n that the sum of 1/n is at most 1.",
        )
    place: dict[tuple[int, LanePair], int] = {}
    for resource, keys in sorted(of_resource.items()):
        for lane in sorted(keys):
            place[resource, lane] = len(names)
            names.append(f"{names[resource]}, lane of {lane[0]}" + (f" to {lane[1]}" if lane[1] >= 0 else ""))

    def moved(link: Link) -> Link:
        if not topology.crosses(link):
            return link
        resources = tuple(sorted(place[resource, key(link)] for resource in link.resources))
        return replace(link, gbps=link.gbps / split.get(local[link.source], 1), resources=resources)

    return [moved(link) for link in links]
