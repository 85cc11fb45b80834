"""Builds the parts of a graph from what a user gives: everything is checked here, before anything is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.structure.schema import (
    EDGE,
    NODE,
    Schema,
    Triple,
    as_triples,
    choose_dtype,
    expect_within,
    id_tensor,
)


class Parts(NamedTuple):
    """Parts that a graph is made of; see :class:`loadmaster.executor.graph.structure.graph.Graph`."""

    schema: Schema
    source: Tensor
    destination: Tensor
    relation_ptr: tuple[int, ...]
    edge_order: Tensor | None


def from_rows(
    source: Any,
    destination: Any,
    node_count: int | None,
    node_counts: Mapping[str, int] | None,
    relation: Any,
    relations: Sequence[Triple] | int | None,
    id_dtype: torch.dtype | None,
    device: torch.device | str | None,
) -> Parts:
    """Build parts from the ends of edges; see the constructor of the graph."""
    first = id_tensor("source", source, device)
    second = id_tensor("destination", destination, first.device)
    _expect_pairs("destination", first, second)
    if node_counts is not None and node_count is not None:
        raise InputError("node_count", node_count, "is given together with node_counts", "Give one of both.")
    if node_counts is None:
        node_counts = {NODE: _most(first, second) if node_count is None else node_count}
    kinds = None if relation is None else id_tensor("relation", relation, first.device)
    names = _relation_names(kinds, relations, tuple(node_counts))
    counts = tuple(node_counts.values())
    schema = Schema(tuple(node_counts), counts, counts, names)
    edge_count = first.numel()
    dtype = choose_dtype(id_dtype, max(schema.source_count, edge_count))
    expect_within("source", first, schema.source_count)
    expect_within("destination", second, schema.destination_count)
    if kinds is None:
        if len(names) != 1:
            raise InputError("relation", None, "is missing", "Give the relation of every edge.")
        parts = Parts(schema, first.to(dtype), second.to(dtype), (0, edge_count), None)
    else:
        if kinds.shape != first.shape:
            problem = f"is not of the {edge_count} edges"
            raise InputError("relation", kinds.numel(), problem, "Give the relation of every edge.")
        expect_within("relation", kinds, len(names), "relation")
        order = None
        if edge_count > 1 and bool((kinds[1:] < kinds[:-1]).any()):
            order = kinds.argsort(stable=True)
            first, second = first[order], second[order]
            order = order.to(dtype)
        sizes = torch.bincount(kinds, minlength=len(names))
        ptr = (0, *sizes.cumsum(0).tolist())
        parts = Parts(schema, first.to(dtype), second.to(dtype), ptr, order)
    if not schema.one_type:
        _expect_types(parts)
    return parts


def from_relations(
    edges: Mapping[Triple, tuple[Any, Any]],
    node_counts: Mapping[str, int] | None,
    id_dtype: torch.dtype | None,
    device: torch.device | str | None,
) -> Parts:
    """Build parts from the edges of each relation; see ``from_relations`` of the graph."""
    names = as_triples(tuple(edges))
    ends: list[tuple[Tensor, Tensor]] = []
    found: dict[str, int] = {}
    for name, (first, second) in edges.items():
        source = id_tensor(f"{name}, source", first, device)
        destination = id_tensor(f"{name}, destination", second, source.device)
        _expect_pairs(f"{name}, destination", source, destination)
        ends.append((source, destination))
        for node_type, ids in ((name[0], source), (name[2], destination)):
            found[node_type] = max(found.get(node_type, 0), _most(ids))
    counts = found if node_counts is None else dict(node_counts)
    schema = Schema(tuple(counts), tuple(counts.values()), tuple(counts.values()), names)
    edge_count = sum(source.numel() for source, _ in ends)
    dtype = choose_dtype(id_dtype, max(schema.source_count, edge_count))
    ptr = [0]
    sources, destinations = [], []
    for i, (source, destination) in enumerate(ends):
        source_type, destination_type = schema.ends(i)
        expect_within(f"{names[i]}, source", source, schema.source_counts[source_type])
        expect_within(f"{names[i]}, destination", destination, schema.source_counts[destination_type])
        sources.append(source.to(dtype) + schema.source_offsets[source_type])
        destinations.append(destination.to(dtype) + schema.source_offsets[destination_type])
        ptr.append(ptr[-1] + source.numel())
    nothing = torch.empty(0, dtype=dtype, device=device)
    source = torch.cat(sources) if sources else nothing
    destination = torch.cat(destinations) if destinations else nothing
    return Parts(schema, source, destination, tuple(ptr), None)


def _most(*ids: Tensor) -> int:
    return 1 + max((int(each.max()) for each in ids if each.numel()), default=-1)


def _expect_pairs(field: str, source: Tensor, destination: Tensor) -> None:
    if source.shape != destination.shape:
        problem = f"has another number of edges than source, {source.numel()}"
        raise InputError(field, destination.numel(), problem, "Give both ends of every edge.")


def _relation_names(
    kinds: Tensor | None, relations: Sequence[Triple] | int | None, node_types: tuple[str, ...]
) -> tuple[Triple, ...]:
    if relations is not None and not isinstance(relations, int):
        return as_triples(relations)
    if len(node_types) > 1:
        remedy = "Give (source type, name, destination type) of each."
        raise InputError("relations", relations, "does not say which types of nodes relations join", remedy)
    if relations is None and kinds is None:
        return ((node_types[0], EDGE, node_types[0]),)
    count = _most(kinds) if relations is None and kinds is not None else relations
    if not isinstance(count, int) or count < 1:
        raise InputError("relations", count, "is no number of relations", "Give a whole number >= 1.")
    return tuple((node_types[0], str(i), node_types[0]) for i in range(count))


def _expect_types(parts: Parts) -> None:
    """Refuse edges between nodes of other types than their relation says."""
    schema = parts.schema
    for i, triple in enumerate(schema.relations):
        part = slice(parts.relation_ptr[i], parts.relation_ptr[i + 1])
        for field, ids, node_type in zip(
            ("source", "destination"), (parts.source, parts.destination), schema.ends(i), strict=True
        ):
            low, high = schema.source_offsets[node_type : node_type + 2]
            what = f"node of type {schema.node_types[node_type]!r}"
            expect_within(f"{field} of {triple}, less {low}", ids[part] - low, high - low, what)
