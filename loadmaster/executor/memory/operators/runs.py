"""Runs of operators, replayed for their time and their highest bytes.

A run is a graph of its own that holds what a plan would emit for one operator, with stand-ins for what it reads. Its
nodes go one after another, or, where a compiler fuses, in fused steps
(:mod:`loadmaster.executor.memory.operators.fusion`): of a fused step only what others read, and what is added up by
index, reaches memory. Results appear when their step runs, on top of the workspace that the cost model names, and go
after their last reader; a fused step writes a result over what goes with it, where it can
(:mod:`loadmaster.executor.memory.operators.in_place`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from torch import fx

from loadmaster.executor.costs.model import CostModel
from loadmaster.executor.costs.traffic import is_atomic, is_free
from loadmaster.executor.memory.operators.emitter import Emitter, stand_in
from loadmaster.executor.memory.operators.fusion import is_fusible, steps, traffic
from loadmaster.executor.memory.operators.groups import Operators
from loadmaster.executor.memory.operators.in_place import shared_bytes
from loadmaster.executor.steps.step_graph import StepGraph, is_compute
from loadmaster.executor.torch_private.tracing import LazyGraphModule


@dataclass(frozen=True)
class Usage:
    """Time of a run and its highest bytes on top of what was there before (results included)."""

    time_us: float
    peak_bytes: int


@dataclass(frozen=True)
class Run:
    """Graph that would be emitted for one operator.

    Attributes:
        step_graph: the graph.
        results: roots in it that others read.
        stand_ins: by root of the original graph, its stand-in here.
    """

    step_graph: StepGraph
    results: tuple[fx.Node, ...]
    stand_ins: dict[fx.Node, fx.Node]

    @classmethod
    def emitted(
        cls, operators: Operators, emit: Callable[[Emitter], object], results: Callable[[Emitter], Iterable[fx.Node]]
    ) -> Run:
        """The run that ``emit`` emits; ``results`` names the new nodes that others read."""
        graph = fx.Graph()
        known: dict[fx.Node, fx.Node] = {}

        def missing(root: fx.Node) -> fx.Node:
            known[root] = stand_in(graph, root.name, root)
            return known[root]

        emitter = Emitter(operators, graph, missing)
        emit(emitter)
        read = tuple(results(emitter))
        graph.output(read)
        step_graph = StepGraph(LazyGraphModule(operators.step_graph.module, graph), (), ())  # nobody runs it
        return cls(step_graph, tuple(dict.fromkeys(step_graph.roots[n] for n in read)), known)

    @property
    def result_bytes(self) -> int:
        """Bytes of all results that others read."""
        return sum(self.step_graph.bytes_of(r) for r in self.results)

    def usage(self, costs: CostModel, *, fused: bool, dying: Collection[fx.Node] = ()) -> Usage:
        """Replay the run for its time and its highest bytes.

        Args:
            dying: roots of the original graph that go after their last reader in this run.
        """
        step_graph = self.step_graph
        cut = steps([n for n in step_graph.nodes if is_compute(n)], fused=fused)
        last: dict[fx.Node, int] = {}
        for i, step in enumerate(cut):
            last.update(dict.fromkeys(step_graph.reads(step), i))
        going = {self.stand_ins[r] for r in dying if r in self.stand_ins}
        alive: dict[fx.Node, int] = {}
        freed = peak = 0
        time_us = 0.0
        for i, step in enumerate(cut):
            apart = not fused or not is_fusible(step[0])
            made = [r for n in step for r in step_graph.results[n]]
            written = [r for r in made if apart or r in self.results or last.get(r, -1) > i or is_atomic(r)]
            alive.update((r, step_graph.bytes_of(r)) for r in written)
            workspace = max(costs.workspace_bytes(n) for n in step) if apart else 0
            if not apart:
                dead = [r for r in (*alive, *going) if last.get(r) == i and r not in made and r not in self.results]
                workspace -= shared_bytes(step_graph, step, written, dead)
            peak = max(peak, sum(alive.values()) - freed + workspace)
            freed += sum(step_graph.bytes_of(r) for r in going if last.get(r) == i)
            alive = {r: size for r, size in alive.items() if r in self.results or last.get(r, -1) > i}
            if apart:
                time_us += sum(costs.node_us(n) for n in step)
            else:
                time_us += fused_us(step_graph, step, written, costs)
        return Usage(time_us, peak)


def fused_us(step_graph: StepGraph, step: Sequence[fx.Node], written: Collection[fx.Node], costs: CostModel) -> float:
    """Time of one fused step.

    Args:
        written: roots made by it that are read elsewhere.
    """
    running = [n for n in step if not is_free(n)]
    if not running:
        return 0.0
    moved = traffic(step_graph, running, written)
    return costs.move_us(moved.moved_bytes, moved.kernels)
