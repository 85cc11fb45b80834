"""The operators of a training step: nodes of the joint graph grouped into what a plan decides about.

:mod:`loadmaster.executor.memory.operators.grouping` does the grouping. It depends on the graph and on the registered
implementations only, never on costs, so that a plan finds the same operators in the process that runs it.
``fingerprint`` says so: it ends the name of every captured problem.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import fx

from loadmaster.executor.memory.implementations.norms import Recompute, recompute_node
from loadmaster.executor.memory.implementations.registry import BackwardAlternative, Site
from loadmaster.executor.steps.step_graph import StepGraph, tensors
from loadmaster.models.memory.plan import Compute
from loadmaster.models.memory.problem import last_readers

FINGERPRINT_DIGITS = 12


@dataclass(frozen=True, eq=False)
class Encoding:
    """Encoding of a forward operator's result, which is an operator of its own, for one backward node."""

    alternative: BackwardAlternative
    site: Site


@dataclass(frozen=True, eq=False)
class ForwardGroup:
    """One forward operator: nodes whose results a plan keeps or recomputes together.

    Attributes:
        nodes: its compute nodes in order; the last one makes the result that forward operators read.
        results: roots that others read: what is kept or recomputed.
        inputs: forward operators it reads, ascending.
        side: nodes that only update buffers: run once, in the forward pass.
        encodes: the operator that this one is derived from, in whose stage alone it can be had; it has no nodes then.
        encoding: how it is encoded. None with ``encodes`` set: a large result that only the backward pass reads
            (indices of a max-pool), made by the operator itself and kept or dropped on its own.
        overwrites: the operator whose result a compiler can write this one's over.
    """

    id: int
    nodes: tuple[fx.Node, ...]
    results: tuple[fx.Node, ...]
    inputs: tuple[int, ...]
    recomputable: bool = True
    side: tuple[fx.Node, ...] = ()
    encodes: int | None = None
    encoding: Encoding | None = None
    overwrites: int | None = None

    @property
    def name(self) -> str:
        """The graph node that names this operator in documents."""
        if self.encoding is None:
            return (self.results if self.encodes is not None else self.nodes)[-1].name
        return f"{self.encoding.alternative.name}:{self.encoding.site.backward.name}"


@dataclass(frozen=True, eq=False)
class Choice:
    """One way to run a backward operator: the graph as it stands, or an alternative in place of one node. It reads the
    results of the forward operators in ``needs`` (ascending), of which ``encoded`` is the encoded one, if any. Those in
    ``inlined`` are computed again inside the operator, for it alone; their inputs are among the needs."""

    needs: tuple[int, ...]
    alternative: BackwardAlternative | None = None
    site: Site | None = None
    encoded: int | None = None
    inlined: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class BackwardGroup:
    """One backward operator k = 1..K: compute nodes in order, and the ways to run them."""

    id: int
    nodes: tuple[fx.Node, ...]
    choices: tuple[Choice, ...]

    @property
    def name(self) -> str:
        """The graph node that names this operator in documents."""
        return self.nodes[-1].name


