"""Sampled neighbourhoods, a block for every layer, and random walks along edges, on the graph's device.

>>> sampler = NeighbourSampler(graph, [15, 10])
>>> blocks, input_ids = sampler(seeds)    # blocks[0] is the first layer's; its sources are input_ids
>>> walks = random_walk(graph, seeds, length=5, restart_prob=0.5)
>>> walks.nodes    # [seeds, 6]: each seed, then where its walk went; -1 after its end

Draws are of whole tensors. Without replacement, Floyd's algorithm draws k of d in k turns, whatever d is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.structure.adjacency import Adjacency, Compressed, compress, positions_of
from loadmaster.executor.graph.structure.blocks import Block, expect_no_block
from loadmaster.executor.graph.structure.building import Parts
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.executor.graph.structure.schema import RelationKey, Schema, expect_within, id_tensor

ALL = -1  # as a fan-out: every neighbour
NodeIds = Tensor | Mapping[str, Tensor]


class Sample(NamedTuple):
    """Sampled blocks, the first layer's first, and ids of the first one's sources, by type of node where several."""

    blocks: list[Block]
    input_ids: NodeIds


class NeighbourSampler:
    """Draws neighbours of seeds, then neighbours of those, layer by layer from the last."""

    def __init__(
        self,
        graph: Graph,
        fanouts: Sequence[int | Mapping[RelationKey, int]],
        *,
        replace: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        """Prepare to sample a graph.

        Args:
            fanouts: for each layer, the first layer first, how many edges of each relation a node keeps; -1: all.
            replace: whether an edge may be drawn several times.
            generator: of the graph's device; the same state gives the same blocks.

        Raises:
            InputError: a fan-out is no number of neighbours, the generator is of another device, the graph is a block.
        """
        expect_no_block("graph", graph)
        self.graph = graph
        self.replace = replace
        self.generator = generator
        if generator is not None and generator.device.type != graph.device.type:
            remedy = f"Use torch.Generator({str(graph.device)!r})."
            problem = f"is not of the graph's device, {graph.device}"
            raise InputError("generator", str(generator.device), problem, remedy)
        self._fanouts = [self._by_relation(i, fanout) for i, fanout in enumerate(fanouts)]
        if not self._fanouts:
            raise InputError("fanouts", list(fanouts), "are of no layer", "Give a number for each layer.")
        self._groups_of_node: Compressed | None = None

    def _by_relation(self, layer: int, fanout: int | Mapping[RelationKey, int]) -> list[int]:
        schema = self.graph.schema
        if isinstance(fanout, Mapping):
            chosen = {schema.relation(key): number for key, number in fanout.items()}
            found = [chosen.get(i, 0) for i in range(len(schema.relations))]
        else:
            found = [fanout] * len(schema.relations)
        for number in found:
            if not isinstance(number, int) or number < ALL:
                raise InputError(f"fanouts[{layer}]", number, "is no number of neighbours", "Give one >= 0, or -1.")
        return found

    def __call__(self, seeds: NodeIds) -> Sample:
        """Sample blocks for distinct ids, by type where several; InputError: one names no node, or comes twice."""
        rows, counts = self._seed_rows(seeds)
        blocks: list[Block] = []
        for fanout in reversed(self._fanouts):
            block, rows, counts = self._layer(rows, counts, fanout)
            blocks.insert(0, block)
        ids = blocks[0].source_ids
        names = self.graph.node_types
        return Sample(blocks, ids[0] if len(names) == 1 else dict(zip(names, ids, strict=True)))

    def _seed_rows(self, seeds: NodeIds) -> tuple[Tensor, list[int]]:
        schema, device = self.graph.schema, self.graph.device
        given = seeds if isinstance(seeds, Mapping) else {schema.node_types[schema.node_type(None)]: seeds}
        parts, counts = [], [0] * len(schema.node_types)
        by_type = {schema.node_type(name): ids for name, ids in given.items()}
        for node_type in sorted(by_type):
            field = f"seeds[{schema.node_types[node_type]!r}]"
            ids = id_tensor(field, by_type[node_type], device)
            expect_within(field, ids, schema.source_counts[node_type])
            counts[node_type] = ids.numel()
            parts.append(ids.long() + schema.source_offsets[node_type])
        rows = torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device=device)
        if torch.unique(rows).numel() != rows.numel():
            raise InputError("seeds", rows.numel(), "name a node twice", "Give distinct ids: torch.unique(seeds).")
        return rows.to(self.graph.id_dtype), counts

    def _edge_groups(self, rows: Tensor) -> tuple[Compressed, Tensor, Tensor, Tensor | None]:
        """The edges to draw from: all groups, those of these rows, the place in rows and the relation of each."""
        graph = self.graph
        if graph.relation_count == 1:
            return graph.csc(), rows.long(), torch.arange(rows.numel(), device=rows.device), None
        pairs = graph.destination_pairs()
        if self._groups_of_node is None:
            every = torch.arange(pairs.node.numel(), dtype=pairs.node.dtype, device=rows.device)
            self._groups_of_node = compress(pairs.node, every, graph.schema.destination_count)
        positions, counts = positions_of(self._groups_of_node, rows)
        groups = self._groups_of_node.neighbour[positions].long()
        places = torch.arange(rows.numel(), device=rows.device)
        place = places.repeat_interleave(counts, output_size=groups.numel())
        return pairs.edges, groups, place, pairs.relation[groups].long()

    def _layer(self, rows: Tensor, counts: list[int], fanout: list[int]) -> tuple[Block, Tensor, list[int]]:
        edges, groups, place, relation = self._edge_groups(rows)
        wanted = torch.tensor(fanout, device=rows.device)
        wanted = wanted[torch.zeros_like(groups) if relation is None else relation]
        group, position = self._drawn(edges, groups, wanted, max(fanout), ALL in fanout)
        edge = position.to(edges.ptr.dtype) if edges.edge is None else edges.edge[position]
        source = edges.neighbour[position]
        kind = torch.zeros_like(group) if relation is None else relation[group]
        if relation is not None:
            kind, order = kind.sort(stable=True)
            source, edge, group = source[order], edge[order], group[order]
        return self._block(rows, counts, source, place[group], edge, kind)

    def _drawn(
        self, edges: Compressed, groups: Tensor, wanted: Tensor, most: int, some_whole: bool
    ) -> tuple[Tensor, Tensor]:
        """The group, and the position among all edges, of every edge that is kept; group after group."""
        index = torch.arange(groups.numel(), device=groups.device)
        if some_whole:
            whole = wanted == ALL
            positions, counts = positions_of(edges, groups[whole])
            whole_index = index[whole].repeat_interleave(counts, output_size=positions.numel())
            if most == ALL:
                return whole_index, positions
            index, groups, wanted = index[~whole], groups[~whole], wanted[~whole]
        begin = edges.ptr[groups].long()
        degree = edges.ptr[groups + 1].long() - begin
        draw = drawn_with_replacement if self.replace else drawn_without_replacement
        chosen, kept = draw(degree, wanted, most, self.generator)
        group, _ = kept.nonzero(as_tuple=True)
        position = begin[group] + chosen[kept]
        if not some_whole:
            return group, position
        both, order = torch.cat([whole_index, index[group]]).sort(stable=True)
        return both, torch.cat([positions, position])[order]

    def _block(
        self, rows: Tensor, counts: list[int], source: Tensor, destination: Tensor, edge: Tensor, kind: Tensor
    ) -> tuple[Block, Tensor, list[int]]:
        schema, dtype = self.graph.schema, self.graph.id_dtype
        known = rows.sort().values
        reached = torch.unique(source)
        if known.numel():
            found = torch.searchsorted(known, reached).clamp(max=known.numel() - 1)
            new = reached[known[found] != reached]
        else:
            new = reached
        bounds = torch.tensor(schema.source_offsets, dtype=new.dtype, device=new.device)
        new_counts = torch.searchsorted(new, bounds).diff().tolist()
        source_counts = [a + b for a, b in zip(counts, new_counts, strict=True)]
        # By type, destinations first: where each of both lists goes among the sources.
        made = Schema(schema.node_types, tuple(source_counts), tuple(counts), schema.relations)
        parts: list[Tensor] = []
        for old_part, new_part in zip(torch.split(rows, counts), torch.split(new, new_counts), strict=True):
            parts += [old_part, new_part]
        sources = torch.cat(parts)
        ordered, at = sources.sort()
        local = at[torch.searchsorted(ordered, source)].to(dtype)
        sizes = torch.bincount(kind, minlength=len(schema.relations))
        ptr = (0, *sizes.cumsum(0).tolist())
        offsets = zip(
            schema.source_offsets[:-1], torch.split(sources, source_counts), torch.split(rows, counts), strict=True
        )
        ids = [(own - offset, first - offset) for offset, own, first in offsets]
        block = Block.of_sample(
            Parts(made, local, destination.to(dtype), ptr, None),
            tuple(own for own, _ in ids),
            tuple(first for _, first in ids),
            edge,
        )
        return block, sources, source_counts


def drawn_with_replacement(
    degree: Tensor, wanted: Tensor, most: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Draw up to ``wanted`` numbers below ``degree`` for each row; return which of the [rows, most] are drawn, too."""
    shape = (degree.numel(), most)
    random = torch.rand(shape, generator=generator, dtype=torch.float64, device=degree.device)
    chosen = (random * degree[:, None]).long()
    turn = torch.arange(most, device=degree.device)
    return chosen, (turn < wanted[:, None]) & (degree[:, None] > 0)


