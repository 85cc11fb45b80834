"""The user's ``torch.utils.checkpoint``: what it covers is computed again in the backward pass, not kept for it.

AOTAutograd only marks such nodes, and leaves it to the partitioner of the graph to repeat them. Here they are repeated
in the joint graph, before it is split: so a plan counts their time, and the memory that they save.

Kept are, as in plain PyTorch, what a region is given and what it hands on; and random numbers, for no rank could draw
the same ones again: of a dropout the mask, from which its result is made again.
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
    """Whether a node repeats another one in the backward pass."""
    return _MADE_AGAIN in node.meta


def with_checkpoints(step_graph: StepGraph) -> StepGraph:
    """The step with all that is checkpointed repeated, each node before the first of the backward pass to read it."""
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
    """Repeated nodes of a step."""

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
        """The node, or its repetition, which is there before a reader."""
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
    """Whether it is the result of a dropout."""
    if node.target is not operator.getitem or node.args[1] != 0:
        return False
    made = node.args[0]
    return isinstance(made, fx.Node) and made.target is aten.native_dropout.default and is_random(made)