@dataclass(frozen=True, eq=False)
class Operators:
    """Forward and backward operators of a training step.

    Attributes:
        owner: for every root of the forward pass that is kept or recomputed, its operator.
        pinned: roots of the forward pass that stay in memory for the backward pass: small statistics that a
            recomputation reuses instead of making them again.
        recomputes: for nodes that are computed again in another way: how to make the result that is not pinned.
    """

    step_graph: StepGraph
    forward: tuple[ForwardGroup, ...]
    backward: tuple[BackwardGroup, ...]
    owner: dict[fx.Node, int]
    pinned: tuple[fx.Node, ...] = ()
    recomputes: dict[fx.Node, Recompute] = field(default_factory=dict)

    def written_over(self, compute: Compute) -> ForwardGroup | None:
        """The operator whose result goes where this one runs in place; None where it does not, or cannot."""
        over = self.forward[compute.forward].overwrites if compute.in_place else None
        return None if over is None else self.forward[over]

    @cached_property
    def last_readers(self) -> tuple[int, ...]:
        """Last reader of each forward operator's results, by operator; itself where none reads them."""
        return last_readers([f.inputs for f in self.forward])

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the structure: nodes, sizes, operators and implementations. Costs and weights do not enter."""
        described: list[object] = [self._describe(n) for n in self.step_graph.nodes]
        described += [[f.name, f.inputs, [r.name for r in f.results], f.recomputable] for f in self.forward]
        for b in self.backward:
            choices = [[c.needs, c.alternative.name if c.alternative else None, c.inlined] for c in b.choices]
            described.append([b.name, choices])
        return _hash(described)

    def is_within(self, other: Operators) -> bool:
        """Return whether the nodes are the same and no tensor is larger: what plans promise of the other step, they
        keep in this one."""
        (nodes, sizes), (other_nodes, other_sizes) = self._nodes_and_sizes, other._nodes_and_sizes
        return nodes == other_nodes and all(a <= b for a, b in zip(sizes, other_sizes, strict=True))

    @cached_property
    def _nodes_and_sizes(self) -> tuple[str, list[int]]:
        """Hash of the nodes, whatever the sizes of their tensors, and the bytes of each tensor."""
        described = [self._describe(n, sizes=False) for n in self.step_graph.nodes]
        made = [t for n in self.step_graph.nodes for t in tensors(n.meta.get("val"))]
        # Not of their storages: a short batch may be a slice of a long one.
        return _hash(described), [t.numel() * t.element_size() for t in made]

    def _describe(self, node: fx.Node, *, sizes: bool = True) -> list[object]:
        """A node as every process has it; without ``sizes``, as it is on a batch of any size."""

        def shown(tensor: torch.Tensor) -> list[object]:
            size = [list(tensor.shape), list(tensor.stride())] if sizes else []
            return [*size, str(tensor.dtype), tensor.device.type]

        def plain(argument: object) -> Any:
            """Nodes by their place, devices without the number of the rank's own."""
            if isinstance(argument, fx.Node):
                return f"%{self.step_graph.position[argument]}"
            if isinstance(argument, int) and not isinstance(argument, bool):
                return argument if sizes else None
            return argument.type if isinstance(argument, torch.device) else argument

        arguments = fx.node.map_aggregate((node.args, node.kwargs), plain)
        return [node.op, str(node.target), str(arguments), [shown(t) for t in tensors(node.meta.get("val"))]]


def _hash(described: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:FINGERPRINT_DIGITS]


def carried_over(operators: Operators, step_graph: StepGraph) -> Operators:
    """Carry operators over to the nodes in the same places of another graph, a smaller batch's with the same nodes.

    The grouping of nodes depends on bytes, so that a smaller batch may be grouped otherwise: where a weight is cast,
    its copy is a small part of what the backward pass reads of 128 images, and a large one of 10. A plan that is for
    the one is for the other in the same groups.
    """
    places = operators.step_graph.position

    def moved(node: fx.Node) -> fx.Node:
        return step_graph.nodes[places[node]]

    def all_moved(nodes: Iterable[fx.Node]) -> tuple[fx.Node, ...]:
        return tuple(map(moved, nodes))

    def site(old: Site) -> Site:
        return Site(moved(old.backward), all_moved(old.sources), None if old.parent is None else moved(old.parent))

    def recompute(old: Recompute) -> Recompute:
        found = recompute_node(moved(old.node))
        assert found is not None, "there is one of the same operator on the other graph"
        return found

    def forward(old: ForwardGroup) -> ForwardGroup:
        encoding = None if old.encoding is None else replace(old.encoding, site=site(old.encoding.site))
        nodes, results, side = map(all_moved, (old.nodes, old.results, old.side))
        return replace(old, nodes=nodes, results=results, side=side, encoding=encoding)

    def backward(old: BackwardGroup) -> BackwardGroup:
        choices = tuple(c if c.site is None else replace(c, site=site(c.site)) for c in old.choices)
        return replace(old, nodes=all_moved(old.nodes), choices=choices)

    return Operators(
        step_graph,
        tuple(map(forward, operators.forward)),
        tuple(map(backward, operators.backward)),
        {moved(root): owner for root, owner in operators.owner.items()},
        all_moved(operators.pinned),
        {moved(node): recompute(again) for node, again in operators.recomputes.items()},
    )
