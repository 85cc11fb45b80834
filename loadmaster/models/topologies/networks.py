"""Topologies from a user's JSON: explicit links, or a networkx node-link graph.

Explicit::

    {"name": "pair", "node_of": [0, 0],
     "links": [{"source": 0, "target": 1, "latency_ns": 0, "message_ns": 700, "gbps": 22.8, "resources": ["a"]}, ...],
     "switches": [[0, 1]]}

``resources`` of a link are names; links that share a name share the resource, a link without any has a wire of its own.
Where the document lists ``resources``, links may give their places in that list.

Node-link (``networkx.node_link_data``): vertices are GPUs, or switches (``"switch": true``); a GPU may say its
``node``. Edges carry ``latency_ns``, ``message_ns``, ``gbps`` and, if shared, ``resources``; an undirected edge is full
duplex.
A rank is a GPU's place among the GPUs. Two GPUs with a way through switches only have a link: along the way of least
latency, fewest hops; it holds every edge on it, its latency is their sum, its bandwidth the least and its occupancy per
message the largest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar

from loadmaster.errors import InputError, MissingExtraError
from loadmaster.models.documents import Document, load_document, parse
from loadmaster.models.fields import READING, Bounds
from loadmaster.models.topologies.topology import Link, Topology

Ends = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class _Cost:
    __pydantic_config__: ClassVar = READING

    latency_ns: int = 0
    message_ns: int = 0
    gbps: float


@dataclass(frozen=True, kw_only=True)
class _Link(_Cost):
    source: int
    target: int
    resources: list[str] | list[int] | None = None
    switch: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Explicit:
    __pydantic_config__: ClassVar = READING

    name: str = "network"
    node_of: Annotated[list[int], Bounds(min_length=1)]
    links: list[_Link]
    resources: list[str] | None = None
    switches: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class _Graph:
    __pydantic_config__: ClassVar = READING

    name: str | None = None
    directed: bool = False
    multigraph: bool = False
    graph: dict[str, Any] = field(default_factory=dict)
    nodes: list[Any]
    edges: list[Any] | None = None
    links: list[Any] | None = None


@dataclass(frozen=True, kw_only=True)
class _Vertex:
    __pydantic_config__: ClassVar = READING

    id: str | int
    node: int = 0
    switch: bool = False


@dataclass(frozen=True, kw_only=True)
class _Edge(_Cost):
    resources: list[str] | None = None


def read_network(source: Document | str | Path) -> Topology:
    """Read a topology from its file or its mapping, in either form.

    Raises:
        InputError: naming the field: unknown, an invalid cost, or an invalid rank.
        MissingExtraError: a node-link graph, and networkx is not installed.
    """
    document = load_document(source)
    return _of_graph(document) if "nodes" in document else _of_links(parse(_Explicit, document))


def _of_links(document: _Explicit) -> Topology:
    names: dict[str, int] = {}
    for index, name in enumerate(document.resources or ()):
        if name in names:
            raise InputError(f"resources[{index}]", name, "is there twice", "Give each resource a name of its own.")
        names[name] = index
    links = []
    for index, link in enumerate(document.links):
        held = []
        for resource in link.resources or [f"wire {link.source}->{link.target}"]:
            if isinstance(resource, str):
                held.append(names.setdefault(resource, len(names)))
            else:
                held.append(_expect_place(f"links[{index}].resources", resource, len(document.resources or ())))
        costs = link.latency_ns, link.message_ns, link.gbps
        if link.switch is not None:
            _expect_place(f"links[{index}].switch", link.switch, len(document.switches))
        links.append(Link(link.source, link.target, *costs, tuple(sorted(set(held))), link.switch))
    switches = tuple(tuple(ranks) for ranks in document.switches)
    return Topology(document.name, tuple(document.node_of), tuple(links), tuple(names), switches)


def _expect_place(field: str, place: int, count: int) -> int:
    if not 0 <= place < count:
        raise InputError(field, place, "is no place in the document's list", f"The list has {count} entries.")
    return place


def _of_graph(document: Document) -> Topology:
    networkx = _networkx()
    form = parse(_Graph, document)
    edges = "edges" if form.edges is not None else "links"
    if form.edges is None and form.links is None:
        raise InputError("edges", None, "is missing", "Give the output of networkx.node_link_data.")
    if form.edges is not None and form.links is not None:
        raise InputError("links", len(form.links), "is given together with edges", "Give one list of edges.")
    if form.multigraph:
        raise InputError("multigraph", True, "is not read", "Join parallel edges into one with their bandwidth.")
    vertices = [_part(_Vertex, f"nodes[{index}]", vertex) for index, vertex in enumerate(document["nodes"])]
    known = {vertex.id for vertex in vertices}
    if len(known) != len(vertices):
        raise InputError("nodes", len(vertices), "has two of the same id", "Give each vertex an id of its own.")
    for index, edge in enumerate(document[edges]):
        if not isinstance(edge, Mapping):
            raise InputError(f"{edges}[{index}]", edge, "is no object", "Give an object with source and target.")
        for end in ("source", "target"):
            if not isinstance(edge.get(end), str | int) or edge[end] not in known:
                remedy = "Give the id of a vertex in nodes."
                raise InputError(f"{edges}[{index}].{end}", edge.get(end), "is no vertex", remedy)
        cost = {key: value for key, value in edge.items() if key not in ("source", "target")}
        _expect_costs(f"{edges}[{index}]", _part(_Edge, f"{edges}[{index}]", cost))
    graph = networkx.node_link_graph({"directed": False, "multigraph": False, "graph": {}, **document}, edges=edges)
    gpus = [vertex for vertex in vertices if not vertex.switch]
    if not gpus:
        raise InputError("nodes", len(vertices), "has switches only", "Give at least one GPU.")
    name = form.name or str(form.graph.get("name") or "network")
    links, names, switches = _ways(networkx, graph.to_directed(), gpus)
    return Topology(name, tuple(gpu.node for gpu in gpus), links, names, switches)


def _ways(
    networkx: ModuleType, graph: Any, gpus: Sequence[_Vertex]
) -> tuple[tuple[Link, ...], tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Find the links between GPUs, edges and ways through switches; also their resources, and the GPUs around switches.
    Switches that edges join count as one: they are a network in which every GPU on its rim reaches every other."""
    rank_of = {gpu.id: rank for rank, gpu in enumerate(gpus)}
    resources: dict[str, int] = {}
    links: list[Link] = []
    fabric = graph.subgraph([v for v in graph if v not in rank_of])
    fabrics = [set(part) for part in networkx.weakly_connected_components(fabric)]
    rims = [sorted(rank_of[v] for v in graph if v in rank_of and _touches(graph, v, part)) for part in fabrics]

    def add(path: Sequence[Any], switch: int | None) -> None:
        steps = list(pairwise(path))
        edges = [graph.edges[step] for step in steps]
        held: set[int] = set()
        for (a, b), edge in zip(steps, edges, strict=True):
            for resource in edge.get("resources") or [f"wire {a}->{b}"]:
                held.add(resources.setdefault(resource, len(resources)))
        links.append(
            Link(
                rank_of[path[0]],
                rank_of[path[-1]],
                sum(edge.get("latency_ns", 0) for edge in edges),
                max(edge.get("message_ns", 0) for edge in edges),
                min(edge["gbps"] for edge in edges),
                tuple(sorted(held)),
                switch,
            )
        )

    ways: dict[Ends, tuple[int, int, int, list[Any]]] = {}
    for a, b in graph.edges:
        if a in rank_of and b in rank_of:
            ways[rank_of[a], rank_of[b]] = (-1, 0, -1, [a, b])
    for index, (part, rim) in enumerate(zip(fabrics, rims, strict=True)):
        for source in rim:
            inside = graph.subgraph(part | {gpus[source].id})
            # A hop costs a picosecond, so that of ways of equal latency the one with the fewest hops is taken.
            paths = networkx.single_source_dijkstra_path(
                inside, gpus[source].id, weight=lambda _a, _b, edge: edge.get("latency_ns", 0) + 1e-3
            )
            for target in rim:
                for last in (v for v in paths if v in part and source != target and graph.has_edge(v, gpus[target].id)):
                    path = [*paths[last], gpus[target].id]
                    way = _latency_ns(graph, path), len(path), index, path
                    ways[source, target] = min(ways.get((source, target), way), way, key=lambda w: w[:3])
    for _, way in sorted(ways.items()):
        add(way[3], way[2] if way[2] >= 0 else None)
    return tuple(links), tuple(resources), tuple(tuple(rim) for rim in rims)


