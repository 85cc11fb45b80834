"""Graphs in a file: structure and data, in one file that holds tensors and names, and runs no code when it is read."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from loadmaster.errors import InputError
from loadmaster.executor.graph.structure.blocks import expect_no_block
from loadmaster.executor.graph.structure.building import Parts
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.executor.graph.structure.ids import ID_DTYPES, expect_within
from loadmaster.executor.graph.structure.schema import Schema

FORMAT = "loadmaster/graphs/1"


def save_graphs(path: str | Path, graphs: Graph | Sequence[Graph]) -> None:
    """Write graphs, with data, to one file. Of batches the whole graph is kept.

    Raises:
        InputError: one is a block.
    """
    given = [graphs] if isinstance(graphs, Graph) else list(graphs)
    for i, graph in enumerate(given):
        expect_no_block(f"graphs[{i}]", graph)
    torch.save({"format": FORMAT, "graphs": [_document(graph) for graph in given]}, path)


def load_graphs(path: str | Path) -> list[Graph]:
    """Read the graphs of a file into memory of the host.

    Raises:
        InputError: :func:`save_graphs` did not write the file, or its edges do not fit.
    """
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
