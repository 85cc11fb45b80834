"""Bytes and times of the operators of a step, in the terms of the memory problem.

What an operator's run (:mod:`loadmaster.executor.memory.operators.runs`) holds at its peak beyond the operator's
result is the operator's workspace. It can be negative for a backward operator that frees what it read before its last
result appears. Gradients that return to the user stay, the others go after their last reader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass

from torch import fx

from loadmaster.executor.costs.model import CostModel
from loadmaster.executor.memory.operators.emitter import Emitter, stand_in
from loadmaster.executor.memory.operators.fused_forward import fused_savings_us
from loadmaster.executor.memory.operators.groups import BackwardGroup, ForwardGroup, Operators
from loadmaster.executor.memory.operators.runs import Run, Usage


@dataclass(frozen=True)
class BackwardUsage:
    """Bytes around one backward operator: gradients alive before it, resident bytes, result, and peak inside."""

    live_bytes: int
    fixed_bytes: int
    output_bytes: int
    workspace_bytes: tuple[int, ...]
    time_us: tuple[float, ...]


class Runs:
    """Runs that would be emitted for the operators of a step: each written once, whatever it costs."""

    def __init__(self, operators: Operators) -> None:
        self.operators = operators
        self._written: dict[Hashable, Run] = {}

    def forward(self, group: ForwardGroup, results: Collection[fx.Node]) -> Run:
        """Run of a forward operator in the forward pass."""

        def emit(emitter: Emitter) -> None:
            for node in (*group.nodes, *group.side):
                emitter.run(node)

        return self._once(("forward", group.id), emit, results)

    def recompute(self, group: ForwardGroup) -> Run:
        """Run of a forward operator that is computed again, in the backward pass."""
        return self._once(("recompute", group.id), lambda emitter: emitter.recompute(group), group.results)

    def choice(self, group: BackwardGroup, number: int, results: Collection[fx.Node]) -> Run:
        """Run of a backward operator in one of its implementations."""
        choice = group.choices[number]

        def encoded(emitter: Emitter, i: int) -> fx.Node:
            made = self.encoding(self.operators.forward[i]).results[0]
            return stand_in(emitter.graph, f"encoded_{i}", made)

        def emit(emitter: Emitter) -> None:
            for i in choice.inlined:
                emitter.recompute(self.operators.forward[i])
            for node in group.nodes:
                emitter.differentiate(node, choice, lambda i: encoded(emitter, i))

        return self._once(("backward", group.id, number), emit, results)

    def encoding(self, group: ForwardGroup) -> Run:
        """Run that encodes an operator's result."""
        return self._once(("encoding", group.id), lambda emitter: emitter.encode(group), (), (group.id,))

    def _once(
        self,
        key: Hashable,
        emit: Callable[[Emitter], object],
        results: Collection[fx.Node],
        encoded: Collection[int] = (),
    ) -> Run:
        def read(emitter: Emitter) -> list[fx.Node]:
            return [*(emitter.held[r] for r in results if r in emitter.held), *(emitter.encoded[i] for i in encoded)]

        if key not in self._written:
            self._written[key] = Run.emitted(self.operators, emit, read)
        return self._written[key]


class Accountant:
    """Costs and sizes of one step's operators.

    Args:
        fused: whether the nodes of an operator run as fused kernels (Inductor) or one by one (eager).
        resident_bytes: parameters, buffers, inputs, optimizer state.
    """

    def __init__(self, runs: Runs, costs: CostModel, *, fused: bool, resident_bytes: int) -> None:
        self.runs = runs
        self.operators = operators = runs.operators
        self.step_graph = operators.step_graph
        self.costs = costs
        self.fused = fused
        buffers = {
            self.step_graph.roots[n]
            for n in self.step_graph.forward_outputs
            if isinstance(n, fx.Node)
            and n is not self.step_graph.loss
            and self.step_graph.roots[n] not in operators.owner
        }
        held = sum(
            self.step_graph.bytes_of(r) for r in buffers | set(operators.pinned) if not self.step_graph.is_resident(r)
        )
        # What the model kept from the step before is there until the forward pass is over.
        held += sum(map(self.step_graph.bytes_of, self.step_graph.kept))
        self.resident_bytes = resident_bytes + held
        self._savings_us = fused_savings_us(operators, costs) if fused else {}

    def output_bytes(self, group: ForwardGroup) -> int:
        """Bytes of a forward operator's results (m_i)."""
        if group.encoding is not None:
            return self.runs.encoding(group).result_bytes
        return sum(self.step_graph.bytes_of(r) for r in group.results)

    def forward(self, group: ForwardGroup) -> Usage:
        """Time and peak of a forward operator in the forward pass."""
        if group.encoding is not None:
            return self._usage(self.runs.encoding(group))
        pinned = set(self.operators.pinned)
        results = [r for n in (*group.nodes, *group.side) for r in self.step_graph.results[n] if r in pinned]
        usage = self._usage(self.runs.forward(group, (*group.results, *results)))
        # Pinned results are counted as resident.
        return Usage(
            usage.time_us - self._savings_us.get(group.id, 0.0),
            usage.peak_bytes - sum(self.step_graph.bytes_of(r) for r in results),
        )

    def recompute(self, group: ForwardGroup) -> Usage:
        """Time and peak of a forward operator in the backward pass, where some nodes run again in a cheaper way."""
        if group.encoding is not None:
            return self._usage(self.runs.encoding(group))
        return self._usage(self.runs.recompute(group))

    def backward(self) -> list[BackwardUsage]:
        """Bytes and times of all backward operators, in order."""
        step_graph = self.step_graph
        returned = {step_graph.roots[n] for n in step_graph.backward_outputs if isinstance(n, fx.Node)}
        order = [n for b in self.operators.backward for n in b.nodes]
        made_here = {r for n in order for r in step_graph.results[n]}
        last: dict[fx.Node, int] = {}
        for b in self.operators.backward:
            last.update(dict.fromkeys((r for r in step_graph.reads(b.nodes) if r in made_here), b.id))
        live: dict[fx.Node, int] = {}
        fixed = self.resident_bytes
        usages = []
        for b in self.operators.backward:
            before = sum(live.values())
            start = fixed
            made = {r for n in b.nodes for r in step_graph.results[n]}
            results = [r for r in made if r in returned or last.get(r, -1) > b.id]
            dying = [r for r in live if last[r] == b.id and r not in returned]
            runs = [self._usage(self.runs.choice(b, n, results), dying) for n in range(len(b.choices))]
            fixed += sum(step_graph.bytes_of(r) for r in results if r in returned)
            live.update((r, step_graph.bytes_of(r)) for r in results if r not in returned)
            live = {r: size for r, size in live.items() if last[r] > b.id}
            output = sum(size for r, size in live.items() if r in made)
            usages.append(
                BackwardUsage(
                    before,
                    fixed,
                    output,
                    tuple(start + usage.peak_bytes - fixed - output for usage in runs),
                    tuple(usage.time_us for usage in runs),
                )
            )
        return usages

    def _usage(self, run: Run, dying: Collection[fx.Node] = ()) -> Usage:
        return run.usage(self.costs, fused=self.fused, dying=dying)
