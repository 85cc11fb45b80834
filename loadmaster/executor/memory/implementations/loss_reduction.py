"""Reduction of the losses of rows to one number, as models write it: masked, scaled, added up or averaged; and back.

Up to the number, and beyond it up to the sum of two losses, every operator is linear in the losses. So its backward is
the same operator on the gradient, and a chain of them is known by what it multiplies each row's loss with.

Worked example: ``(losses * mask).sum() / mask.sum()``. From the losses one operator leads to the product, the next to
the sum, and there is a number: the sum of losses with the weights ``mask``. Its gradient is what the gradient of the
losses, ``expand(gradient) * mask``, was made of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import fx

from loadmaster.executor.memory.implementations.emitting import ALIASES, aten, call, source
from loadmaster.executor.memory.implementations.logit_path import VIEWS

_PRODUCTS = frozenset({aten.mul.Tensor, aten.mul.Scalar})
_QUOTIENTS = frozenset({aten.div.Tensor, aten.div.Scalar})
_RESHAPES = VIEWS | {aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.default}
_SPREADS = _RESHAPES | ALIASES | {aten.expand.default}
_DIVIDES, _MULTIPLIES, _DROPS = "divides", "multiplies", "drops"


@dataclass
class Chain:
    """A chain of operators on losses, up to a forward node and the backward node that has its gradient. Losses have
    been multiplied by the constant ``factor`` and by the tensors in ``weights``, each with what it does and the shape
    that the losses had then. ``between`` has all nodes passed on the way."""

    value: fx.Node
    gradient: fx.Node
    factor: float = 1.0
    weights: list[tuple[fx.Node, str, torch.Size]] = field(default_factory=list)
    between: list[fx.Node] = field(default_factory=list)

    def to_number(self) -> bool:
        """Climb until one number is left; returns whether there is one, and its gradient is one number, too."""
        while self.value.meta["val"].dim():
            if not self.climb():
                return False
        return bool(self.gradient.meta["val"].dim() == 0)

    def climb(self) -> bool:
        """Go on to the only reader; returns False where it is not a known one, or more than one reads the value."""
        reader = self.only_reader
        if reader is None or not self._pass(reader):
            return False
        self.between.append(self.value)
        self.value = reader
        return True

    @property
    def only_reader(self) -> fx.Node | None:
        """The one operator that reads the value."""
        readers = list(self.value.users)
        return readers[0] if len(readers) == 1 and readers[0].op == "call_function" else None

    def _pass(self, reader: fx.Node) -> bool:
        """Go back over the reader's gradient, and note what it multiplies with."""
        target, shape = reader.target, self.value.meta["val"].shape
        if target in _RESHAPES:
            return True
        if target is aten.sum.default and not reader.kwargs:
            self._back_over_spreads()
            return True
        if target is aten.mean.default and not reader.kwargs:
            self._back_over_spreads()
            divided = self._back_over(_QUOTIENTS, shape.numel()) and self._times(1 / max(1, shape.numel()))
            self._back_over_spreads()
            return divided
        if reader.meta["val"].shape != shape:
            return False
        if target is aten._to_copy.default:
            self._back_over_spreads()
            return self._back_over({aten._to_copy.default})
        if target is aten.masked_fill.Scalar and shape and reader.args[0] is self.value and reader.args[2] == 0:
            return self._weighs(reader.args[1], _DROPS, {target}, shape)
        if target in _PRODUCTS:
            other = reader.args[1] if reader.args[0] is self.value else reader.args[0]
            return self._weighs(other, _MULTIPLIES, _PRODUCTS, shape)
        if target in _QUOTIENTS and reader.args[0] is self.value and not reader.kwargs:
            return self._weighs(reader.args[1], _DIVIDES, _QUOTIENTS, shape)
        return False

    def _weighs(self, other: object, how: str, targets: frozenset[object] | set[object], shape: torch.Size) -> bool:
        self._back_over_spreads()
        if not self._back_over(targets, other):
            return False
        if isinstance(other, fx.Node):
            self.weights.append((other, how, shape))
            return True
        assert isinstance(other, int | float)
        return other != 0 and self._times(1 / other if how is _DIVIDES else other)

    def _times(self, factor: float) -> bool:
        self.factor *= factor
        return math.isfinite(self.factor) and self.factor != 0

    def _back_over_spreads(self) -> None:
        while self.gradient.target in _SPREADS:
            self._back_to(self.gradient.args[0])

    def _back_over(self, targets: frozenset[object] | set[object], other: object = None) -> bool:
        """Go back over one node of the gradient: a call of one of these operators, with this other argument."""
        node = self.gradient
        if node.target not in targets:
            return False
        if other is None or (len(node.args) > 1 and _same(node.args[1], other)):
            return self._back_to(node.args[0])
        return node.target in _PRODUCTS and _same(node.args[0], other) and self._back_to(node.args[1])

    def _back_to(self, node: object) -> bool:
        if not isinstance(node, fx.Node):
            return False
        self.between.append(self.gradient)
        self.gradient = node
        return True


def _same(one: object, other: object) -> bool:
    if isinstance(one, fx.Node) or isinstance(other, fx.Node):
        return source(one) is source(other)
    return one == other


def row_weights(graph: fx.Graph, chain: Chain, shape: torch.Size, dtype: torch.dtype) -> fx.Node | None:
    """Emit what a chain multiplies the loss of each row with, its constants left out; None where that is nothing.
    ``shape`` is that of the rows' losses where the chain starts."""
    rows: fx.Node | None = None
    for weight, how, seen in chain.weights:
        if seen and how is not _DROPS:
            other = call(graph, aten._to_copy.default, _of_rows(graph, weight, seen, shape), dtype=dtype)
            rows = _combined(graph, rows, other, how)
    return rows


def without_dropped(graph: fx.Graph, chain: Chain, rows: fx.Node, instead: float) -> fx.Node:
    """Emit what is given for the rows, with another number where a chain drops a row's loss, even an infinite one."""
    for weight, how, seen in chain.weights:
        if how is _DROPS:
            dropped = _of_rows(graph, weight, seen, rows.meta["val"].shape)
            rows = call(graph, aten.masked_fill.Scalar, rows, dropped, instead)
    return rows


def _of_rows(graph: fx.Graph, weight: fx.Node, seen: torch.Size, shape: torch.Size) -> fx.Node:
    """A tensor that losses of the shape ``seen`` meet, for losses of another shape."""
    rows = call(graph, aten.expand.default, weight, list(seen))
    if seen == shape:
        return rows
    rows = call(graph, aten.clone.default, rows, memory_format=torch.contiguous_format)
    return call(graph, aten.view.default, rows, list(shape))


def number(graph: fx.Graph, chain: Chain, dtype: torch.dtype) -> fx.Node | None:
    """Emit what a chain multiplies the one number with, once it is there, constants left out; None for nothing."""
    found: fx.Node | None = None
    for weight, how, seen in chain.weights:
        if not seen:
            other = call(graph, aten._to_copy.default, weight, dtype=dtype)
            found = _combined(graph, found, other, how)
    return found


def _combined(graph: fx.Graph, product: fx.Node | None, other: fx.Node, how: str) -> fx.Node:
    if product is None:
        return call(graph, aten.reciprocal.default, other) if how is _DIVIDES else other
    return call(graph, aten.div.Tensor if how is _DIVIDES else aten.mul.Tensor, product, other)
