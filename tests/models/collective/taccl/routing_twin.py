"""TACCL's routing program once more, written out in PuLP, with every variable and every equation of symmetry."""

from __future__ import annotations

import itertools

import networkx as nx
import pulp

from loadmaster.models.collective.instance import Instance


def ways_of(instance: Instance, c: int) -> set[tuple[int, int]]:
    """Paths of fewest hops from the nearest sources to the target; of several, all links between their ranks."""
    chunk, topology = instance.chunks[c], instance.topology
    graph = nx.DiGraph((k.source, k.target) for k in topology.links if instance.may_send(c, k))
    graph.add_edges_from(("start", s) for s in chunk.sources)
    found = set()
    for target in chunk.targets:
        for path in nx.all_shortest_paths(graph, "start", target):
            found |= set(itertools.pairwise(path[1:]))
    if len(chunk.targets) == 1:
        return found
    ranks = {r for link in found for r in link}
    return {(a, b) for a, b in graph.edges if {a, b} <= ranks and b not in chunk.sources}


def routing_twin(instance: Instance, connection_weight_ns: float) -> pulp.LpProblem:
    """[Shah23], equations 5.1 to 5.15, on the published path sets."""
    topology, chunks = instance.topology, instance.chunks
    links = {(k.source, k.target): k for k in topology.links}
    C, R = range(len(chunks)), range(topology.rank_count)
    lat = {(c, *k): links[k].transfer_ns(chunks[c].size_bytes) for c in C for k in links}
    occ = {(c, *k): links[k].occupancy_ns(chunks[c].size_bytes) for c in C for k in links}
    big = 1 + topology.rank_count * max(lat.values(), default=0)
    model = pulp.LpProblem("routing", pulp.LpMinimize)
    time = pulp.LpVariable("time", 0)
    start = {(c, r): pulp.LpVariable(f"start_{c}_{r}", 0, 2 * big) for c in C for r in R}
    send = {(c, *k): pulp.LpVariable(f"send_{c}_{k[0]}_{k[1]}", 0, 2 * big) for c in C for k in links}
    sent = {(c, *k): pulp.LpVariable(f"sent_{c}_{k[0]}_{k[1]}", cat="Binary") for c in C for k in links}
    wish = {k: instance.connections[of.switch] for k, of in links.items() if of.switch is not None}
    util = {k: pulp.LpVariable(f"util_{k[0]}_{k[1]}", cat="Binary") for k in wish if wish[k]}

    model += time + connection_weight_ns * pulp.lpSum(wish[k] * util[k] for k in util)  # (5.1), (5.11)
    for c in C:
        ways = ways_of(instance, c)
        for r in R:
            arriving = pulp.lpSum(sent[c, s, r] for s, d in links if d == r)
            if r in chunks[c].targets:
                model += time >= start[c, r]  # (5.2)
            if r in chunks[c].sources:
                model += start[c, r] == 0  # (5.3)
            elif r in chunks[c].targets:
                model += arriving == 1
            else:
                model += arriving <= 1
                model += arriving <= pulp.lpSum(sent[c, s, d] for s, d in links if s == r)
        for s, r in links:
            model += send[c, s, r] >= start[c, s]  # (5.4)
            model += start[c, r] - send[c, s, r] - lat[c, s, r] <= 3 * big * (1 - sent[c, s, r])  # (5.5)
            model += start[c, r] - send[c, s, r] - lat[c, s, r] >= -3 * big * (1 - sent[c, s, r])  # (5.5)
            if (s, r) not in ways:
                model += sent[c, s, r] == 0
            if s not in chunks[c].sources:
                model += sent[c, s, r] <= pulp.lpSum(sent[c, a, b] for a, b in links if b == s)
        for node, members in topology.ranks_of_node.items():
            if set(members) & set(chunks[c].targets) and not set(members) & set(chunks[c].sources):
                across = [(s, r) for s, r in links if topology.node_of[s] != node == topology.node_of[r]]
                model += pulp.lpSum(sent[c, s, r] for s, r in across) >= 1  # (5.15)
    for p in range(len(topology.resources)):
        held = [k for k, of in links.items() if p in of.resources]
        model += time >= pulp.lpSum(occ[c, s, r] * sent[c, s, r] for c in C for s, r in held)  # (5.6) to (5.8)
    for k, column in util.items():
        for c in C:
            model += column >= sent[c, *k]  # (5.9)
        model += column <= pulp.lpSum(sent[c, *k] for c in C)  # (5.10)
    for g in instance.generators:
        for c in C:
            for r in R:
                model += start[c, r] == start[g.chunks[c], g.ranks[r]]  # (5.12)
            for s, r in links:
                image = g.chunks[c], g.ranks[s], g.ranks[r]
                model += send[c, s, r] == send[image]  # (5.13)
                model += sent[c, s, r] == sent[image]  # (5.14)
                if (s, r) in util:
                    model += util[s, r] == util[g.ranks[s], g.ranks[r]]
    return model
