"""Graphs from and to PyTorch Geometric, networkx, scipy and files. What a user has as tensors, the constructor takes.

A file holds structure and data, as tensors and names, and runs no code when it is read.
"""

from __future__ import annotations

import importlib
import itertools
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from loadmaster.errors import InputError, MissingExtraError
from loadmaster.executor.graph.structure.blocks import expect_no_block
from loadmaster.executor.graph.structure.building import Parts
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.executor.graph.structure.schema import ID_DTYPES, RelationKey, Schema, expect_within

FORMAT = "loadmaster/graphs/1"
EXTRA = "graph"  # of this package, with what these conversions need


def _package(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(module.partition(".")[0], EXTRA) from None


def from_pyg(data: Any) -> Graph:
    """Convert a ``torch_geometric.data.Data`` or ``HeteroData``: its nodes, its edges, and all data of both.
    InputError: the data are neither, or have no edges. MissingExtraError: PyTorch Geometric is not installed."""
    pyg = _package("torch_geometric.data")
    if isinstance(data, pyg.HeteroData):
        edges = {kind: tuple(_edge_index(data[kind])) for kind in data.edge_types}
        graph = Graph.from_relations(edges, {kind: _node_count(data[kind]) for kind in data.node_types})
        for kind in data.node_types:
            graph.nodes[kind].data.update(_columns(data[kind], data[kind].is_node_attr))
        for kind in data.edge_types:
            graph.edges[kind].data.update(_columns(data[kind], data[kind].is_edge_attr))
        return graph
    if not isinstance(data, pyg.Data):
        raise InputError("data", type(data).__name__, "is no Data or HeteroData", "Give one of both.")
    graph = Graph(*_edge_index(data), node_count=_node_count(data))
    graph.nodes[None].data.update(_columns(data, data.is_node_attr))
    graph.edges[None].data.update(_columns(data, data.is_edge_attr))
    return graph


def _edge_index(store: Any) -> Tensor:
    if "edge_index" not in store:
        raise InputError("data", list(store.keys()), "has no edge_index", "Give edges as edge_index.")
    found: Tensor = store["edge_index"]
    return found


def _node_count(store: Any) -> int:
    count = store.num_nodes
    if count is None:
        raise InputError("data", list(store.keys()), "does not say how many nodes there are", "Set num_nodes.")
    return int(count)


def _columns(store: Any, belongs: Any) -> dict[str, Tensor]:
    names = [name for name in store.keys() if name != "edge_index" and belongs(name)]  # noqa: SIM118
    return {name: store[name] for name in names if isinstance(store[name], Tensor)}


def to_pyg(graph: Graph) -> Any:
    """Convert to a ``torch_geometric.data.Data``, or ``HeteroData`` if there are several types; ids become int64.
    MissingExtraError: PyTorch Geometric is not installed."""
    pyg = _package("torch_geometric.data")
    if graph.schema.one_type and graph.relation_count == 1:
        data = pyg.Data(edge_index=torch.stack(graph.edges()).long(), num_nodes=graph.num_nodes())
        for name, value in [*graph.nodes[None].data.items(), *graph.edges[None].data.items()]:
            data[name] = value
        return data
    data = pyg.HeteroData()
    for name in graph.node_types:
        data[name].num_nodes = graph.num_nodes(name)
        for key, value in graph.nodes[name].data.items():
            data[name][key] = value
    for triple in graph.relations:
        data[triple].edge_index = torch.stack(graph.edges(triple)).long()
        for key, value in graph.edges[triple].data.items():
            data[triple][key] = value
    return data


def from_networkx(graph: Any, node_fields: tuple[str, ...] = (), edge_fields: tuple[str, ...] = ()) -> Graph:
    """Convert a networkx graph, nodes in its order. Edges of an undirected graph go both ways.

    ``node_fields`` and ``edge_fields`` are attributes, of all nodes or edges, to keep as data. InputError: one is
    missing, or holds no numbers. MissingExtraError: networkx is not installed.
    """
    _package("networkx")
    directed = graph if graph.is_directed() else graph.to_directed()
    place = {node: i for i, node in enumerate(directed.nodes)}
    edges = list(directed.edges(data=True))
    ends = np.asarray([(place[u], place[v]) for u, v, _ in edges], dtype=np.int64).reshape(-1, 2)
    made = Graph(ends[:, 0], ends[:, 1], node_count=len(place))
    nodes = [attributes for _, attributes in directed.nodes(data=True)]
    for name in node_fields:
        made.nodes[None].data[name] = _field(name, nodes)
    for name in edge_fields:
        made.edges[None].data[name] = _field(name, [attributes for *_, attributes in edges])
    return made


def _field(name: str, attributes: list[dict[str, Any]]) -> Tensor:
    try:
        return torch.as_tensor(np.asarray([each[name] for each in attributes]))
    except (KeyError, TypeError, ValueError):
        problem = "is missing somewhere, or holds no numbers"
        raise InputError(f"fields[{name!r}]", name, problem, "Set numbers of one shape on all.") from None


def to_networkx(graph: Graph, node_fields: tuple[str, ...] = (), edge_fields: tuple[str, ...] = ()) -> Any:
    """Convert to a ``networkx.MultiDiGraph`` with ids as nodes, and these data as attributes. InputError: the graph has
    several types. MissingExtraError: networkx is not installed."""
    networkx = _package("networkx")
    made = networkx.MultiDiGraph()
    nodes, edges = graph.nodes[None].data, graph.edges[None].data
    columns = {name: nodes[name].tolist() for name in node_fields}
    made.add_nodes_from((i, {name: c[i] for name, c in columns.items()}) for i in range(graph.num_nodes()))
    ends = (ids.tolist() for ids in graph.edges())
    columns = {name: edges[name].tolist() for name in edge_fields}
    pairs = enumerate(zip(*ends, strict=True))
    made.add_edges_from((u, v, {name: c[i] for name, c in columns.items()}) for i, (u, v) in pairs)
    return made


def from_scipy(matrix: Any, weight: str | None = None) -> Graph:
    """Convert a square sparse matrix: an entry in row i, column j is an edge from i to j; so are stored zeros.

    ``weight`` names the edges' field for the entries; None: they are dropped. InputError: the matrix is not square.
    MissingExtraError: scipy is not installed.
    """
    _package("scipy.sparse")
    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError("matrix", matrix.shape, "is not square", "Give a row and a column for every node.")
    entries = matrix.tocoo()
    made = Graph(entries.row, entries.col, node_count=matrix.shape[0])
    if weight is not None:
        made.edges[None].data[weight] = torch.as_tensor(np.array(entries.data))
    return made


def to_scipy(
    graph: Graph, relation: RelationKey | None = None, weight: str | None = None, layout: Literal["coo", "csr"] = "coo"
) -> Any:
    """Convert to a sparse matrix with a row for every source and a column for every destination.

    ``weight`` is the edges' field of one number each that the entries hold (else InputError); None: ones. In layout
    "csr" entries of equal place are one, their sum. MissingExtraError: scipy is not installed.
    """
    sparse = _package("scipy.sparse")
    adjacency = graph.relation_adjacency(relation)
    if weight is None:
        values = np.ones(adjacency.edge_count, dtype=np.float32)
    else:
        field = graph.edges[relation].data[weight]
        if field.numel() != adjacency.edge_count:
            raise InputError("weight", tuple(field.shape), "is no number for each edge", "Give one number for each.")
        values = field.detach().reshape(-1).cpu().numpy()
    ends = (adjacency.source.cpu().numpy(), adjacency.destination.cpu().numpy())
    made = sparse.coo_matrix((values, ends), shape=(adjacency.source_count, adjacency.destination_count))
    return made.tocsr() if layout == "csr" else made


def save_graphs(path: str | Path, graphs: Graph | Sequence[Graph]) -> None:
    """Write graphs, with data, to one file. Of batches the whole graph is kept. InputError: one is a block."""
    given = [graphs] if isinstance(graphs, Graph) else list(graphs)
    for i, graph in enumerate(given):
        expect_no_block(f"graphs[{i}]", graph)
    torch.save({"format": FORMAT, "graphs": [_document(graph) for graph in given]}, path)


def load_graphs(path: str | Path) -> list[Graph]:
    """Read a file's graphs into host memory. InputError: not a file of :func:`save_graphs`, or edges do not fit."""
    remedy = "Give a file that save_graphs wrote."
    try:
        document = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError):
        raise InputError("path", str(path), "is no file of graphs", remedy) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError("path", str(path), f"is no file of the format {FORMAT}", remedy)
    return [_graph(f"{path}, graph {i}", each) for i, each in enumerate(document["graphs"])]


