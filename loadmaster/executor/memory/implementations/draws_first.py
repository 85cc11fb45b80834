"""Small random tensors that read nothing are drawn before all else: those of stochastic depth.

Each block of a network draws one number an image, with a probability of its own. Code that has it is code of that block
alone; blocks that read what was drawn are equal, and compiled once (:mod:`loadmaster.executor.memory.run.repeats`).

    empty -> bernoulli(0.9) -> div(0.9) -> mul(x) -> ...     all but mul, and what follows it, come first
"""

from __future__ import annotations

import torch
from torch import fx

from loadmaster.executor.costs.traffic import value_bytes, value_of
from loadmaster.executor.steps.step_graph import is_random

aten = torch.ops.aten

DRAWN_FIRST = "loadmaster_drawn_first"
"""Metadata key of what was moved. It is kept as it is: computed again, it would be computed in each block."""
MOST_BYTES = 1 << 16
"""Largest result that is moved: what is drawn early stays in memory until it is read."""


def draw_first(graph: fx.Graph) -> None:
    """Move small random tensors, and what is made from them and constants alone, to the beginning of a joint graph."""
    for node in graph.find_nodes(op="call_function", target=aten.new_empty.default):
        _read_nothing(node)
    hangs_on: dict[fx.Node, set[fx.Node]] = {}  # of what reads nothing but constants: all that it is made from
    for node in graph.nodes:
        sources = node.all_input_nodes
        is_small = node.op == "call_function" and value_bytes(value_of(node)) <= MOST_BYTES
        if is_small and all(source in hangs_on for source in sources):
            hangs_on[node] = {node}.union(*(hangs_on[source] for source in sources))
    moved = set().union(*(made_from for made_from in hangs_on.values() if any(map(is_random, made_from))))
    last = next(node for node in reversed(graph.nodes) if node.op == "placeholder")
    for node in [node for node in graph.nodes if node in moved]:
        last.append(node)
        last = node
        node.meta[DRAWN_FIRST] = True


def _read_nothing(node: fx.Node) -> None:
    """Make ``x.new_empty(shape)`` an ``empty`` that does not read x, whose type and device are known."""
    made = value_of(node)
    node.target, node.args = aten.empty.memory_format, (list(made.shape),)
    node.kwargs = {"dtype": made.dtype, "device": made.device}
