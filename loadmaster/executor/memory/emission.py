"""From a schedule to the two graphs that run it.

The forward graph is stage 0. The backward graph is stages 1..K one after another: the recomputations of a stage in
ascending order, then its backward operator. What the schedule stores from stage 0 into stage 1 and is read later
travels between the graphs. Names die at their last use in either graph, which is what frees memory; a result the
schedule drops is forgotten here, so that only a recomputation can bring it back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from loadmaster.errors import InputError
from loadmaster.executor.memory.joint import Joint
from loadmaster.executor.memory.operators import Choice, ForwardGroup, Operators
from loadmaster.executor.memory.segments import STAGE
from loadmaster.models.memory.plan import Schedule, Stage

Values = dict[fx.Node, fx.Node]
REMEDY = "Plan the problem captured from this model again, and check the plan."


class Emitter:
    """Emits nodes of a joint graph into a new graph, and knows which new node holds which value.

    Args:
        missing: called for a root that the new graph does not hold; returns the new node or raises.
    """

    def __init__(self, joint: Joint, graph: fx.Graph, missing: Callable[[fx.Node], fx.Node]) -> None:
        self.joint = joint
        self.graph = graph
        self.held: Values = {}
        self.encoded: dict[int, fx.Node] = {}
        self._views: dict[fx.Node, Values] = {}
        self._missing = missing

    def value(self, node: fx.Node) -> fx.Node:
        """The new node that holds a joint node's value; views are made where they are first read."""
        root = self.joint.roots[node]
        if root not in self.held:
            self.held[root] = self._missing(root)
        if node is root:
            return self.held[root]
        views = self._views.setdefault(root, {})
        if node not in views:
            views[node] = self.graph.node_copy(node, self.value)
        return views[node]

    def run(self, node: fx.Node) -> None:
        """Run a compute node as it stands."""
        self.bind(node, self.graph.node_copy(node, self.value))

    def bind(self, node: fx.Node, new: fx.Node) -> None:
        """Say that ``new`` holds what the compute node makes."""
        for root in self.joint.results[node]:
            self.forget(root)
            if root is node:
                self.held[root] = new
            else:
                element = self.graph.node_copy(root, lambda _: new)
                self.held[root] = element

    def forget_views(self) -> None:
        """Make views again where they are read next: a graph can be cut between stages then."""
        self._views.clear()

    def forget(self, root: fx.Node) -> None:
        """Drop a value and its views."""
        self.held.pop(root, None)
        self._views.pop(root, None)


