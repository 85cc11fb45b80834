"""Small tools for writing implementations: emit an operator with its fake result, look through aliases."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import fx

from loadmaster.executor.steps.places import inherit

aten = torch.ops.aten

ALIASES = frozenset({aten.detach.default, aten.alias.default})
"""Operators whose result is their first argument under another name."""


def call(graph: fx.Graph, op: Any, *args: Any, **options: Any) -> fx.Node:
    """Emit ``op(*args, **options)``; ``meta["val"]`` of the new node is its result on the arguments' fake tensors, if
    all have one. Its place in the user's model is that of the node that it is put in front of, and stands in for."""
    node = graph.call_function(op, args, options)
    inherit(node, node.next)
    read = node.all_input_nodes
    if read and all("val" in n.meta for n in read):
        with torch.no_grad():
            node.meta["val"] = op(*fx.node.map_arg(args, lambda n: n.meta["val"]), **options)
    return node


def with_strides_of(graph: fx.Graph, node: fx.Node, like: fx.Node) -> fx.Node:
    """Emit a node's values in the memory layout of ``like``, which later views may rely on; itself where they agree."""
    have, want = node.meta.get("val"), like.meta.get("val")
    if have is None or want is None or have.numel() == 0 or have.stride() == want.stride():
        return node
    buffer = call(graph, aten.new_empty_strided.default, node, list(want.shape), list(want.stride()))
    return call(graph, aten.copy.default, buffer, node)


def source(argument: Any) -> fx.Node | None:
    """The node whose value this argument is, looking through aliases; None if it is not a node."""
    while isinstance(argument, fx.Node) and argument.target in ALIASES:
        argument = argument.args[0]
    return argument if isinstance(argument, fx.Node) else None


def readers(node: fx.Node, through: Collection[object], passed: list[fx.Node]) -> Iterator[fx.Node]:
    """Everything that reads the value, looking through these operators, which are noted in ``passed``."""
    for user in node.users:
        if user.target in through:
            passed.append(user)
            yield from readers(user, through, passed)
        else:
            yield user


def calls(joint: fx.GraphModule, op: Any) -> list[fx.Node]:
    """All calls of an operator, in graph order."""
    return [n for n in joint.graph.nodes if n.op == "call_function" and n.target is op]


def as_integers(argument: object, count: int) -> list[int]:
    """Integers of an argument with one for each dimension, where a single one stands for all ``count``."""
    assert isinstance(argument, list | tuple)
    return [int(v) for v in argument] * (count if len(argument) == 1 else 1)
