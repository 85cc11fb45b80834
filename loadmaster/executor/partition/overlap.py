"""Collectives of a compiled pass beside its kernels: begun early, waited for late.

A collective becomes two operators: one begins it, the other makes the stream wait for it. What is gathered from a given
share, a parameter most often, is begun while earlier operators run; what nothing in the pass reads, a gradient most
often, is waited for while later ones run. What is on its way takes memory: so many bytes at once, and at least one
collective ahead.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch import fx

from loadmaster.executor.partition import collectives
from loadmaster.executor.steps.step_graph import is_view

_Pair = tuple[fx.Node, fx.Node]


def overlapped(module: fx.GraphModule, at_once_bytes: int, *, alike: bool = True) -> fx.GraphModule:
    """The same pass with its collectives taken apart and moved, in place.

    Args:
        at_once_bytes: of what is begun early or waited for late.
        alike: whether all ranks have such a pass. If not, none is begun early: what that comes to depends on shapes,
            and all ranks must begin in one order.
    """
    graph = module.graph
    pairs = [_taken_apart(graph, node) for node in list(graph.nodes) if node.target in collectives.BEGUN]
    if alike:
        _begin_early(graph, [pair for pair in pairs if _is_from_given(pair[0])], at_once_bytes)
    _wait_late(graph, [pair for pair in pairs if _is_for_nobody(pair[1])], at_once_bytes)
    _in_order(graph)
    graph.lint()
    module.recompile()
    return module


def _begin_early(graph: fx.Graph, pairs: Sequence[_Pair], at_once_bytes: int) -> None:
    """Each right after the wait for the last one that leaves room for it."""
    moved: set[fx.Node] = set()
    first, on_their_way = 0, 0
    for n, (begin, _) in enumerate(pairs):
        on_their_way += _bytes(begin)
        while first < n - 1 and on_their_way > at_once_bytes:
            on_their_way -= _bytes(pairs[first][0])
            first += 1
        inputs = [node for node in _inputs(begin) if node not in moved]
        _move(inputs, pairs[first - 1][1].next if first else _first(graph))
        moved.update(inputs)


def _wait_late(graph: fx.Graph, pairs: Sequence[_Pair], at_once_bytes: int) -> None:
    """Each right after the begin of the first one that leaves no room for it."""
    last, on_their_way = 0, 0
    for n, (begin, wait) in enumerate(pairs):
        while last < len(pairs) and (last <= n + 1 or on_their_way <= at_once_bytes):
            on_their_way += _bytes(pairs[last][0])
            last += 1
        after = pairs[last - 1][0].next if on_their_way > at_once_bytes and last > n + 1 else graph.output_node()
        _move([wait, *_readers(wait)], after)
        on_their_way -= _bytes(begin)


def _bytes(begin: fx.Node) -> int:
    """Of what it moves, on this rank, whole."""
    values = (begin.meta["val"], begin.all_input_nodes[0].meta["val"])
    return max(int(value.numel() * value.element_size()) for value in values)


def _in_order(graph: fx.Graph) -> None:
    """Each collective is begun after the one before it: a compiler must not choose, for it chooses on every rank."""
    before: fx.Node | None = None
    for node in graph.nodes:
        if node.target in collectives.BEGUN.values():
            node.args = (*node.args, before)
            before = node


def _taken_apart(graph: fx.Graph, node: fx.Node) -> tuple[fx.Node, fx.Node]:
    # What it comes after is given to the pass: nothing has to wait for that.
    args = node.args[:-1] if isinstance(node.args[-1], fx.Node) else node.args
    with graph.inserting_before(node):
        begin = graph.call_function(collectives.BEGUN[node.target], args)
        wait = graph.call_function(collectives.wait_for, (begin,))
    begin.meta["val"] = wait.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(wait)
    graph.erase_node(node)
    return begin, wait


def _is_from_given(begin: fx.Node) -> bool:
    """Whether it moves something given, or a view of it."""
    found = begin.all_input_nodes[0]
    while _is_light(found):
        found = found.all_input_nodes[0]
    return found.op == "placeholder"


def _inputs(begin: fx.Node) -> list[fx.Node]:
    """It, behind the views that it moves a view through, in order."""
    found = [begin]
    while (source := found[0].all_input_nodes[0]).op != "placeholder":
        found.insert(0, source)
    return found


def _is_for_nobody(wait: fx.Node) -> bool:
    """Whether nothing but the pass's output reads it, or views of it."""
    return all(reader.op == "output" or _is_light(reader) for reader in _every_reader(wait))


def _readers(wait: fx.Node) -> list[fx.Node]:
    """Views of it, in order."""
    found = [reader for reader in _every_reader(wait) if reader.op != "output"]
    place = {node: n for n, node in enumerate(wait.graph.nodes)}
    return sorted(found, key=place.__getitem__)


def _every_reader(wait: fx.Node) -> list[fx.Node]:
    """What reads it, and, where that is a view, what reads the view."""
    found: dict[fx.Node, None] = {}
    ahead = list(wait.users)
    while ahead:
        reader = ahead.pop()
        if reader not in found:
            found[reader] = None
            if _is_light(reader):
                ahead += list(reader.users)
    return list(found)


def _is_light(node: fx.Node) -> bool:
    return node.op == "call_function" and is_view(node) and len(node.all_input_nodes) == 1


def _move(nodes: Sequence[fx.Node], before: Any) -> None:
    """Put nodes there, one after the other."""
    if nodes[0] is not before:
        before.prepend(nodes[0])
    for node, following in itertools.pairwise(nodes):
        node.append(following)


def _first(graph: fx.Graph) -> fx.Node:
    """The first node that is not given from outside."""
    found: fx.Node = next(node for node in graph.nodes if node.op != "placeholder")
    return found
