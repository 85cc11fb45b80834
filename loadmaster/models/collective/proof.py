"""Proofs for a problem at one size: no algorithm that it allows is faster.

An algorithm of a plan has a form and a number of chunks. A bound of one form does not bound the other: a sum on the way
must become whole on some rank and be spread from there, where inputs that are gathered need not. So each form has its
bound, and the least of them holds for all. Where the problem names the numbers of chunks, a form's bound is the least
over those; where it leaves them open, it is that of divisible chunks, which holds for every number of them. Of
bandwidth alone a bound holds for every number anyway.

**Chunks however small** are bounded by bandwidth alone, by maximum flow. *Receiving*: in time T a target v must get
every byte that it lacks: a flow from the sources of its chunks, where each resource carries at most T times the gbps of
its fastest link. So by the theorem of maximum flow and minimum cut, T >= (bytes needed behind the cut) / (gbps into it)
for every cut, and the worst cut is found: a flow at T that falls short has a minimum cut; T is raised to what that cut
needs, until nothing falls short (Newton's method, exact, in few steps since cuts never repeat). For AllGather and
Broadcast these cuts are all there is: trees can be packed that reach the largest of these bounds over all targets
(ForestColl's optimum; Edmonds' branchings).

*Sending*, the same from the end: what a rank alone has, or its parts of sums, must leave it for their targets.

*Lengths*: what chunks take of all resources together: :mod:`loadmaster.models.collective.bounds.lengths`. They bound
AllToAll on rings, tori and clusters.

*Counting* of the parts of an AllReduce: :mod:`loadmaster.models.collective.bounds.counting`, without its message.

Links that none of the chunks may use are left out; beyond that, sketches' relays are not considered. All capacities are
rounded up to whole bytes per millisecond, in integers: the result is a bound, no matter the arithmetic of floats.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import networkx as nx

from loadmaster.models.collective.bounds import Bound, lower_bound
from loadmaster.models.collective.bounds.counting import least_traffic
from loadmaster.models.collective.bounds.lengths import lengths_ns
from loadmaster.models.collective.bounds.network import NEVER, Network
from loadmaster.models.collective.collectives import forms_of, instance_of, named_chunk_counts
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Form
from loadmaster.models.collective.problem import CollectiveProblem

# gbps as an integer: bytes per millisecond.
_SPEED_UNIT = 10**6
_HAIR_NS = 1e-3
# A maximum flow over more links than this takes minutes; counting and lengths are left, which need none.
MOST_FLOW_LINKS = 20_000


def throughput_bound_ns(instance: Instance, over: Callable[[], bool] = lambda: False) -> int:
    """Lower bound with the chunks cut into however many parts. ``NEVER``: no schedule exists. ``over``: the time is
    up."""
    network = Network(instance)
    best = Fraction(0)
    if len(network.used_links) <= MOST_FLOW_LINKS:
        graphs = {backwards: _graph(network, backwards) for backwards in (False, True)}
        for rank in network.typical_ranks:
            if over():
                break
            best = max(best, _least_time(graphs[False], rank, _receives(network, rank), best))
            best = max(best, _least_time(graphs[True], rank, _sends(network, rank), best))
            if best >= NEVER:
                return NEVER
    return max(math.ceil(best), lengths_ns(network, over), *(math.ceil(ns - _HAIR_NS) for ns in least_traffic(network)))


def _receives(network: Network, rank: int) -> Mapping[tuple[int, ...], int]:
    """Bytes that a rank must be sent, by the ranks that start with them."""
    found: dict[tuple[int, ...], int] = {}
    for chunk in network.instance.chunks:
        if rank in chunk.targets and rank not in chunk.sources and not chunk.reduces:
            found[chunk.sources] = found.get(chunk.sources, 0) + chunk.size_bytes
    return found


def _sends(network: Network, rank: int) -> Mapping[tuple[int, ...], int]:
    """Bytes that only a rank can send, by the ranks of which one at least must get them."""
    found: dict[tuple[int, ...], int] = {}
    for chunk in network.instance.chunks:
        others = tuple(r for r in chunk.targets if r != rank)
        if others and rank in chunk.sources and (chunk.reduces or len(chunk.sources) == 1):
            found[others] = found.get(others, 0) + chunk.size_bytes
    return found


def _graph(network: Network, backwards: bool) -> nx.DiGraph:
    """Ranks and resources as nodes, ``speed`` on edges that have a capacity; all edges turned where ``backwards``. A
    link is a way through its resources, one after another. Where all resources of some links lead to all others, as
    through a switch, they meet in one node in between. Both only let more through."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(network.rank_count))
    speed: dict[int, int] = {}
    hops: dict[tuple[str, str], int] = {}
    links = [network.topology.links[k] for k in network.used_links]
    ends: dict[int, tuple[set[int], set[int]]] = {r: (set(), set()) for link in links for r in link.resources}
    for link in links:
        for resource in link.resources:
            ends[resource][0].add(link.source)
            ends[resource][1].add(link.target)
    # What few ranks send through is passed first: in another order a flow could leave by another's port.
    order = {resource: len(sources) - len(targets) for resource, (sources, targets) in ends.items()}
    for link in links:
        of_link = math.ceil(link.gbps * _SPEED_UNIT)
        for resource in link.resources:
            speed[resource] = max(of_link, speed.get(resource, 0))
        passed = sorted(link.resources, key=lambda r: (order[r], r))
        graph.add_edge(link.source, f"into {passed[0]}")
        graph.add_edge(f"out of {passed[-1]}", link.target)
        for first, second in itertools.pairwise(passed):
            hop = f"out of {first}", f"into {second}"
            hops[hop] = hops.get(hop, 0) + of_link
    for resource, of_resource in speed.items():
        graph.add_edge(f"into {resource}", f"out of {resource}", speed=of_resource)
    between = nx.Graph(hops.keys())
    for number, group in enumerate(nx.connected_components(between)):
        starts = {start for start, _ in hops if start in group}
        inside = [hop for hop in hops if hop[0] in starts]
        stops = {stop for _, stop in inside}
        if len(inside) >= len(starts) * len(stops) - max(len(starts), len(stops)) and len(inside) > len(group):
            graph.add_edges_from((start, f"switch {number}") for start in starts)
            graph.add_edges_from((f"switch {number}", stop) for stop in stops)
        else:
            graph.add_edges_from((*hop, {"speed": hops[hop]}) for hop in inside)
    return graph.reverse() if backwards else graph


