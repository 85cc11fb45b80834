"""Emitting nodes of a joint graph into another graph: for the graphs that run, and for those that are only costed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from torch import fx

from loadmaster.executor.memory.operators.groups import Choice, ForwardGroup, Operators

Values = dict[fx.Node, fx.Node]


class Emitter:
    """Emits nodes of a joint graph into a new graph, and knows which new node holds which value. ``missing`` is called
    for a root that the new graph does not hold, and returns the new node or raises."""

    def __init__(self, operators: Operators, graph: fx.Graph, missing: Callable[[fx.Node], fx.Node]) -> None:
        self.operators = operators
        self.step_graph = operators.step_graph
        self.graph = graph
        self.held: Values = {}
        self.encoded: dict[int, fx.Node] = {}
        self._views: dict[fx.Node, Values] = {}
        self._missing = missing

    def value(self, node: fx.Node) -> fx.Node:
        """The new node that holds a joint node's value; views are made where they are first read."""
        root = self.step_graph.roots[node]
        if root not in self.held:
            self.held[root] = self._missing(root)
        if node is root:
            return self.held[root]
        views = self._views.setdefault(root, {})
        if node not in views:
            views[node] = self.graph.node_copy(node, self.value)
        return views[node]

    def run(self, node: fx.Node) -> None:
        self.bind(node, self.graph.node_copy(node, self.value))

    def bind(self, node: fx.Node, new: fx.Node) -> None:
        """Say that ``new`` holds what the compute node makes."""
        for root in self.step_graph.results[node]:
            self.forget(root)
            if root is node:
                self.held[root] = new
            else:
                element = self.graph.node_copy(root, lambda _: new)
                self.held[root] = element

    def encode(self, group: ForwardGroup) -> fx.Node:
        assert group.encoding is not None
        alternative, site = group.encoding.alternative, group.encoding.site
        self.encoded[group.id] = alternative.encode(self.graph, site, self.value)
        return self.encoded[group.id]

    def recompute(self, group: ForwardGroup) -> None:
        """Run a forward operator again; what only its own nodes read is forgotten."""
        if group.encoding is not None:
            self.encode(group)
        for node in group.nodes:
            again = self.operators.recomputes.get(node)
            if again is None:
                self.run(node)
                continue
            new = again.emit(self.graph, self.value)
            self.forget(again.node)
            self.held[again.node] = new
        for node in group.nodes[:-1]:
            for root in self.step_graph.results[node]:
                if root not in group.results and root not in self.operators.pinned:
                    self.forget(root)

    def differentiate(self, node: fx.Node, choice: Choice, encoded: Callable[[int], fx.Node]) -> None:
        """Run a backward node, or what the choice puts in its place; ``encoded`` gives the new node that holds the
        encoded result of a forward operator."""
        if choice.site is None or choice.alternative is None or node is not choice.site.backward:
            self.run(node)
            return
        code = None if choice.encoded is None else encoded(choice.encoded)
        self.bind(node, choice.alternative.emit(self.graph, choice.site, self.value, code))

    def forget_views(self) -> None:
        """Make views again where they are read next: a graph can be cut between stages then."""
        self._views.clear()

    def forget(self, root: fx.Node) -> None:
        self.held.pop(root, None)
        self._views.pop(root, None)


def placeholder(graph: fx.Graph, name: str, meta: dict[str, Any], before: fx.Node | None) -> fx.Node:
    """A placeholder before that node, with this metadata; its name is another one where ``name`` is taken."""
    with graph.inserting_before(before) if before is not None else contextlib.nullcontext():
        node = graph.placeholder(name)
    # Generated code would otherwise assign the argument to the free name, which the next argument may be called: two
    # values in one.
    node.target = node.name
    node.meta = dict(meta)
    return node


def stand_in(graph: fx.Graph, name: str, node: fx.Node) -> fx.Node:
    """A placeholder with the fake result of a node."""
    # Placeholders must come first, whenever they are asked for.
    return placeholder(graph, name, node.meta, next(iter(graph.nodes), None))


def encoded_meta(operators: Operators, i: int) -> dict[str, Any]:
    """Metadata (fake result) of an encoded result, found by encoding into a graph of its own."""
    graph = fx.Graph()
    emitter = Emitter(operators, graph, lambda root: stand_in(graph, root.name, root))
    return dict(emitter.encode(operators.forward[i]).meta)
