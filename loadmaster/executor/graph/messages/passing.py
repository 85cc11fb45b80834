"""A message pass: messages along edges, reduced at their destinations. Nothing is stored here, results are returned.

A built-in message under a built-in reduction is one g-SpMM. Any other pair has its messages made first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.kernels.spmm_messages import Target
from loadmaster.executor.graph.messages.functions import BuiltinMessage, BuiltinReduce
from loadmaster.executor.graph.messages.sparse import Operand, sddmm, spmm
from loadmaster.executor.graph.messages.user_functions import Columns, EdgeBatch, NodeBatch, checked, reduce_by_user
from loadmaster.executor.graph.structure.adjacency import Adjacency, positions_of
from loadmaster.executor.graph.structure.frames import Frame, RelationEnds

Message = BuiltinMessage | Callable[[EdgeBatch], Columns]
Reduce = BuiltinReduce | Callable[[NodeBatch], Columns]
Apply = Callable[[NodeBatch], Columns]
_ACROSS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "mean": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}
CrossReduce = Literal["sum", "mean", "max", "min", "stack"] | Callable[[Sequence[Tensor]], Tensor]


def edge_values(ends: RelationEnds, message: Message) -> dict[str, Tensor]:
    """The message of every edge, by name."""
    if isinstance(message, BuiltinMessage):
        left, right = _operands(ends, message)
        return {message.out: sddmm(ends.adjacency, message.operator, left, right)}
    _expect_function("message", message)
    return checked(message(EdgeBatch(ends)), ends.adjacency.edge_count, "message")


def reduced(ends: RelationEnds, message: Message, reduce: Reduce, apply: Apply | None = None) -> dict[str, Tensor]:
    """Results of a pass at every destination, by name; ``apply`` sees the reductions in ``nodes.data``. InputError: a
    field is missing or does not fit the rows, or a function returns what does not fit them."""
    if isinstance(reduce, BuiltinReduce):
        result = {reduce.out: _reduced_by_builtin(ends, message, reduce)}
    else:
        _expect_function("reduce", reduce)
        result = reduce_by_user(reduce, ends.adjacency, edge_values(ends, message), ends.destination)
    if apply is None:
        return result
    ids = torch.arange(ends.destination.rows, dtype=ends.adjacency.source.dtype, device=ends.adjacency.device)
    nodes = NodeBatch(ids, {**ends.destination.columns, **result}, {}, None)
    return {**result, **checked(apply(nodes), ends.destination.rows, "apply")}


def _reduced_by_builtin(ends: RelationEnds, message: Message, reduce: BuiltinReduce) -> Tensor:
    if isinstance(message, BuiltinMessage):
        _expect_name(message.out, reduce)
        left, right = _operands(ends, message)
        return spmm(ends.adjacency, message.operator, left, right, reduce.operator)
    values = edge_values(ends, message)
    if reduce.message not in values:
        _expect_name(next(iter(values), ""), reduce)
    return spmm(ends.adjacency, "copy", ("e", values[reduce.message]), None, reduce.operator)


def _expect_name(name: str, reduce: BuiltinReduce) -> None:
    if name != reduce.message:
        raise InputError("reduce", reduce.message, f"is no message: that is {name!r}", "Use one name for both.")


def _expect_function(what: str, function: object) -> None:
    if not callable(function):
        remedy = "Give a built-in function, or one of your own."
        raise InputError(what, type(function).__name__, "is no function", remedy)


def _operands(ends: RelationEnds, message: BuiltinMessage) -> tuple[Operand, Operand | None]:
    frames: dict[Target, Frame] = {"u": ends.source, "e": ends.edge, "v": ends.destination}
    where, name = message.left
    left = (where, frames[where][name])
    if message.right is None:
        return left, None
    where, name = message.right
    return left, (where, frames[where][name])


def only_edges(ends: RelationEnds, edges: Tensor) -> RelationEnds:
    """Keep these edges alone; data of nodes stay whole."""
    adjacency = ends.adjacency
    some = Adjacency(
        adjacency.source[edges], adjacency.destination[edges], adjacency.source_count, adjacency.destination_count
    )
    return RelationEnds(some, ends.source, ends.destination, ends.edge.selected(edges))


def only_into(ends: RelationEnds, nodes: Tensor) -> RelationEnds:
    """Keep the edges into these destinations alone, which are numbered as they are given."""
    csc = ends.adjacency.csc()
    positions, counts = positions_of(csc, nodes)
    edges = csc.edge_ids()[positions].long()
    ids = torch.arange(nodes.numel(), dtype=csc.neighbour.dtype, device=nodes.device)
    destination = ids.repeat_interleave(counts, output_size=positions.numel())
    some = Adjacency(csc.neighbour[positions], destination, ends.adjacency.source_count, nodes.numel())
    return RelationEnds(some, ends.source, ends.destination.selected(nodes.long()), ends.edge.selected(edges))


def renumbered_destinations(ends: RelationEnds) -> tuple[RelationEnds, Tensor]:
    """Keep the destinations that have edges alone; return their ids as well."""
    nodes, destination = torch.unique(ends.adjacency.destination, return_inverse=True)
    some = Adjacency(ends.adjacency.source, destination.to(nodes.dtype), ends.adjacency.source_count, nodes.numel())
    return RelationEnds(some, ends.source, ends.destination.selected(nodes.long()), ends.edge), nodes


def across(values: Mapping[str, list[Tensor]], how: CrossReduce) -> dict[str, Tensor]:
    """Reduce the values that several relations gave the same nodes. InputError: unknown reduction, or shapes differ."""
    if not callable(how) and how not in (*_ACROSS, "stack"):
        raise InputError("cross_reducer", how, "is unknown", f"Use one of: {', '.join(sorted([*_ACROSS, 'stack']))}.")
    result = {}
    for name, parts in values.items():
        if len({part.shape for part in parts}) > 1:
            shapes = [tuple(part.shape) for part in parts]
            raise InputError(name, shapes, "has another shape in every relation", "Give all relations one shape.")
        if callable(how):
            result[name] = how(parts)
        elif how == "stack":
            result[name] = torch.stack(parts, dim=1)
        else:
            whole = functools.reduce(_ACROSS[how], parts)
            result[name] = whole / len(parts) if how == "mean" else whole
    return result
