"""Operators between a linear layer and its loss, as models write them: logits mapped one by one, rows rearranged.

**Maps.** Cohere multiplies logits with a constant, Granite divides them, Gemma 2 takes ``cap * tanh(logits / cap)``,
and some take a sigmoid, which is a hyperbolic tangent but for a number that all logits of a row share, and so for the
loss. All are ``cap * tanh(scale * logit / cap)``, or ``scale * logit`` without a cap, one number computed from each
logit: they can be mapped chunk by chunk. A scale in a tensor, such as a learned temperature, may as well scale what the
head reads.

**Rows.** Language models drop the last position (``logits[:, :-1]``), others keep the last one alone, or put the
classes in front of the positions. Rows that the loss never reads are rows whose target is to be ignored: with targets
laid out for all rows, one operator serves them all, and no row is copied.

Worked example: 2 x 3 rows of logits, ``logits[:, :-1].reshape(4, classes)`` and targets [5, 6, 7, 8]. Backwards through
the steps, the targets are viewed as [[5, 6], [7, 8]], put into 2 x 3 targets of -100, [[5, 6, -100], [7, 8, -100]], and
viewed as the 6 rows that the layer has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from loadmaster.executor.memory.implementations.emitting import ALIASES, aten, call, source

BACKWARD_OF_BENDS = {aten.tanh.default: aten.tanh_backward.default, aten.sigmoid.default: aten.sigmoid_backward.default}
SUMS = (aten.sum.default, aten.sum.dim_IntList)


@dataclass(frozen=True)
class Maps:
    """All maps of a logit in one: ``cap * tanh(scale * logit / cap)``, or ``scale * logit`` where ``cap`` is 0. With
    ``shifts`` the logits of a row are off by one number; ``by`` is the node that multiplies with, or divides by, a
    tensor of one element, before a cap."""

    scale: float
    cap: float
    shifts: bool
    by: fx.Node | None

    @classmethod
    def of(cls, nodes: Sequence[fx.Node]) -> Maps | None:
        """Compose nodes that follow one another; None where they are more than a scale and a cap."""
        inner = outer = 1.0
        bend = by = None
        for node in nodes:
            constant = _constant(node)
            if constant is not None and bend is None:
                inner *= constant
            elif constant is not None:
                outer *= constant
            elif bend is not None:
                return None
            elif node.target in BACKWARD_OF_BENDS:
                bend = node.target
            elif by is None:
                by = node
            else:
                return None
        if bend is None:
            return cls(inner, 0.0, False, by)
        # sigmoid(x) = tanh(x / 2) / 2 + 1 / 2. The tangent is odd: the sign of what comes after it may go before it.
        half = 0.5 if bend is aten.sigmoid.default else 1.0
        return cls(half * inner * half * outer, abs(half * outer), half != 1, by)


def is_map(node: fx.Node) -> bool:
    """Return whether the node scales by one number, or takes a hyperbolic tangent or sigmoid."""
    return node.target in BACKWARD_OF_BENDS or _constant(node) is not None or by_tensor(node) is not None


def logits_of(node: fx.Node) -> Any:
    """The argument that a map maps; of any other node the first one."""
    scale = by_tensor(node)
    return node.args[1] if scale is not None and node.args[0] is scale else node.args[0]


def _constant(node: fx.Node) -> float | None:
    """The number that the node multiplies its first argument with; None where it does anything else."""
    if node.target not in (aten.mul.Tensor, aten.div.Tensor) or node.kwargs:
        return None
    number: Any = node.args[1]
    if isinstance(number, bool) or not isinstance(number, int | float) or number == 0 or not math.isfinite(number):
        return None
    return number if node.target is aten.mul.Tensor else 1 / number


def by_tensor(node: fx.Node) -> fx.Node | None:
    """The tensor of one element that the node multiplies with or divides by; None where it does anything else."""
    if node.target not in (aten.mul.Tensor, aten.div.Tensor) or node.kwargs:
        return None
    places = (1, 0) if node.target is aten.mul.Tensor else (1,)
    for place in places:
        scale, logits = node.args[place], node.args[1 - place]
        if isinstance(scale, fx.Node) and isinstance(logits, fx.Node) and scale.meta["val"].numel() == 1:
            fits = logits.meta["val"].shape == node.meta["val"].shape and scale.meta["val"].is_floating_point()
            return scale if fits else None
    return None


@dataclass(frozen=True)
class Back:
    """Backward nodes of a map of logits: the ``gradient`` of what it maps, that of the tensor that it scales by
    (``of_scale``; None where nobody asks for it), and the nodes ``between``."""

    gradient: fx.Node
    of_scale: fx.Node | None
    between: list[fx.Node]

    @classmethod
    def find(cls, node: fx.Node, readers: Sequence[fx.Node], known: set[fx.Node]) -> Back | None:
        """Find the backward of a map among the readers of its result's gradient, which ``known`` nodes hold; None where
        something else reads it."""
        found: Back | None = None
        of_scale: list[fx.Node] | None = None
        for reader in readers:
            if _is_backward(reader, node, known) and found is None:
                found = cls(reader, None, [reader])
            elif of_scale is None and by_tensor(node) is not None:
                of_scale = _of_scale(reader, node, known)
                if of_scale is None:
                    return None
            else:
                return None
        if found is None or of_scale is None:
            return found
        return cls(found.gradient, of_scale[-1], [*found.between, *of_scale])


def _is_backward(reader: fx.Node, node: fx.Node, known: set[fx.Node]) -> bool:
    """Return whether a reader computes the gradient of what a node maps."""
    if node.target in BACKWARD_OF_BENDS:
        first, second = reader.args[:2] if len(reader.args) > 1 else (None, None)
        return reader.target is BACKWARD_OF_BENDS[node.target] and first in known and source(second) is node
    if reader.target is not node.target:
        return False
    scale = by_tensor(node)
    if scale is None:
        return reader.args[0] in known and reader.args[1:] == node.args[1:]
    places = (0, 1) if node.target is aten.mul.Tensor else (0,)
    return any(reader.args[at] in known and source(reader.args[1 - at]) is source(scale) for at in places)


def _of_scale(reader: fx.Node, node: fx.Node, known: set[fx.Node]) -> list[fx.Node] | None:
    """Nodes from a reader to the gradient of the tensor that a node scales by; None if it computes anything else. Of
    ``logits * scale`` it is ``sum(gradient * logits)``, of ``logits / scale`` it is
    ``sum(-gradient * (logits / scale / scale))``."""
    scale, logits = by_tensor(node), logits_of(node)
    chain = [reader]
    if node.target is aten.div.Tensor:
        if reader.target is not aten.neg.default or len(reader.users) != 1:
            return None
        chain.append(next(iter(reader.users)))
    product = chain[-1]
    if product.target is not aten.mul.Tensor or len(product.users) != 1:
        return None
    others = [a for a in product.args if a not in known and a not in chain]
    if len(others) != 1:
        return None
    other = others[0]
    if node.target is aten.div.Tensor:
        for _ in range(2):
            if not isinstance(other, fx.Node) or other.target is not aten.div.Tensor:
                return None
            if source(other.args[1]) is not source(scale):
                return None
            chain.insert(0, other)
            other = other.args[0]
    total = next(iter(product.users))
    if source(other) is not source(logits) or total.target not in SUMS or total.meta["val"].numel() != 1:
        return None
    return [*chain, total]


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
    """One step on rows of the shape ``before``, classes left out: the operator and its arguments after the tensor,
    dimensions counted among rows."""

    target: object
    arguments: tuple[object, ...]
    before: tuple[int, ...]


def steps_to(path: Sequence[fx.Node], rows: int, classes: int) -> tuple[list[Step], int] | None:
    """The steps on rows along a path from [rows, classes], and the dimension of the classes at its end. None where a
    step does more than choose and arrange rows: it cuts into the classes, or mixes them with rows."""
    steps: list[Step] = []
    shape, at = (rows, classes), 1
    for node in path:
        after = tuple(node.meta["val"].shape)
        kept = (*shape[:at], *shape[at + 1 :])
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


def _order(node: fx.Node, dims: int) -> list[int]:
    if node.target is aten.permute.default:
        return [int(n) % dims for n in node.args[1]]  # type: ignore[union-attr, arg-type]
    order = list(range(dims))
    a, b = (int(n) % dims for n in node.args[1:3])  # type: ignore[arg-type]
    order[a], order[b] = order[b], order[a]
    return order


def _viewed(shape: tuple[int, ...], at: int, after: tuple[int, ...]) -> int | None:
    """Dimension of the classes in a view, with as many elements before and behind it; None if it is not unique."""
    split = (math.prod(shape[:at]), shape[at], math.prod(shape[at + 1 :]))
    found = [n for n, size in enumerate(after) if (math.prod(after[:n]), size, math.prod(after[n + 1 :])) == split]
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