def _touches(graph: Any, vertex: Any, part: set[Any]) -> bool:
    return any(graph.has_edge(vertex, other) or graph.has_edge(other, vertex) for other in part)


def _latency_ns(graph: Any, path: Sequence[Any]) -> int:
    return sum(graph.edges[step].get("latency_ns", 0) for step in pairwise(path))


def _expect_costs(field: str, cost: _Cost) -> None:
    """Refuse invalid costs at their place in the document; the topology would name a link that nobody wrote."""
    for name, ns in (("latency_ns", cost.latency_ns), ("message_ns", cost.message_ns)):
        if ns < 0:
            raise InputError(f"{field}.{name}", ns, "is no time", "Give nanoseconds, at least 0.")
    if cost.gbps <= 0:
        raise InputError(f"{field}.gbps", cost.gbps, "is no bandwidth", "Give GB/s, more than 0.")


def _part(model: type[Any], field: str, value: object) -> Any:
    """Validate one entry of a list that networkx reads itself; errors name its place."""
    if not isinstance(value, Mapping):
        raise InputError(field, value, "is no object", "Give an object.")
    try:
        return parse(model, value)
    except InputError as error:
        inner = "" if error.field == "document" else f".{error.field}"
        raise InputError(field + inner, error.value, error.problem, error.remedy) from None


def _networkx() -> ModuleType:
    try:
        import networkx
    except ModuleNotFoundError:
        raise MissingExtraError("networkx", "solver") from None
    assert isinstance(networkx, ModuleType)
    return networkx
