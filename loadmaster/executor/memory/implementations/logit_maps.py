"""Maps of each logit between the head and the loss: models scale it, or cap it softly.

Cohere multiplies logits with a constant, Granite divides them, Gemma 2 takes ``cap * tanh(logits / cap)``, and some
take a sigmoid, which is a hyperbolic tangent but for a number that all logits of a row share, and so for the loss. All
are ``cap * tanh(scale * logit / cap)``, or ``scale * logit`` without a cap, one number computed from each logit: they
can be mapped chunk by chunk. A scale in a tensor, such as a learned temperature, may as well scale what the head reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from loadmaster.executor.memory.implementations.emitting import aten, source

BACKWARD_OF_BENDS = {
    aten.tanh.default: aten.tanh_backward.default,
    aten.sigmoid.default: aten.sigmoid_backward.default,
}
SUMS = (aten.sum.default, aten.sum.dim_IntList)


@dataclass(frozen=True)
class Maps:
    """All maps of a logit in one: ``cap * tanh(scale * logit / cap)``, or ``scale * logit`` without a cap.

    Attributes:
        cap: 0 for none.
        shifts: whether the logits of a row are off by one number.
        by: the node that multiplies with, or divides by, a tensor of one element, before a cap.
    """

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
    """Backward nodes of a map of logits.

    Attributes:
        gradient: of what it maps.
        of_scale: the gradient of the tensor that it scales by; None where nobody asks for it.
        between: nodes on the way.
    """

    gradient: fx.Node
    of_scale: fx.Node | None
    between: list[fx.Node]

    @classmethod
    def find(cls, node: fx.Node, readers: Sequence[fx.Node], known: set[fx.Node]) -> Back | None:
        """Find the backward of a map among the readers of its result's gradient; None where something else reads it.

        Args:
            known: nodes that hold this gradient.
        """
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
    """Nodes from a reader to the gradient of the tensor that a node scales by; None if it computes anything else.

    Of ``logits * scale`` it is ``sum(gradient * logits)``, of ``logits / scale`` it is
    ``sum(-gradient * (logits / scale / scale))``.
    """
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
