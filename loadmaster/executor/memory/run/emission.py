"""Emission of the two graphs that run a schedule.

The forward graph is stage 0. The backward graph is stages 1..K one after another: the recomputations of a stage in
ascending order, then its backward operator. What the schedule stores from stage 0 into stage 1 and is read later
travels between the graphs. Names die at their last use in either graph, which is what frees memory; a result the
schedule drops is forgotten here, so that only a recomputation can bring it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from loadmaster.errors import InputError
from loadmaster.executor.memory.implementations.emitting import call
from loadmaster.executor.memory.operators.emitter import Emitter, encoded_meta, placeholder
from loadmaster.executor.memory.operators.groups import ForwardGroup, Operators
from loadmaster.executor.memory.run.offload import REMEDY, Fetches, HostCopy, Sends, expect_transfers, host_fake
from loadmaster.executor.memory.run.segments import STAGE
from loadmaster.executor.steps.step_graph import StepGraph, readers_of
from loadmaster.models.memory.plan import Schedule, Stage

# What travels from the forward to the backward graph: a root, an encoded result, or a copy on the host.
Saved = fx.Node | int | HostCopy


def emit(
    operators: Operators, schedule: Schedule, *, channels_last: bool = False
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward graph of a schedule, as AOTAutograd expects them from a partition. With ``channels_last``,
    what runs the graphs lays out images so: they travel to the host and back as they are. InputError: the schedule does
    not fit the operators, or reads a result that it has dropped."""
    expect_fit(operators, schedule)
    backward, saved = _backward_graph(operators, schedule, channels_last)
    forward = _forward_graph(operators, schedule, saved, channels_last)
    module = operators.step_graph.module
    return fx.GraphModule(module, forward), fx.GraphModule(module, backward)


def expect_fit(operators: Operators, schedule: Schedule) -> None:
    """Raise an InputError, naming the stage, for a schedule for another graph, or one that asks for what this executor
    cannot do."""
    stages, count = len(schedule.stages), len(operators.forward)
    if stages != len(operators.backward) + 1:
        problem = f"are not the {len(operators.backward) + 1} stages of this model"
        raise InputError("schedule.stages", stages, problem, REMEDY)
    for t, stage in enumerate(schedule.stages):
        where = f"schedule.stages[{t}]"
        ids = [c.forward for c in stage.computes]
        if any(not 0 <= i < count for i in (*ids, *stage.keep)):
            raise InputError(where, ids, f"names a forward operator outside 0..{count - 1}", REMEDY)
        if ids != sorted(set(ids)):
            raise InputError(where, ids, "does not compute in ascending order", REMEDY)
        if any(c.implementation or (c.in_place and operators.written_over(c) is None) for c in stage.computes):
            raise InputError(where, ids, "asks for an implementation that was not captured", REMEDY)
        apart = [i for i in ids if operators.forward[i].encodes not in (None, *ids)]
        if apart:
            raise InputError(where, apart, "derives results of operators that this stage does not compute", REMEDY)
        choices = len(operators.backward[t - 1].choices) if t else 0
        if t and not (stage.implementation is not None and 0 <= stage.implementation < choices):
            raise InputError(where, stage.implementation, f"is none of the {choices} implementations", REMEDY)
    first = {c.forward for c in schedule.stages[0].computes}
    skipped = [f.id for f in operators.forward if f.encodes is None and f.id not in first]
    if skipped:
        raise InputError("schedule.stages[0]", skipped, "leaves forward operators out", REMEDY)
    expect_transfers(operators, schedule)