def drawn_without_replacement(
    degree: Tensor, wanted: Tensor, most: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Draw as :func:`drawn_with_replacement`, but distinct numbers, ascending; all of a row that has no more."""
    wanted = torch.minimum(wanted, degree)
    turn = torch.arange(most, device=degree.device)
    kept = turn < wanted[:, None]
    chosen = turn.expand(degree.numel(), most).clone()
    if most == 0 or not bool((degree > wanted).any()):
        return chosen, kept
    random = torch.rand((most, degree.numel()), generator=generator, dtype=torch.float64, device=degree.device)
    first = degree - wanted
    for i in range(most):
        # Floyd: a number up to first + i, or first + i itself where that one is taken.
        last = first + i
        number = (random[i] * (last + 1)).long()
        taken = (chosen[:, :i] == number[:, None]).any(1)
        chosen[:, i] = torch.where(taken, last, number)
    beyond = torch.iinfo(torch.int64).max
    return chosen.masked_fill(~kept, beyond).sort(1).values, kept


class Walks(NamedTuple):
    """Nodes and edges of random walks. A walk that is over has -1 from there on. ``nodes``, [walks, steps + 1], are ids
    within the types of node; ``edges``, [walks, steps], within the relations of a metapath, else of the graph."""

    nodes: Tensor
    edges: Tensor


def random_walk(
    graph: Graph,
    seeds: Tensor | Sequence[int],
    length: int | None = None,
    *,
    metapath: Sequence[RelationKey] | None = None,
    restart_prob: float = 0.0,
    generator: torch.Generator | None = None,
) -> Walks:
    """Walk from each seed: every edge that begins at a node is equally likely. At a node without any, a walk is over.

    Args:
        seeds: where walks begin; a node may come several times.
        length: how many steps, on a graph with nodes of one type, along edges of any relation.
        metapath: the relation of each step, instead.
        restart_prob: with which a walk is over before each step, so that whoever walks again starts at a seed.
        generator: of the graph's device; the same state gives the same walks.

    Raises:
        InputError: a seed names no node; not one of length and metapath is given; a relation of the metapath does not
            begin where the one before ends; the probability is not from 0 to 1.
    """
    expect_no_block("graph", graph)
    if not 0 <= restart_prob <= 1:
        raise InputError("restart_prob", restart_prob, "is no probability", "Give a number from 0 to 1.")
    steps, first_type = _steps(graph, length, metapath)
    ids = id_tensor("seeds", seeds, graph.device)
    expect_within("seeds", ids, graph.schema.source_counts[first_type])
    nodes, edges = [ids.to(graph.id_dtype)], []
    goes_on = torch.ones(ids.numel(), dtype=torch.bool, device=graph.device)
    for adjacency in steps:
        ptr, neighbour, edge = adjacency.csr()
        at = nodes[-1].long().clamp(min=0)
        degree = ptr[at + 1] - ptr[at]
        drawn = torch.rand(2, ids.numel(), generator=generator, dtype=torch.float64, device=graph.device)
        goes_on = goes_on & (degree > 0) & (drawn[0] >= restart_prob)
        if adjacency.edge_count == 0:
            nodes.append(torch.full_like(nodes[0], -1))
            edges.append(nodes[-1])
            continue
        position = (ptr[at] + (drawn[1] * degree).long()).clamp(max=adjacency.edge_count - 1)
        nodes.append(torch.where(goes_on, neighbour[position], -1))
        edges.append(torch.where(goes_on, position if edge is None else edge[position], -1).to(graph.id_dtype))
    none = torch.empty(ids.numel(), 0, dtype=graph.id_dtype, device=graph.device)
    return Walks(torch.stack(nodes, 1), torch.stack(edges, 1) if edges else none)


def _steps(graph: Graph, length: int | None, metapath: Sequence[RelationKey] | None) -> tuple[Sequence[Adjacency], int]:
    """The edges of each step, and the type of node that walks begin at."""
    schema = graph.schema
    if (length is None) == (metapath is None):
        raise InputError("length", length, "or metapath: one of both is needed", "Give length= or metapath=.")
    if metapath is None:
        if not isinstance(length, int) or length < 0:
            raise InputError("length", length, "is no number of steps", "Give one >= 0.")
        if not schema.one_type:
            raise InputError("length", length, "does not say along which relations", "Give metapath=.")
        return [graph.adjacency] * length, 0
    ends = [schema.ends(schema.relation(key)) for key in metapath]
    for at, ((_, last), (first, _)) in enumerate(pairwise(ends)):
        if first != last:
            found, names = f"{metapath[at]}, {metapath[at + 1]}", schema.node_types
            problem = f"lead to {names[last]} and go on from {names[first]}"
            raise InputError("metapath", found, problem, "Give relations that follow each other.")
    if not ends:
        raise InputError("metapath", [], "has no step", "Give a relation for each step.")
    return [graph.relation_adjacency(key) for key in metapath], ends[0][0]
