"""Functions of the user's, in batches: of all edges, and of nodes with equally many messages.

A message function takes an :class:`EdgeBatch` and returns {name: tensor with a row for each edge}. A reduce function
takes a :class:`NodeBatch` and returns {name: tensor with a row for each node}, once for each number of messages that
nodes have; a :func:`maskable` one for ranges of that number, with padded rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.structure.adjacency import Adjacency
from loadmaster.executor.graph.structure.frames import Frame, RelationEnds

Columns = Mapping[str, Tensor]
RATIO = 1.25  # of the longest to the shortest row of a padded bucket
F = TypeVar("F", bound=Callable[..., Columns])


class Gathered(Mapping[str, Tensor]):
    """A frame's columns in chosen rows, each gathered when it is read."""

    def __init__(self, frame: Frame, rows: Tensor) -> None:
        self._frame = frame
        self._rows = rows
        self._made: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._made:
            self._made[name] = self._frame[name].index_select(0, self._rows)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._frame)

    def __len__(self) -> int:
        return len(self._frame)


class EdgeBatch:
    """All edges of a pass; ``src``, ``dst``, ``data``: columns of sources, destinations, edges, a row for each edge."""

    def __init__(self, ends: RelationEnds) -> None:
        self._adjacency = ends.adjacency
        self.src: Columns = Gathered(ends.source, ends.adjacency.source)
        self.dst: Columns = Gathered(ends.destination, ends.adjacency.destination)
        self.data: Columns = ends.edge

    def batch_size(self) -> int:
        return self._adjacency.edge_count

    def edges(self) -> tuple[Tensor, Tensor]:
        """Ids of the nodes at both ends."""
        return self._adjacency.source, self._adjacency.destination


@dataclass(eq=False, repr=False)
class NodeBatch:
    """Nodes of a pass that have equally many messages. ``mailbox`` holds the messages, [nodes, messages, ...] of each
    name, by the ids of their edges; ``mask`` [nodes, messages] is false where a row is padded; None unless the function
    is maskable."""

    _ids: Tensor
    data: Columns
    mailbox: Columns
    mask: Tensor | None

    def nodes(self) -> Tensor:
        """Ids of the nodes, by row."""
        return self._ids

    def batch_size(self) -> int:
        return self._ids.numel()


def maskable(function: F) -> F:
    """Mark a reduce function as heeding ``nodes.mask``: messages that are masked out are zero rows to ignore."""
    function.__dict__["maskable"] = True
    return function


class Bucket(NamedTuple):
    """Nodes that are reduced together; ``width``: messages of each, padded ones included."""

    nodes: Tensor
    width: int


def buckets(degree: Tensor, padded: bool) -> list[Bucket]:
    """Nodes with messages, by how many they have: exactly, or within a ratio of :data:`RATIO`. Waits for the device."""
    nodes = degree.argsort(stable=True)
    sorted_degree = degree[nodes]
    distinct, counts = (x.tolist() for x in torch.unique_consecutive(sorted_degree, return_counts=True))
    found: list[Bucket] = []
    start = 0
    while distinct:
        most = int(distinct[0] * RATIO) if padded else distinct[0]
        together = sum(1 for each in distinct if each <= most)
        stop = start + sum(counts[:together])
        if distinct[0] > 0:
            found.append(Bucket(nodes[start:stop], distinct[together - 1]))
        start = stop
        distinct, counts = distinct[together:], counts[together:]
    return found


def reduce_by_user(
    function: Callable[[NodeBatch], Columns], adjacency: Adjacency, messages: Columns, data: Frame
) -> dict[str, Tensor]:
    """Reduce every node's messages (of each name, a row for each edge) by a function of the user's; zero for nodes
    without. InputError: no node has messages, or a result has no row for each node."""
    csc = adjacency.csc()
    edge = csc.edge_ids()
    padded = bool(getattr(function, "maskable", False))
    parts: list[tuple[Tensor, Columns]] = []
    for nodes, width in buckets(csc.ptr.diff(), padded):
        begin = csc.ptr[nodes][:, None] + torch.arange(width, device=nodes.device)
        mask = begin < csc.ptr[nodes + 1][:, None] if padded else None
        positions = begin if mask is None else begin.where(mask, 0)
        ids = edge[positions.reshape(-1)]
        mailbox = {}
        for name, value in messages.items():
            rows = value.index_select(0, ids).view(nodes.numel(), width, *value.shape[1:])
            if mask is not None:
                rows = rows.masked_fill(~mask.view(*mask.shape, *(1,) * (rows.dim() - 2)), 0)
            mailbox[name] = rows
        made = function(NodeBatch(nodes.to(csc.ptr.dtype), Gathered(data, nodes), mailbox, mask))
        parts.append((nodes, checked(made, nodes.numel(), "reduce")))
    if not parts:
        problem = "cannot say what shape its result has: no node has messages"
        remedy = "Use a built-in reduce function, or leave out what has no edges."
        raise InputError("reduce", getattr(function, "__name__", repr(function)), problem, remedy)
    where = torch.cat([nodes for nodes, _ in parts])
    result = {}
    for name in parts[0][1]:
        values = torch.cat([columns[name] for _, columns in parts])
        whole = values.new_zeros((adjacency.destination_count, *values.shape[1:]))
        result[name] = whole.index_copy(0, where, values)
    return result


def checked(made: object, rows: int, what: str) -> dict[str, Tensor]:
    """Check what a function of the user's returned, and return it as a dictionary."""
    if not isinstance(made, Mapping):
        raise InputError(what, type(made).__name__, "returned no dictionary", "Return {name: tensor}.")
    for name, value in made.items():
        if not isinstance(value, Tensor) or value.dim() == 0 or value.shape[0] != rows:
            shown = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(f"{what}, {name!r}", shown, "has another number of rows", f"Return {rows} rows.")
    return dict(made)
