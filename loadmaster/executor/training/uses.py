"""Layers that read a parameter outside of the blocks, as the graph of a loss has them: before the blocks, or after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from loadmaster.executor.torch_private.autograd import sequence_number_of

# Autograd's node of a cast. Autocast makes one of a weight, and gives it to all that read it.
_CAST = "ToCopyBackward0"


def layers_that_read(
    loss: Tensor, parameters: Iterable[nn.Parameter], first_block: int, end_of_blocks: int, last: int
) -> dict[nn.Parameter, tuple[int, ...]]:
    """Number the layers that read each parameter, ascending: 0 before the blocks, ``last`` after them. Parameters that
    are also read between, or by nothing that the graph shows, are left out.

    Args:
        first_block, end_of_blocks: sequence numbers of autograd when the first block began and the last one ended.
    """
    found = {}
    for parameter, numbers in _readers(loss, parameters).items():
        read_by = {0 if n < first_block else last if n >= end_of_blocks else None for n in numbers}
        if read_by and None not in read_by:
            found[parameter] = tuple(sorted(layer for layer in read_by if layer is not None))
    return found


def _readers(loss: Tensor, parameters: Iterable[nn.Parameter]) -> Mapping[nn.Parameter, list[int]]:
    """Sequence numbers of the nodes that read each parameter, or a cast of it."""
    found: dict[nn.Parameter, list[int]] = {p: [] for p in parameters}
    nodes = _nodes(loss)
    gives = {node: leaf for node in nodes if (leaf := getattr(node, "variable", None)) in found}
    casts = (node for node in nodes if node.name() == _CAST)
    gives |= {cast: gives[read] for cast in casts for read, _ in cast.next_functions if read in gives}
    for node in nodes:
        for read, _ in node.next_functions:
            if read in gives:
                found[gives[read]].append(sequence_number_of(node))
    return found


def _nodes(loss: Tensor) -> list[Any]:
    """List the nodes of a graph."""
    todo: list[Any] = [loss.grad_fn]
    seen = {loss.grad_fn: None}
    while todo:
        for node, _ in todo.pop().next_functions:
            if node is not None and node not in seen:
                seen[node] = None
                todo.append(node)
    return list(seen)
