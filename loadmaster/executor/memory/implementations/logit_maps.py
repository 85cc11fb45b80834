"""What models do to each logit between the head and the loss: scale it, or cap it softly.

Cohere multiplies logits with a constant, Granite divides them, Gemma 2 takes ``cap * tanh(logits / cap)``. All are
``cap * tanh(scale * logit / cap)``, or ``scale * logit`` without a cap, one number computed from each logit: a chunk of
logits can be mapped while it is there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import fx

from loadmaster.executor.memory.implementations.emitting import aten, source


def is_map(node: fx.Node) -> bool:
    """Whether the node multiplies or divides by a constant, or takes the hyperbolic tangent."""
    if node.target is aten.tanh.default:
        return True
    return _constant(node) is not None


def _constant(node: fx.Node) -> float | None:
    """What the node multiplies its first argument with; None where it does anything else."""
    if node.target not in (aten.mul.Tensor, aten.div.Tensor) or node.kwargs:
        return None
    number: Any = node.args[1]
    if isinstance(number, bool) or not isinstance(number, int | float) or number == 0 or not math.isfinite(number):
        return None
    return number if node.target is aten.mul.Tensor else 1 / number


def scale_and_cap(maps: Sequence[fx.Node]) -> tuple[float, float] | None:
    """The scale, and the cap or 0 for none, of these maps one after another; None where they are more than that."""
    inner, outer, capped = 1.0, 1.0, False
    for node in maps:
        constant = _constant(node)
        if constant is None and capped:
            return None
        if constant is None:
            capped = True
        elif capped:
            outer *= constant
        else:
            inner *= constant
    # The hyperbolic tangent is odd: the sign of what comes after it may go before it.
    return (inner * outer, abs(outer)) if capped else (inner, 0.0)


def is_backward(node: fx.Node, of: fx.Node) -> bool:
    """Whether a node turns the gradient of a map's result, its first argument, into that of the map's argument."""
    if of.target is aten.tanh.default:
        return node.target is aten.tanh_backward.default and source(node.args[1]) is of
    return node.target is of.target and node.args[1:] == of.args[1:]
