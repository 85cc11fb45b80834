"""User's ``torch.utils.checkpoint`` in the joint graph: what it covers is computed again in the backward pass.

AOTAutograd leaves repeating such nodes to the graph's partitioner. Here they are repeated before the graph is split: so
a plan counts their time, and the memory that they save. As in plain PyTorch, a region's inputs and the results that it
hands on are kept. Random numbers are kept as well, since no rank could draw the same ones again: for a dropout the
mask, from which its result is made again.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from loadmaster.executor.steps.places import inherit
from loadmaster.executor.steps.step_graph import StepGraph, is_random

aten = torch.ops.aten
_POLICY, _REGION = "recompute", "ac_graph_id"
_AGAIN = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
_MADE_AGAIN = "made_again"


def inherit_checkpoint(new: fx.Node, old: fx.Node) -> None:
    """Give a node the region and the policy of the one that it stands in for."""
    for key in (_POLICY, _REGION):
        if key in old.meta:
            new.meta[key] = old.meta[key]


def is_made_again(node: fx.Node) -> bool:
    """Return whether a node repeats another one in the backward pass."""
    return _MADE_AGAIN in node.meta


def with_checkpoints(step_graph: StepGraph) -> StepGraph:
    """Repeat all checkpointed nodes of a step, each before the first node of the backward pass that reads it."""
    again = _Again(step_graph)
    graph, forward = step_graph.module.graph, step_graph.forward
    for node in step_graph.nodes:
        if node.op == "call_function" and node not in forward and _POLICY not in node.meta:
            for source in node.all_input_nodes:
                node.replace_input_with(source, again.of(source, node))
    graph.eliminate_dead_code()
    step_graph.module.recompile()
    return replace(step_graph)


class _Again:
    """Repetitions of a step's checkpointed nodes, made as they are asked for."""

    def __init__(self, step_graph: StepGraph) -> None:
        self._graph = step_graph
        self._made: dict[fx.Node, fx.Node] = {}
        roots, forward = step_graph.roots, step_graph.forward
        self._handed_on = {roots[node] for node in step_graph.forward_outputs if isinstance(node, fx.Node)}
        for node in step_graph.nodes:
            region = node.meta.get(_REGION)
            if any(user in forward and user.meta.get(_REGION) != region for user in node.users):
                self._handed_on.add(roots[node])

    def of(self, node: fx.Node, reader: fx.Node) -> fx.Node:
        """Return the node, or its repetition, placed before a reader."""
        if not self._repeats(node):
            return node
        needed, ahead = {node}, [node]
        while ahead:
            for source in self._reads(ahead.pop()):
                if source not in needed and source not in self._made and self._repeats(source):
                    needed.add(source)
                    ahead.append(source)
        with self._graph.module.graph.inserting_before(reader):
            for one in sorted(needed - self._made.keys(), key=self._graph.position.__getitem__):
                self._made[one] = self._repeat(one)
        return self._made[node]

    def _repeats(self, node: fx.Node) -> bool:
        root = self._graph.roots[node]
        tagged = all(one.op == "call_function" and one.meta.get(_POLICY) in _AGAIN for one in (node, root))
        if not tagged or root in self._handed_on:
            return False
        drawn = self._graph.producer(root)
        return not is_random(drawn) or _is_dropped(root)

    def _reads(self, node: fx.Node) -> list[fx.Node]:
        return [node.args[0].args[0]] if _is_dropped(node) else node.all_input_nodes  # type: ignore[union-attr, list-item]

    def _repeat(self, node: fx.Node) -> fx.Node:
        graph = self._graph.module.graph
        if _is_dropped(node):
            made: Any = node.args[0]
            x, chance, *_ = made.args
            scale = 0.0 if chance == 1 else 1 / (1 - chance)
            new = graph.call_function(
                aten.native_dropout_backward.default, (self._made.get(x, x), self._mask(made), scale)
            )
            inherit(new, node)
            new.meta["val"] = node.meta["val"]
        else:
            new = graph.node_copy(node, lambda source: self._made.get(source, source))
            for key in (_POLICY, _REGION):
                new.meta.pop(key, None)
        new.meta[_MADE_AGAIN] = True
        return new

    def _mask(self, dropout: fx.Node) -> fx.Node:
        known = next((user for user in dropout.users if user.target is operator.getitem and user.args[1] == 1), None)
        if known is None:
            with dropout.graph.inserting_after(dropout):
                known = dropout.graph.call_function(operator.getitem, (dropout, 1))
            known.meta["val"] = dropout.meta["val"][1]
        return known


def _is_dropped(node: fx.Node) -> bool:
    if node.target is not operator.getitem or node.args[1] != 0:
        return False
    made = node.args[0]
    return isinstance(made, fx.Node) and made.target is aten.native_dropout.default and is_random(made)