def emit(operators: Operators, schedule: Schedule) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward graph of a schedule, as AOTAutograd expects them from a partition.

    Raises:
        InputError: the schedule does not fit the operators, or reads a result that it has dropped.
    """
    expect_fit(operators, schedule)
    backward, saved = _backward_graph(operators, schedule)
    forward = _forward_graph(operators, schedule, saved)
    module = operators.joint.module
    return fx.GraphModule(module, forward), fx.GraphModule(module, backward)


def expect_fit(operators: Operators, schedule: Schedule) -> None:
    """Refuse a schedule for another graph, or one that asks for what this executor cannot do.

    Raises:
        InputError: naming the stage.
    """
    if schedule.offload or any(s.fetches for s in schedule.stages):
        raise InputError(
            "schedule.offload", schedule.offload, "offload is not something this executor runs", "Plan without it."
        )
    stages, count = len(schedule.stages), len(operators.forward)
    if stages != len(operators.backward) + 1:
        raise InputError(
            "schedule.stages",
            stages,
            f"are not the {len(operators.backward) + 1} stages of this model",
            REMEDY,
        )
    for t, stage in enumerate(schedule.stages):
        where = f"schedule.stages[{t}]"
        ids = [c.forward for c in stage.computes]
        if any(not 0 <= i < count for i in (*ids, *stage.keep)):
            raise InputError(where, ids, f"names a forward operator outside 0..{count - 1}", REMEDY)
        if ids != sorted(set(ids)):
            raise InputError(where, ids, "does not compute in ascending order", REMEDY)
        if any(c.in_place or c.implementation != 0 for c in stage.computes):
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


def _emit_encoding(emitter: Emitter, group: ForwardGroup) -> None:
    assert group.encoding is not None
    alternative, site = group.encoding.alternative, group.encoding.site
    emitter.encoded[group.id] = alternative.encode(emitter.graph, site, emitter.value)


def _forward_graph(operators: Operators, schedule: Schedule, saved: Sequence[fx.Node | int]) -> fx.Graph:
    joint = operators.joint
    graph = fx.Graph()

    def missing(root: fx.Node) -> fx.Node:
        if root.op == "get_attr":
            return graph.node_copy(root)
        raise InputError("schedule.stages[0]", root.name, "is read before it is computed", REMEDY)

    emitter = Emitter(joint, graph, missing)
    for primal in joint.primals:
        emitter.held[primal] = graph.node_copy(primal)
    for compute in schedule.stages[0].computes:
        group = operators.forward[compute.forward]
        if group.encoding is not None:
            _emit_encoding(emitter, group)
        for node in (*group.nodes, *group.side):
            emitter.run(node)
    outputs = [emitter.value(n) if isinstance(n, fx.Node) else n for n in joint.forward_outputs]
    outputs += [emitter.encoded[s] if isinstance(s, int) else emitter.value(s) for s in saved]
    _finish(joint, graph, outputs, slice(0, len(joint.forward_outputs)), len(saved))
    return graph


class _BackwardEmission:
    """The backward graph, stage by stage. What it reads from the forward pass becomes a placeholder."""

    def __init__(self, operators: Operators, schedule: Schedule) -> None:
        self.operators = operators
        self.joint = operators.joint
        self.graph = fx.Graph()
        self.emitter = Emitter(self.joint, self.graph, self._missing)
        self.saved: list[fx.Node | int] = []
        tangents = [self.graph.node_copy(n) for n in self.joint.tangents]
        self.emitter.held.update(zip(self.joint.tangents, tangents, strict=True))
        self._first_tangent = tangents[0]
        # Forward operators whose result from stage 0 is still on the device, and those on the device at all.
        self.from_forward = set(schedule.stages[0].keep)
        self.available = set(schedule.stages[0].keep)
        self.stage = 0

    def _placeholder(self, name: str, meta: dict[str, Any], saved: fx.Node | int) -> fx.Node:
        with self.graph.inserting_before(self._first_tangent):
            node = self.graph.placeholder(name)
        node.meta = dict(meta)
        self.saved.append(saved)
        return node

    def _missing(self, root: fx.Node) -> fx.Node:
        if root.op == "get_attr":
            return self.graph.node_copy(root)
        owner = self.operators.owner.get(root)
        always = root in self.operators.pinned or self.joint.is_resident(root)
        if always or owner in self.from_forward:
            return self._placeholder(root.name, root.meta, root)
        raise InputError(f"schedule.stages[{self.stage}]", root.name, "is read but neither stored nor computed", REMEDY)

    def _encoded(self, i: int) -> fx.Node:
        if i not in self.emitter.encoded:
            if i not in self.from_forward:
                name = self.operators.forward[i].name
                raise InputError(
                    f"schedule.stages[{self.stage}]", name, "is read but neither stored nor computed", REMEDY
                )
            self.emitter.encoded[i] = self._placeholder(f"encoded_{i}", encoded_meta(self.operators, i), i)
        return self.emitter.encoded[i]

    def run(self, t: int, stage: Stage, kept_before: Sequence[int]) -> None:
        """Emit stage t."""
        self.stage = t
        self._drop(self.available - set(kept_before))
        for compute in stage.computes:
            self._recompute(self.operators.forward[compute.forward])
        group = self.operators.backward[t - 1]
        assert stage.implementation is not None
        choice = group.choices[stage.implementation]
        missing = [self.operators.forward[i].name for i in choice.needs if i not in self.available]
        if missing:
            raise InputError(f"schedule.stages[{t}]", missing, "is needed but neither stored nor computed", REMEDY)
        for node in group.nodes:
            self._differentiate(node, choice)
        self._drop(self.available - set(stage.keep))
        for node in reversed(self.graph.nodes):
            if node.op == "placeholder" or STAGE in node.meta:
                break
            node.meta[STAGE] = (t, bool(stage.computes))
        self.emitter.forget_views()

    def _recompute(self, group: ForwardGroup) -> None:
        unmet = [self.operators.forward[i].name for i in group.inputs if i not in self.available]
        if unmet or not group.recomputable:
            problem = "cannot be computed twice" if not unmet else f"is computed without its inputs {unmet}"
            raise InputError(f"schedule.stages[{self.stage}]", group.name, problem, REMEDY)
        if group.encoding is not None:
            self._drop({group.id})
            _emit_encoding(self.emitter, group)
        elif group.encodes is None:
            self._drop({group.id})
        self.available.add(group.id)
        for node in group.nodes:
            recomputes = self.operators.recomputes.get(node)
            if recomputes is None:
                self.emitter.run(node)
            else:
                for recompute in recomputes:
                    new = recompute.emit(self.graph, self.emitter.value)
                    self.emitter.forget(recompute.node)
                    self.emitter.held[recompute.node] = new
        for node in group.nodes[:-1]:
            for root in self.joint.results[node]:
                if root not in group.results and root not in self.operators.pinned:
                    self.emitter.forget(root)

    def _differentiate(self, node: fx.Node, choice: Choice) -> None:
        if choice.site is None or choice.alternative is None or node is not choice.site.backward:
            self.emitter.run(node)
            return
        encoded = None if choice.encoded is None else self._encoded(choice.encoded)
        new = choice.alternative.emit(self.graph, choice.site, self.emitter.value, encoded)
        self.emitter.bind(node, new)

    def _drop(self, gone: set[int]) -> None:
        for i in gone:
            for root in self.operators.forward[i].results:
                self.emitter.forget(root)
            self.emitter.encoded.pop(i, None)
        self.available -= gone
        self.from_forward -= gone


def _backward_graph(operators: Operators, schedule: Schedule) -> tuple[fx.Graph, list[fx.Node | int]]:
    joint = operators.joint
    emission = _BackwardEmission(operators, schedule)
    stages = schedule.stages
    for t in range(1, len(stages)):
        emission.run(t, stages[t], stages[t - 1].keep)
    # Gradients that are forward results as they stand are read by the pass's return.
    outputs = [emission.emitter.value(n) if isinstance(n, fx.Node) else n for n in joint.backward_outputs]
    first = len(joint.forward_outputs)
    _finish(joint, emission.graph, outputs, slice(first, None), 0)
    used = {n.name for n in emission.graph.find_nodes(op="placeholder") if n.users}
    saved = []
    placeholders = emission.graph.find_nodes(op="placeholder")
    for node, value in zip(placeholders, emission.saved, strict=False):
        if node.name in used:
            saved.append(value)
        else:
            emission.graph.erase_node(node)
    return emission.graph, saved


def encoded_meta(operators: Operators, i: int) -> dict[str, Any]:
    """Metadata (fake result) of an encoded result, found by encoding into a graph of its own."""
    group = operators.forward[i]
    assert group.encoding is not None
    graph = fx.Graph()
    emitter = Emitter(operators.joint, graph, lambda root: _stand_in(graph, root))
    new = group.encoding.alternative.encode(graph, group.encoding.site, emitter.value)
    return dict(new.meta)


def _stand_in(graph: fx.Graph, root: fx.Node) -> fx.Node:
    node = graph.placeholder(root.name)
    node.meta = dict(root.meta)
    return node


def _finish(joint: Joint, graph: fx.Graph, outputs: Sequence[Any], described: slice, saved: int) -> None:
    node = graph.output(tuple(outputs))
    original = joint.module.graph.output_node()
    node.meta["output_stack_traces"] = [n.meta.get("stack_trace") if isinstance(n, fx.Node) else None for n in outputs]
    if "desc" in original.meta:
        from torch._functorch._aot_autograd.descriptors import SavedForBackwardsAOTOutput

        descriptions = list(original.meta["desc"])[described]
        node.meta["desc"] = descriptions + [SavedForBackwardsAOTOutput(i) for i in range(saved)]
    graph.eliminate_dead_code()
    graph.lint()
