"""Bytes and times of the operators of a step, in the terms of the memory problem.

Inside an operator every node is replayed: results appear when their node runs and go after their last reader, on top
of the workspace the cost model names. What that peak has beyond the operator's result is its workspace, which can be
negative for a backward operator that frees what it read before its last result appears. Across operators the
backward pass is replayed the same way: gradients that return to the user stay, the others go after their last reader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from torch import fx

from loadmaster.executor.costs.model import CostModel
from loadmaster.executor.memory.joint import Joint, is_compute
from loadmaster.executor.memory.operators import Choice, Encoding, ForwardGroup, Operators


@dataclass(frozen=True)
class Usage:
    """Time of a run and its highest bytes beside what was there before (results included)."""

    time_us: float
    peak_bytes: int


@dataclass(frozen=True)
class BackwardUsage:
    """Bytes around one backward operator: gradients alive before it, resident bytes, result, and peak inside."""

    live_bytes: int
    fixed_bytes: int
    output_bytes: int
    workspace_bytes: tuple[int, ...]
    time_us: tuple[float, ...]


class Accountant:
    """Costs and sizes of one step's operators.

    Args:
        fused: whether the nodes of an operator run as fused kernels (Inductor) or one by one (eager).
        resident_bytes: parameters, buffers, inputs, optimizer state.
    """

    def __init__(self, operators: Operators, costs: CostModel, *, fused: bool, resident_bytes: int) -> None:
        self.operators = operators
        self.joint = operators.joint
        self.costs = costs
        self.fused = fused
        buffers = {
            self.joint.roots[n]
            for n in self.joint.forward_outputs[:-1]
            if isinstance(n, fx.Node) and self.joint.roots[n] not in operators.owner
        }
        held = sum(self.joint.bytes_of(r) for r in buffers | set(operators.pinned) if not self.joint.is_resident(r))
        self.resident_bytes = resident_bytes + held

    def time_us(self, nodes: Sequence[fx.Node]) -> float:
        """Time of a run of nodes."""
        if not nodes:
            return 0.0
        return self.costs.group_us(nodes) if self.fused else sum(self.costs.node_us(n) for n in nodes)

    def output_bytes(self, group: ForwardGroup) -> int:
        """m_i."""
        if group.encoding is not None:
            nodes, result = self._encoding(group.encoding)
            return nodes.bytes_of(result)
        return sum(self.joint.bytes_of(r) for r in group.results)

    def forward(self, group: ForwardGroup) -> Usage:
        """In the forward pass."""
        if group.encoding is not None:
            nodes, result = self._encoding(group.encoding)
            return self._emitted(nodes, result)
        nodes_us = self.time_us((*group.nodes, *group.side))
        return Usage(nodes_us, self._peak(self.joint, group.nodes, group.results))

    def recompute(self, group: ForwardGroup) -> Usage:
        """In the backward pass, where some nodes have a cheaper way to run again."""
        again = [n for n in group.nodes if n in self.operators.recomputes]
        if group.encodes is not None or not again:
            usage = self.forward(group)
            return Usage(usage.time_us - (self.time_us(group.side) if group.side else 0.0), usage.peak_bytes)
        time_us = self.time_us([n for n in group.nodes if n not in again])
        peak = self._peak(self.joint, [n for n in group.nodes if n not in again], ())
        for node in again:
            for recompute in self.operators.recomputes[node]:
                usage = self._emitted(*self._scratch(recompute.emit))
                time_us += usage.time_us
                peak += usage.peak_bytes
        return Usage(time_us, peak)

    def backward(self) -> list[BackwardUsage]:
        """All backward operators, in order."""
        joint = self.joint
        returned = {joint.roots[n] for n in joint.backward_outputs if isinstance(n, fx.Node)}
        order = [n for b in self.operators.backward for n in b.nodes]
        made_here = {r for n in order for r in joint.results[n]}
        last: dict[fx.Node, fx.Node] = {}
        for node in order:
            last.update(dict.fromkeys((r for r in joint.reads([node]) if r in made_here), node))
        live: dict[fx.Node, int] = {}
        fixed = self.resident_bytes
        usages = []
        for b in self.operators.backward:
            before = sum(live.values())
            start = fixed
            peaks = [self._choice_peak(b.nodes, c, live, last, returned) for c in b.choices]
            for node in b.nodes:
                for root in joint.results[node]:
                    if root in returned:
                        fixed += joint.bytes_of(root)
                    elif root in last:
                        live[root] = joint.bytes_of(root)
                for root in [r for r in live if last[r] is node]:
                    del live[root]
            made = {r for n in b.nodes for r in joint.results[n]}
            output = sum(size for r, size in live.items() if r in made)
            usages.append(
                BackwardUsage(
                    before,
                    fixed,
                    output,
                    tuple(start + before + peak - before - fixed - output for peak in peaks),
                    tuple(self._choice_us(b.nodes, c) for c in b.choices),
                )
            )
        return usages

    def _choice_us(self, nodes: Sequence[fx.Node], choice: Choice) -> float:
        if choice.site is None:
            return self.time_us(nodes)
        rest = [n for n in nodes if n is not choice.site.backward]
        return self.time_us(rest) + self._replacement(choice)[0].time_us

    def _choice_peak(
        self,
        nodes: Sequence[fx.Node],
        choice: Choice,
        live: dict[fx.Node, int],
        last: dict[fx.Node, fx.Node],
        returned: Collection[fx.Node],
    ) -> int:
        """Highest bytes inside a backward operator beyond the gradients alive before it and the resident ones."""
        joint, alive = self.joint, dict(live)
        start = current = sum(alive.values())
        peak = current
        for node in nodes:
            results = joint.results[node]
            current += sum(joint.bytes_of(r) for r in results)
            if choice.site is not None and node is choice.site.backward:
                usage, result_bytes = self._replacement(choice)
                workspace = usage.peak_bytes - result_bytes
            else:
                workspace = self.costs.workspace_bytes(node)
            peak = max(peak, current + workspace)
            for root in results:
                if root in last:
                    alive[root] = joint.bytes_of(root)
                elif root not in returned:
                    current -= joint.bytes_of(root)
            for root in [r for r in alive if last[r] is node]:
                size = alive.pop(root)
                current -= 0 if root in returned else size
        return peak - start

    def _replacement(self, choice: Choice) -> tuple[Usage, int]:
        """Usage of the nodes an alternative emits in place of a backward node, and the bytes of their result."""
        alternative, site = choice.alternative, choice.site
        assert alternative is not None and site is not None
        encoding = None if choice.encoded is None else self.operators.forward[choice.encoded].encoding
        code = None if encoding is None else self._encoding(encoding)[1]

        def emit(graph: fx.Graph, value: Callable[[fx.Node], fx.Node]) -> fx.Node:
            return alternative.emit(graph, site, value, None if code is None else _stand_in(graph, "encoded", code))

        joint, result = self._scratch(emit)
        return self._emitted(joint, result), joint.bytes_of(joint.roots[result])

    def _encoding(self, encoding: Encoding) -> tuple[Joint, fx.Node]:
        return self._scratch(lambda graph, value: encoding.alternative.encode(graph, encoding.site, value))

    def _scratch(self, emit: Callable[[fx.Graph, Callable[[fx.Node], fx.Node]], fx.Node]) -> tuple[Joint, fx.Node]:
        """A graph of its own that holds what ``emit`` emits, with stand-ins for what it reads."""
        graph = fx.Graph()
        known: dict[fx.Node, fx.Node] = {}

        def value(node: fx.Node) -> fx.Node:
            if node not in known:
                known[node] = _stand_in(graph, node.name, node)
            return known[node]

        result = emit(graph, value)
        graph.output((result,))
        return Joint(fx.GraphModule(self.joint.module, graph), (), ()), result

    def _emitted(self, joint: Joint, result: fx.Node) -> Usage:
        nodes = [n for n in joint.nodes if is_compute(n)]
        return Usage(self.time_us(nodes), self._peak(joint, nodes, [joint.roots[result]]))

    def _peak(self, joint: Joint, nodes: Sequence[fx.Node], kept: Collection[fx.Node]) -> int:
        """Highest bytes of the results and workspaces of nodes run in order, keeping ``kept``."""
        last: dict[fx.Node, int] = {}
        for i, node in enumerate(nodes):
            last.update(dict.fromkeys(joint.reads([node]), i))
        alive: dict[fx.Node, int] = {}
        peak = 0
        for i, node in enumerate(nodes):
            alive.update((r, joint.bytes_of(r)) for r in joint.results[node])
            peak = max(peak, sum(alive.values()) + self.costs.workspace_bytes(node))
            alive = {r: size for r, size in alive.items() if r in kept or last.get(r, -1) > i}
        return peak


def _stand_in(graph: fx.Graph, name: str, node: fx.Node) -> fx.Node:
    # Placeholders must come first, whenever they are asked for.
    with graph.inserting_before():
        new = graph.placeholder(name)
    new.meta = dict(node.meta)
    return new
