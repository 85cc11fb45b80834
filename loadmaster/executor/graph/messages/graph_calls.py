"""Message passing as calls of a graph: results are stored in the data of its nodes and edges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.messages import passing
from loadmaster.executor.graph.messages.functions import BuiltinReduce
from loadmaster.executor.graph.messages.passing import Apply, CrossReduce, Message, Reduce
from loadmaster.executor.graph.messages.user_functions import EdgeBatch, NodeBatch, checked
from loadmaster.executor.graph.structure.adjacency import positions_of
from loadmaster.executor.graph.structure.frames import Frame, RelationEnds
from loadmaster.executor.graph.structure.schema import RelationKey, Schema, expect_within, id_tensor


class PassesMessages(ABC):
    """Message passing as methods of a graph. ``relation`` is needed where there are several.

    Functions are built-in ones (:mod:`loadmaster.executor.graph.messages.functions`) or the user's
    (:mod:`loadmaster.executor.graph.messages.user_functions`). Every call raises :class:`loadmaster.errors.InputError`
    where a field is missing, ids name nothing, or a function returns what does not fit.
    """

    schema: Schema

    @abstractmethod
    def relation_ends(self, relation: RelationKey | None = None) -> RelationEnds:
        """The edges of a relation with all data around them."""

    def update_all(
        self, message: Message, reduce: Reduce, apply: Apply | None = None, relation: RelationKey | None = None
    ) -> None:
        """Send messages along all edges and reduce them at their destinations; ``apply`` makes more of the results."""
        ends = self.relation_ends(relation)
        _store(ends.destination, passing.reduced(ends, message, reduce, apply))

    def apply_edges(self, message: Message, edges: Any = None, relation: RelationKey | None = None) -> None:
        """Compute a value for every edge (of those given) from its ends and itself; store it in the edges' data."""
        ends = self.relation_ends(relation)
        if edges is None:
            _store(ends.edge, passing.edge_values(ends, message))
            return
        ids = _ids("edges", edges, ends.edge, "edge")
        for name, values in passing.edge_values(passing.only_edges(ends, ids.long()), message).items():
            ends.edge.write_rows(name, ids, values)

    def apply_nodes(self, function: Apply, node_type: str | None = None) -> None:
        """Compute values for all nodes of a type from their data, and store them there."""
        frame = self.node_frame(node_type)
        nodes = NodeBatch(torch.arange(frame.rows, device=frame.device), frame, {}, None)
        _store(frame, checked(function(nodes), frame.rows, "function"))

    @abstractmethod
    def node_frame(self, node_type: str | None = None) -> Frame:
        """The data of nodes of a type, as destinations."""

    def edge_batch(self, relation: RelationKey | None = None) -> EdgeBatch:
        """All edges of a relation as message functions see them."""
        return EdgeBatch(self.relation_ends(relation))

    def pull(
        self,
        nodes: Any,
        message: Message,
        reduce: Reduce,
        apply: Apply | None = None,
        relation: RelationKey | None = None,
    ) -> None:
        """Send and reduce messages into these destinations alone; the others keep what they have, or get zero."""
        ends = self.relation_ends(relation)
        ids = _ids("nodes", nodes, ends.destination, "node")
        _write(ends.destination, ids, passing.reduced(passing.only_into(ends, ids), message, reduce, apply))

    def push(
        self,
        nodes: Any,
        message: Message,
        reduce: Reduce,
        apply: Apply | None = None,
        relation: RelationKey | None = None,
    ) -> None:
        """Send messages along the edges from these sources; update their destinations, others keep what they have."""
        ends = self.relation_ends(relation)
        ids = _ids("nodes", nodes, ends.source, "node")
        csr = ends.adjacency.csr()
        self._along(ends, csr.edge_ids()[positions_of(csr, ids)[0]].long(), message, reduce, apply)

    def send_and_recv(
        self,
        edges: Any,
        message: Message,
        reduce: Reduce,
        apply: Apply | None = None,
        relation: RelationKey | None = None,
    ) -> None:
        """Send messages along these edges; update their destinations, the others keep what they have."""
        ends = self.relation_ends(relation)
        self._along(ends, _ids("edges", edges, ends.edge, "edge").long(), message, reduce, apply)

    def _along(self, ends: RelationEnds, edges: Tensor, message: Message, reduce: Reduce, apply: Apply | None) -> None:
        some, nodes = passing.renumbered_destinations(passing.only_edges(ends, edges))
        if nodes.numel():
            _write(ends.destination, nodes, passing.reduced(some, message, reduce, apply))

    def multi_update_all(
        self,
        functions: Mapping[RelationKey, tuple[Message, Reduce] | tuple[Message, Reduce, Apply]],
        cross_reducer: CrossReduce,
        apply: Apply | None = None,
    ) -> None:
        """Send messages along each relation; reduce them in each, then across those that end at one type of node.

        A relation without edges gives zeros under a built-in reduction, and is left out under one of the user's.

        Args:
            functions: for each relation its message and reduce function, and perhaps one that is applied after them.
            cross_reducer: sum, mean, max, min, stack (along a new dimension 1), or a function of the list of tensors.
            apply: applied to each type of node at the end.
        """
        gathered: dict[int, dict[str, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
        frames: dict[int, Frame] = {}
        for relation, given in functions.items():
            index = self.schema.relation(relation)
            ends = self.relation_ends(index)
            node_type = self.schema.ends(index)[1]
            if ends.adjacency.edge_count == 0 and not isinstance(given[1], BuiltinReduce):
                continue
            frames[node_type] = ends.destination
            for name, value in passing.reduced(ends, *given).items():
                gathered[node_type][name].append(value)
        if not gathered:
            remedy = "Give functions for at least one relation with edges."
            raise InputError("functions", list(functions), "reduce nothing", remedy)
        for node_type, values in gathered.items():
            _store(frames[node_type], passing.across(values, cross_reducer))
            if apply is not None:
                self.apply_nodes(apply, self.schema.node_types[node_type])


def _store(frame: Frame, values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        frame[name] = value


def _write(frame: Frame, rows: Tensor, values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        frame.write_rows(name, rows, value)


def _ids(field: str, ids: Any, frame: Frame, what: str) -> Tensor:
    found = id_tensor(field, ids, frame.device)
    expect_within(field, found, frame.rows, what)
    return found
