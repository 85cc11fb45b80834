"""Traced step in the form that is split: the tensors that it keeps, and the operators that read them through views.

Views are not operators: they take no time and no memory, and where a tensor is split along one dimension, its view is
split along another. So an operator has a view for every input. It also has one for a result that all readers take
apart, rows into batch and sequence: then the tensor is kept in their shape, so that it can be split along each.
"""

from __future__ import annotations

import operator as builtin
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx

from loadmaster.executor.partition.on_shares import RESHAPES, makes_parts, results_of, view_of
from loadmaster.executor.partition.trials import Admitted, Trials, is_tensor, operands
from loadmaster.executor.steps.step_graph import StepGraph, is_view
from loadmaster.models.partition.tdl.through_views import Seen, through_views
from loadmaster.models.partition.views import ShapeView

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Held:
    """Tensor of the step: the node that makes it, and the shape that it is kept in."""

    node: fx.Node
    shape: tuple[int, ...]

    @property
    def value(self) -> Tensor:
        """Fake tensor of its node, in the node's own shape."""
        found: Tensor = self.node.meta["val"]
        return found


@dataclass(frozen=True, eq=False)
class Run:
    """Operator of the traced step: the number of each input with the view that is read, that of each output with what
    the operator makes as a view of it, its formula and strategies, and these as its tensors see them (``seen``)."""

    node: fx.Node
    inputs: tuple[tuple[int, ShapeView], ...]
    outputs: tuple[tuple[int, ShapeView], ...]
    admitted: Admitted
    seen: tuple[Seen, ...] = field(repr=False)

    @property
    def is_elementwise(self) -> bool:
        """True if every element of its results needs the same element of every input."""
        views = [view for _, view in (*self.inputs, *self.outputs)]
        formula = self.admitted.formula
        letters = {*formula.inputs, *formula.results} if formula is not None else set()
        return len(letters) == 1 and all(map(str.islower, letters)) and all(view.is_identity for view in views)


class SplitGraph:
    """Tensors and operators of a traced step, after :func:`loadmaster.executor.partition.rewrites.rewritten`.

    ``held`` begins with the ``given_count`` tensors that no operator makes, ``runs`` with the ``forward_count``
    operators of the forward pass. By numbers of tensors, ``buffers`` pairs each buffer that the forward pass updates
    with its new value, and ``gradients`` maps a tensor to its gradient.
    """

    def __init__(self, step_graph: StepGraph, trials: Trials) -> None:
        self.step_graph, self.trials = step_graph, trials
        self.held: list[Held] = []
        self.runs: list[Run] = []
        self._views: dict[fx.Node, tuple[int, ShapeView]] = {}
        nodes = step_graph.nodes
        for node in nodes:
            if node.op in ("placeholder", "get_attr") and is_tensor(node):
                self._keep(node, tuple(node.meta["val"].shape))
        self.given_count = len(self.held)
        self._owned: set[int] = set(range(self.given_count))
        for node in nodes:
            if node in step_graph.forward:
                self._add(node)
        values = step_graph.forward_outputs[: len(step_graph.written)]
        self.buffers = [
            (self.seen(buffer)[0], self._own(value)) for buffer, value in zip(step_graph.written, values, strict=True)
        ]
        self.forward_count = len(self.runs)
        for node in nodes:
            if node not in step_graph.forward:
                self._add(node)
        self.gradients = {
            self.seen(primal)[0]: self._own(gradient)
            for primal, gradient in zip(step_graph.primals, step_graph.backward_outputs, strict=True)
            if isinstance(gradient, fx.Node)
        }

    def seen(self, node: fx.Node) -> tuple[int, ShapeView]:
        """Return the tensor that a node is a view of, and the view."""
        return self._views[node]

    def _add(self, node: fx.Node) -> None:
        if node.op != "call_function":
            return
        if node.target is builtin.getitem:
            source = node.args[0]
            assert isinstance(source, fx.Node)
            if makes_parts(source) and source.all_input_nodes[0] in self._views:
                tensor, of = self._views[source.all_input_nodes[0]]
                view = view_of(node, of)
                assert view is not None, "a part of a view is a view"
                self._views[node] = (tensor, view)
        elif makes_parts(node) or _is_of_numbers(node):
            return
        elif is_view(node) and (made := view_of(node, self._views[node.all_input_nodes[0]][1])) is not None:
            self._views[node] = (self._views[node.all_input_nodes[0]][0], made)
        else:
            self._run(node)

    def _own(self, node: fx.Node) -> int:
        """Tensor of a node for one purpose alone; a copy of it where it is a view, an input, or owned already."""
        tensor, view = self._views[node]
        if not view.is_identity or tensor in self._owned:
            with node.graph.inserting_after(node):
                copy = node.graph.call_function(aten.clone.default, (node,))
            copy.meta.update(node.meta)
            self._run(copy)
            tensor = self._views[copy][0]
        self._owned.add(tensor)
        return tensor

    def _run(self, node: fx.Node) -> None:
        inputs = tuple(self._views[operand.node] for operand in operands(node))
        outputs = tuple((self._keep(made, _kept_in(made)), _native(made)) for made in self._made(node))
        admitted = self.trials.of(node)
        views = [view for _, view in (*inputs, *outputs)]
        self.runs.append(Run(node, inputs, outputs, admitted, tuple(through_views(admitted.strategies, views))))

    def _made(self, node: fx.Node) -> Iterator[fx.Node]:
        """Nodes of the tensors that an operator makes, one for each; new nodes for tensors that nothing reads."""
        result = node.meta.get("val")
        if isinstance(result, Tensor):
            yield node
            return
        if result is None:  # an assertion
            return
        readers = {user.args[1]: user for user in node.users if user.target is builtin.getitem}
        for n, one in enumerate(result):
            if isinstance(one, Tensor) and one.numel():
                yield readers.get(n) or self._unread(node, n, one)

    def _unread(self, node: fx.Node, n: int, made: Tensor) -> fx.Node:
        graph = node.graph
        with graph.inserting_after(node):
            found = graph.call_function(builtin.getitem, (node, n))
        found.meta["val"] = made
        return found

    def _keep(self, node: fx.Node, shape: tuple[int, ...]) -> int:
        self.held.append(Held(node, shape))
        number = len(self.held) - 1
        native = ShapeView(shape).reshaped(tuple(node.meta["val"].shape))
        assert native is not None
        self._views[node] = (number, ShapeView(shape) if native.is_identity else native)
        return number


def _is_of_numbers(node: fx.Node) -> bool:
    """Return whether a node makes numbers, which tracing has found, or is an assertion on numbers."""
    return not results_of(node.meta.get("val")) and (node.meta.get("val") is not None or not operands(node))


def _native(node: fx.Node) -> ShapeView:
    shape, own = _kept_in(node), tuple(node.meta["val"].shape)
    found = ShapeView(shape) if shape == own else ShapeView(shape).reshaped(own)
    assert found is not None
    return found


def _kept_in(node: fx.Node) -> tuple[int, ...]:
    """Shape that a result is kept in: that of all its readers, if it has more dimensions, since each can be split."""
    own = tuple(int(d) for d in node.meta["val"].shape)
    if not node.users or not all(user.target in RESHAPES for user in node.users):
        return own
    shapes = {tuple(int(d) for d in user.meta["val"].shape) for user in node.users}
    if len(shapes) != 1:
        return own
    (shape,) = shapes
    return shape if len(shape) > len(own) and ShapeView(shape).reshaped(own) is not None else own
