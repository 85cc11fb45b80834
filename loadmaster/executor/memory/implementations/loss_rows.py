"""Rows of a linear layer's result that a loss reads, as models write it: viewed, widened, sliced, transposed.

Language models drop the last position (``logits[:, :-1]``), others keep the last one alone, or put the classes in front
of the positions. Rows that the loss never reads are rows whose target is to be ignored: with targets laid out for all
rows, one operator serves them all, and no row is copied.

Worked example: 2 x 3 rows of logits, ``logits[:, :-1].reshape(4, classes)`` and targets [5, 6, 7, 8]. Backwards through
the steps, the targets are viewed as [[5, 6], [7, 8]], put into 2 x 3 targets of -100, [[5, 6, -100], [7, 8, -100]], and
viewed as the 6 rows that the layer has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from loadmaster.executor.memory.implementations.emitting import ALIASES, aten, call
from loadmaster.executor.memory.implementations.logit_maps import is_map

VIEWS = frozenset({aten.view.default, aten._unsafe_view.default, aten.reshape.default})
COPIES = ALIASES | {aten._to_copy.default, aten.clone.default}
MOVES = frozenset({aten.transpose.int, aten.permute.default})
SELECTIONS = frozenset({aten.slice.Tensor, aten.select.int})
STEPS = VIEWS | COPIES | MOVES | SELECTIONS
"""Operators between a linear layer and its loss that change no number but its precision; maps aside."""
BACKWARD_STEPS = VIEWS | COPIES | MOVES | {aten.slice_backward.default, aten.select_backward.default}
"""Operators that the gradients of :data:`STEPS` go through."""


@dataclass(frozen=True)
class Step:
    """One step on rows, classes left out.

    Attributes:
        target: the operator; the arguments are those after the tensor, dimensions counted among rows.
        before: the rows' shape before it.
    """

    target: object
    arguments: tuple[object, ...]
    before: tuple[int, ...]


def steps_to(path: Sequence[fx.Node], rows: int, classes: int) -> tuple[list[Step], int] | None:
    """The steps on rows along a path from [rows, classes], and the dimension of the classes at its end.

    None where a step does more than choose and arrange rows: it cuts into the classes, or mixes them with rows.
    """
    steps: list[Step] = []
    shape, at = (rows, classes), 1
    for node in path:
        after = tuple(node.meta["val"].shape)
        kept = _without(shape, at)
        if node.target in VIEWS:
            viewed = _viewed(shape, at, after)
            if viewed is None:
                return None
            at = viewed
            steps.append(Step(aten.view.default, (), kept))
        elif node.target in MOVES:
            order = _order(node, len(shape))
            moved = [n - (n > at) for n in order if n != at]
            at = order.index(at)
            if moved != sorted(moved):
                steps.append(Step(aten.permute.default, (tuple(moved),), kept))
        elif node.target in SELECTIONS:
            given = list(node.args[1:])
            if node.target is aten.slice.Tensor:
                given += _SLICE[len(given) :]
            dim, where = given[0], given[1:]
            assert isinstance(dim, int)
            dim %= len(shape)
            if dim == at:
                return None
            steps.append(Step(node.target, (dim - (dim > at), *where), kept))
            if node.target is aten.select.int:
                at -= dim < at
        elif added_row(node) is not None:
            if at != len(shape) - 1:
                return None
        elif node.target not in COPIES and not is_map(node):
            return None
        shape = after
    return steps, at


def added_row(node: fx.Node) -> fx.Node | None:
    """The row that the node adds to every row of its first argument; None if it does anything else."""
    if node.target is not aten.add.Tensor or node.kwargs or not isinstance(node.args[1], fx.Node):
        return None
    value, row = node.meta["val"], node.args[1].meta["val"]
    fits = row.dim() > 0 and row.shape[-1] == row.numel() == value.shape[-1]
    return node.args[1] if fits and node.args[0].meta["val"].shape == value.shape else None  # type: ignore[union-attr]


# What is left out of slice(tensor, dim, start, end, step) after the tensor.
_SLICE = [0, None, None, 1]


def _without(shape: Sequence[int], at: int) -> tuple[int, ...]:
    return (*shape[:at], *shape[at + 1 :])


def _order(node: fx.Node, dims: int) -> list[int]:
    if node.target is aten.permute.default:
        return [int(n) % dims for n in node.args[1]]  # type: ignore[union-attr, arg-type]
    order = list(range(dims))
    a, b = (int(n) % dims for n in node.args[1:3])  # type: ignore[arg-type]
    order[a], order[b] = order[b], order[a]
    return order


def _viewed(shape: tuple[int, ...], at: int, after: tuple[int, ...]) -> int | None:
    """Dimension of the classes in a view, with as many elements before and behind it; None if it is not unique."""
    before = behind = 1
    for size in shape[:at]:
        before *= size
    for size in shape[at + 1 :]:
        behind *= size
    found, front = [], 1
    for n, size in enumerate(after):
        rest = 1
        for later in after[n + 1 :]:
            rest *= later
        if size == shape[at] and front == before and rest == behind:
            found.append(n)
        front *= size
    return found[0] if len(found) == 1 else None


def laid_out(graph: fx.Graph, targets: fx.Node, steps: Sequence[Step], unread: float) -> fx.Node:
    """Emit targets, or weights, for all rows of the layer: ``unread`` for rows that the loss does not read."""
    for step in reversed(steps):
        if step.target is aten.view.default:
            targets = call(graph, aten.view.default, _contiguous(graph, targets), list(step.before))
        elif step.target is aten.permute.default:
            order = step.arguments[0]
            assert isinstance(order, tuple)
            targets = call(graph, aten.permute.default, targets, [order.index(n) for n in range(len(order))])
        else:
            ignored = call(graph, aten.new_full.default, targets, list(step.before), unread)
            scatter = aten.slice_scatter if step.target is aten.slice.Tensor else aten.select_scatter
            targets = call(graph, scatter.default, ignored, targets, *step.arguments)
    return _contiguous(graph, targets)


def _contiguous(graph: fx.Graph, node: fx.Node) -> fx.Node:
    if node.meta["val"].is_contiguous():
        return node
    return call(graph, aten.clone.default, node, memory_format=torch.contiguous_format)