def _forward_graph(operators: Operators, schedule: Schedule, saved: Sequence[Saved], channels_last: bool) -> fx.Graph:
    step_graph = operators.step_graph
    graph = fx.Graph()

    def missing(root: fx.Node) -> fx.Node:
        if root.op == "get_attr":
            return graph.node_copy(root)
        raise InputError("schedule.stages[0]", root.name, "is read before it is computed", REMEDY)

    emitter = Emitter(operators, graph, missing)
    for primal in step_graph.primals:
        emitter.held[primal] = graph.node_copy(primal)
    departures = Sends(operators, schedule, emitter, channels_last=channels_last)
    for compute in schedule.stages[0].computes:
        departures.before(compute.forward)
        group = operators.forward[compute.forward]
        if group.encoding is not None:
            emitter.encode(group)
        for node in (*group.nodes, *group.side):
            emitter.run(node)
        if (gone := operators.written_over(compute)) is not None:
            for root in gone.results:
                emitter.forget(root)
    departures.before(len(operators.forward))

    def held(value: Saved) -> fx.Node:
        if isinstance(value, HostCopy):
            return departures.hosts[value]
        return emitter.encoded[value] if isinstance(value, int) else emitter.value(value)

    outputs = [emitter.value(n) if isinstance(n, fx.Node) else n for n in step_graph.returned]
    outputs += map(held, saved)
    written = zip(step_graph.written, step_graph.forward_outputs, strict=False)
    copies = [call(graph, torch.ops.aten.copy_.default, emitter.value(p), emitter.value(new)) for p, new in written]
    _write_early(graph, copies)
    _finish(step_graph, graph, outputs, slice(len(step_graph.written), len(step_graph.forward_outputs)), len(saved))
    return graph


def _write_early(graph: fx.Graph, copies: Sequence[fx.Node]) -> None:
    """Move what is written to buffers behind what makes the value and what reads the old one. A compiler fuses a write
    with what makes the value, where both are in one segment: after the last cut each would be a kernel of its own,
    three for every BatchNorm."""
    order = {node: n for n, node in enumerate(graph.nodes)}
    for copy in copies:
        target, value = copy.all_input_nodes
        last = max({value, *readers_of(target)} - {copy}, key=order.__getitem__)
        if last.op != "placeholder":
            last.append(copy)