def _document(graph: Graph) -> dict[str, Any]:
    return {
        "node_types": list(graph.node_types),
        "node_counts": list(graph.schema.source_counts),
        "relations": [list(triple) for triple in graph.relations],
        "relation_ptr": list(graph.relation_ptr),
        # Copies of views would take all that they are views of.
        "source": graph.source.clone(),
        "destination": graph.destination.clone(),
        "edge_order": graph.edge_order,
        "node_data": [
            {key: value.detach().clone() for key, value in graph.nodes[name].data.items()} for name in graph.node_types
        ],
        "edge_data": [
            {key: value.detach().clone() for key, value in graph.edges[r].data.items()}
            for r in range(graph.relation_count)
        ],
    }


def _graph(where: str, document: dict[str, Any]) -> Graph:
    counts = tuple(document["node_counts"])
    relations = tuple((a, b, c) for a, b, c in document["relations"])
    schema = Schema(tuple(document["node_types"]), counts, counts, relations)
    source, destination, ptr = document["source"], document["destination"], tuple(document["relation_ptr"])
    whole = source.shape == destination.shape and source.dtype == destination.dtype and source.dtype in ID_DTYPES
    rising = all(a <= b for a, b in itertools.pairwise(ptr))
    if not whole or not rising or len(ptr) != len(relations) + 1 or (ptr[0], ptr[-1]) != (0, source.numel()):
        raise InputError(where, [*source.shape, *destination.shape], "has edges that do not fit", "Save it again.")
    expect_within(f"{where}, source", source, schema.source_count)
    expect_within(f"{where}, destination", destination, schema.destination_count)
    graph = Graph.of_parts(Parts(schema, source, destination, ptr, document["edge_order"]))
    for name, columns in zip(schema.node_types, document["node_data"], strict=True):
        graph.nodes[name].data.update(columns)
    for r, columns in enumerate(document["edge_data"]):
        graph.edges[r].data.update(columns)
    return graph