def _least_time(graph: nx.DiGraph, rank: int, needs: Mapping[tuple[int, ...], int], start: Fraction) -> Fraction:
    """The least T, not below ``start``, in which a rank can have the bytes it needs, by the ranks that have them."""
    needed = sum(needs.values())
    time = start
    flow = graph.copy()
    for number, (ranks, size_bytes) in enumerate(needs.items()):
        flow.add_edge("all", f"bytes {number}", size=size_bytes)
        flow.add_edges_from((f"bytes {number}", r) for r in ranks)
    while needed:
        # Bytes times the speed unit times the denominator of T are whole numbers.
        scale = _SPEED_UNIT * time.denominator
        for _, _, edge in flow.edges(data=True):
            if "speed" in edge:
                edge["capacity"] = edge["speed"] * time.numerator
            elif "size" in edge:
                edge["capacity"] = edge["size"] * scale
        value, (near, far) = nx.minimum_cut(flow, "all", rank, flow_func=nx.algorithms.flow.preflow_push)
        if value >= needed * scale:
            break
        cut = [flow.edges[edge] for edge in nx.edge_boundary(flow, near, far)]
        speed = sum(edge.get("speed", 0) for edge in cut)
        if not speed:
            return Fraction(NEVER)
        behind = needed - sum(edge.get("size", 0) for edge in cut)
        time = Fraction(behind * _SPEED_UNIT, speed)
    return time


# What bounds an algorithm while nothing is proved of its size.
NOTHING_YET = "nothing yet"
# The argument of a bound that a solver found (:mod:`loadmaster.models.collective.routing_bound`).
ROUTING = "routing relaxation"


@dataclass(frozen=True)
class FormProof:
    """The proof for all algorithms of one form: ``bound`` for all numbers of chunks, ``throughput_ns`` by bandwidth
    alone. ``instance``: its chunks, in the least number that may be asked for. ``divisible``: the bound holds for these
    chunks cut into any number of parts."""

    form: Form
    instance: Instance
    divisible: bool
    bound: Bound
    throughput_ns: int


@dataclass(frozen=True)
class Proof:
    """The proof for all algorithms of a problem at one size."""

    forms: tuple[FormProof, ...]

    @property
    def weakest(self) -> FormProof:
        """The form whose bound is the least: that of the whole."""
        return min(self.forms, key=lambda form: form.bound.ns)

    @property
    def bound(self) -> Bound:
        return self.weakest.bound

    def of(self, form: Form) -> FormProof:
        """The proof for one form."""
        return next(found for found in self.forms if found.form == form)

    def with_bound(self, form: Form, bound: Bound) -> Proof:
        """Replace the bound of one form by a better one."""
        return Proof(tuple(replace(found, bound=bound) if found.form == form else found for found in self.forms))

    @property
    def throughput_ns(self) -> int:
        return min(form.throughput_ns for form in self.forms)


def prove(problem: CollectiveProblem, size_bytes: int, over: Callable[[], bool] = lambda: False) -> Proof:
    """The proof of a problem at a size, by combinatorial bounds; once ``over``, what is proved by then holds. Of a
    later form it is enough that its bound is not below the first's. ``InputError``: the size does not divide."""
    forms: list[FormProof] = []
    for form in forms_of(problem):
        enough_ns = min((found.bound.ns for found in forms), default=NEVER)
        forms.append(_of_form(problem, size_bytes, form, enough_ns, over))
    return Proof(tuple(forms))


def _of_form(
    problem: CollectiveProblem, size_bytes: int, form: Form, enough_ns: int, over: Callable[[], bool]
) -> FormProof:
    counts = named_chunk_counts(problem)
    instances = [instance_of(problem, size_bytes, count, form) for count in counts or (1,)]
    throughput_ns = throughput_bound_ns(instances[0], over)
    bound = Bound(throughput_ns, "bandwidth")
    if bound.ns < enough_ns:
        found = [lower_bound(instance, divisible=not counts, enough_ns=enough_ns, over=over) for instance in instances]
        least = min(found, key=lambda of_count: of_count.ns)
        bound = least if least.ns >= bound.ns else bound
    if len(forms_of(problem)) > 1:
        bound = Bound(bound.ns, f"{bound.by}, form {form}")
    return FormProof(form, instances[0], not counts, bound, throughput_ns)