class _BackwardEmission:
    """The backward graph, stage by stage. What it reads from the forward pass becomes a placeholder."""

    def __init__(self, operators: Operators, schedule: Schedule, channels_last: bool) -> None:
        self.operators = operators
        self.step_graph = operators.step_graph
        self.graph = fx.Graph()
        self.emitter = Emitter(operators, self.graph, self._missing)
        self.saved: list[Saved] = []
        tangents = [self.graph.node_copy(n) for n in self.step_graph.tangents]
        self.emitter.held.update(zip(self.step_graph.tangents, tangents, strict=True))
        self._first_tangent = tangents[0]
        # Forward operators whose result from stage 0 is still on the device, and those on the device at all.
        self.from_forward = set(schedule.stages[0].keep)
        self.available = set(schedule.stages[0].keep)
        self.stage = 0
        self.arrivals = Fetches(operators, schedule, self.emitter, self._host, channels_last=channels_last)

    def _host(self, copy: HostCopy) -> fx.Node:
        name = f"host_{copy.forward}_{copy.result}"
        return self._placeholder(name, {"val": host_fake(self.operators, copy)}, copy)

    def _placeholder(self, name: str, meta: dict[str, Any], saved: Saved) -> fx.Node:
        self.saved.append(saved)
        return placeholder(self.graph, name, meta, self._first_tangent)

    def _missing(self, root: fx.Node) -> fx.Node:
        if root.op == "get_attr":
            return self.graph.node_copy(root)
        owner = self.operators.owner.get(root)
        always = root in self.operators.pinned or self.step_graph.is_resident(root)
        if always or owner in self.from_forward:
            return self._placeholder(root.name, root.meta, root)
        raise self._unmet(root.name)

    def _unmet(self, name: str) -> InputError:
        where = f"schedule.stages[{self.stage}]"
        return InputError(where, name, "is read but neither stored nor computed", REMEDY)

    def _encoded(self, i: int) -> fx.Node:
        if i not in self.emitter.encoded:
            if i not in self.from_forward:
                raise self._unmet(self.operators.forward[i].name)
            self.emitter.encoded[i] = self._placeholder(f"encoded_{i}", encoded_meta(self.operators, i), i)
        return self.emitter.encoded[i]

    def run(self, t: int, stage: Stage, kept_before: Sequence[int]) -> None:
        """Emit stage t: its fetches and recomputations, then its backward operator."""
        self.stage = t
        self._drop(self.available - set(kept_before))
        self.available |= self.arrivals.at(t)
        for compute in stage.computes:
            self._recompute(self.operators.forward[compute.forward])
            if (gone := self.operators.written_over(compute)) is not None:
                self._drop({gone.id})
        group = self.operators.backward[t - 1]
        assert stage.implementation is not None
        choice = group.choices[stage.implementation]
        missing = [self.operators.forward[i].name for i in choice.needs if i not in self.available]
        if missing:
            raise InputError(f"schedule.stages[{t}]", missing, "is needed but neither stored nor computed", REMEDY)
        inlined = set(choice.inlined) - self.available
        for i in sorted(inlined):
            self._recompute(self.operators.forward[i])
        for node in group.nodes:
            self.emitter.differentiate(node, choice, self._encoded)
        self._drop(inlined | self.available - set(stage.keep))
        for node in reversed(self.graph.nodes):
            if node.op == "placeholder" or STAGE in node.meta:
                break
            node.meta[STAGE] = (t, bool(stage.computes or stage.fetches))
        self.emitter.forget_views()

    def _recompute(self, group: ForwardGroup) -> None:
        unmet = [self.operators.forward[i].name for i in group.inputs if i not in self.available]
        if unmet or not group.recomputable:
            problem = "cannot be computed twice" if not unmet else f"is computed without its inputs {unmet}"
            raise InputError(f"schedule.stages[{self.stage}]", group.name, problem, REMEDY)
        if group.encodes is None or group.encoding is not None:
            self._drop({group.id})
        self.emitter.recompute(group)
        self.available.add(group.id)

    def _drop(self, gone: set[int]) -> None:
        for i in gone:
            for root in self.operators.forward[i].results:
                self.emitter.forget(root)
            self.emitter.encoded.pop(i, None)
        self.available -= gone
        self.from_forward -= gone


def _backward_graph(operators: Operators, schedule: Schedule, channels_last: bool) -> tuple[fx.Graph, list[Saved]]:
    step_graph = operators.step_graph
    emission = _BackwardEmission(operators, schedule, channels_last)
    stages = schedule.stages
    for t in range(1, len(stages)):
        emission.run(t, stages[t], stages[t - 1].keep)
    # Gradients that are forward results as they stand are read by the pass's return.
    outputs = [emission.emitter.value(n) if isinstance(n, fx.Node) else n for n in step_graph.backward_outputs]
    first = len(step_graph.forward_outputs)
    _finish(step_graph, emission.graph, outputs, slice(first, None), 0)
    used = {n.name for n in emission.graph.find_nodes(op="placeholder") if n.users}
    saved = []
    placeholders = emission.graph.find_nodes(op="placeholder")
    for node, value in zip(placeholders, emission.saved, strict=False):
        if node.name in used:
            saved.append(value)
        else:
            emission.graph.erase_node(node)
    return emission.graph, saved


def _finish(step_graph: StepGraph, graph: fx.Graph, outputs: Sequence[Any], described: slice, saved: int) -> None:
    node = graph.output(tuple(outputs))
    original = step_graph.module.graph.output_node()
    node.meta["output_stack_traces"] = [n.meta.get("stack_trace") if isinstance(n, fx.Node) else None for n in outputs]
    if "desc" in original.meta:
        from loadmaster.executor.torch_private.inductor import SavedForBackwardsAOTOutput

        descriptions = list(original.meta["desc"])[described]
        node.meta["desc"] = descriptions + [SavedForBackwardsAOTOutput(i) for i in range(saved)]
    graph.eliminate_dead_code()
    graph.lint()
