"""Bytes and times of the operators of a step, in the terms of the memory problem, from replayed runs.

A run is a graph of its own that holds what a plan would emit for one operator, with stand-ins for what it reads. Its
nodes go one after another, or, where a compiler fuses, in fused steps
(:mod:`loadmaster.executor.memory.operators.fusion`): of a fused step only what others read, and what is added up by
index, reaches memory. Results appear when their step runs, on top of the workspace that the cost model names, and go
after their last reader; a fused step writes a result over what goes with it, where it can.

What a run holds at its peak beyond the operator's result is the operator's workspace. It can be negative for a backward
operator that frees what it read before its last result appears. Gradients that return to the user stay, the others go
after their last reader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import fx

from loadmaster.executor.costs.model import CostModel
from loadmaster.executor.costs.traffic import is_atomic, is_free
from loadmaster.executor.memory.operators.emitter import Emitter, stand_in
from loadmaster.executor.memory.operators.fusion import is_fusible, shared_bytes, steps, traffic
from loadmaster.executor.memory.operators.groups import BackwardGroup, ForwardGroup, Operators
from loadmaster.executor.steps.step_graph import StepGraph, is_compute
from loadmaster.executor.torch_private.tracing import LazyGraphModule


@dataclass(frozen=True)
class Usage:
    """Time of a run and its highest bytes on top of what was there before (results included)."""

    time_us: float
    peak_bytes: int


@dataclass(frozen=True)
class Run:
    """Graph that would be emitted for one operator. ``results`` are its roots that others read; ``stand_ins`` has its
    stand-in for each root of the original graph that it reads."""

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

    def usage(self, costs: CostModel, *, fused: bool, dying: Collection[fx.Node] = ()) -> Usage:
        """Replay the run for its time and its highest bytes. The roots ``dying`` of the original graph go after their
        last reader in it."""
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
    """Time of one fused step; ``written`` are the roots made by it that are read elsewhere."""
    running = [n for n in step if not is_free(n)]
    if not running:
        return 0.0
    moved = traffic(step_graph, running, written)
    return costs.move_us(moved.moved_bytes, moved.kernels)


def fused_savings_us(operators: Operators, costs: CostModel) -> dict[int, float]:
    """Time that each forward operator saves in a forward pass that is compiled as one, by operator.

    A forward operator ends where a plan may keep a result, not where a kernel ends: a compiler writes that result and
    goes on in the same kernel, so that the operator behind it need not read it again. Recomputed operators are compiled
    apart from others, and save nothing.

    Example: a softmax in float32, kept for the backward pass, and its cast to bfloat16 for the next product, of 192 and
    96 MiB: 192 are read and 96 written after the softmax where operators run one by one; 96 are written where they are
    fused.
    """
    step_graph = operators.step_graph
    readers: dict[fx.Node, list[fx.Node]] = {}
    for node in step_graph.results:
        for root in step_graph.reads([node]):
            readers.setdefault(root, []).append(node)
    kept = {*operators.owner, *operators.pinned}
    kept.update(step_graph.roots[n] for n in step_graph.forward_outputs if isinstance(n, fx.Node))

    def us(nodes: list[fx.Node]) -> float:
        inside = set(nodes)
        made = [r for n in nodes for r in step_graph.results[n]]
        written = [r for r in made if r in kept or not inside.issuperset(readers.get(r, ()))]
        return fused_us(step_graph, nodes, written, costs)

    savings: dict[int, float] = {}
    for parts in _fused_parts(operators):
        apart_us = {f: us(nodes) for f, nodes in parts}
        saved_us = sum(apart_us.values()) - us([n for _, nodes in parts for n in nodes])
        if len(parts) > 1 and saved_us > 0.0:
            for f, part_us in apart_us.items():
                savings[f] = savings.get(f, 0.0) + saved_us * part_us / sum(apart_us.values())
    return savings


def _fused_parts(operators: Operators) -> Iterator[list[tuple[int, list[fx.Node]]]]:
    """Parts of operators that follow one another and fuse, each with something that those before it made. A part is an
    operator's number and those nodes of it that are fused."""
    step_graph = operators.step_graph
    open_parts: list[tuple[int, list[fx.Node]]] = []
    for f in operators.forward:
        for nodes in steps([*f.nodes, *f.side], fused=True):
            made = {r for _, before in open_parts for n in before for r in step_graph.results[n]}
            joins = is_fusible(nodes[0]) and not made.isdisjoint(step_graph.reads(nodes))
            if not joins:
                yield open_parts
                open_parts = []
            if is_fusible(nodes[0]):
                open_parts.append((f.id, nodes))
    yield open_parts


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
        def emit(emitter: Emitter) -> None:
            for node in (*group.nodes, *group.side):
                emitter.run(node)

        return self._once(("forward", group.id), emit, results)

    def recompute(self, group: ForwardGroup) -> Run:
        """Run of a forward operator that is computed again, in the backward pass."""
        return self._once(("recompute", group.id), lambda emitter: emitter.recompute(group), group.results)

    def choice(self, group: BackwardGroup, number: int, results: Collection[fx.Node]) -> Run:
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
    """Costs and sizes of one step's operators, whose nodes run as fused kernels (``fused``, Inductor) or one by one
    (eager). ``resident_bytes`` are those of parameters, buffers, inputs and optimizer state."""

    def __init__(self, runs: Runs, costs: CostModel, *, fused: bool, resident_bytes: int) -> None:
        self.runs = runs
        self.operators = operators = runs.operators
        self.step_graph = operators.step_graph
        self.costs = costs
        self.fused = fused
        graph = self.step_graph
        returned = {graph.roots[n] for n in graph.forward_outputs if isinstance(n, fx.Node) and n is not graph.loss}
        held_roots = (returned - operators.owner.keys()) | set(operators.pinned)
        held = sum(graph.bytes_of(r) for r in held_roots if not graph.is_resident(r))
        # What the model kept from the step before is there until the forward pass is over.
        held += sum(map(graph.bytes_of, graph.kept))
        self.resident_bytes = resident_bytes + held
        self._savings_us = fused_savings_us(operators, costs) if fused else {}

    def output_bytes(self, group: ForwardGroup) -> int:
        """Bytes of a forward operator's results (m_i)."""
        if group.encoding is not None:
            run = self.runs.encoding(group)
            return sum(map(run.step_graph.bytes_of, run.results))
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
