"""A compiled layer as a module of PyTorch: parameters by their names, features in, values of nodes out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from loadmaster.errors import InputError
from loadmaster.executor.graph.compiled.captured import GraphLaunches, is_short
from loadmaster.executor.graph.compiled.indices import Indices
from loadmaster.executor.graph.compiled.passes import Passes, passes
from loadmaster.executor.graph.compiled.run import Makers, Run, call
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Schedule

RunKey = tuple[torch.device, torch.dtype, frozenset[int]]
Call = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]
Runs = WeakKeyDictionary[Graph, dict[RunKey, Call]]
Launch = Literal["auto", "graph", "eager"]


class CompiledLayer(nn.Module):
    """A layer that runs by a schedule. Made by :func:`~loadmaster.executor.graph.compiled.compiling.compile`.

    Its parameters have the names and shapes of the program: a weight for each relation is [relations, *shape].

    Attributes:
        program: both passes; the forward pass alone where the layer was not compiled for training.
        graph: what the layer runs on where a call names no other.
        launch: ``graph``: on its own graph the layer is captured as CUDA graphs; ``eager``: it is not; ``auto``: it is
            where its kernels are short.
    """

    def __init__(self, program: Program, schedule: Schedule, graph: Graph, launch: Launch = "auto") -> None:
        super().__init__()
        if launch not in get_args(Launch):
            raise InputError("launch", launch, "is no way to launch kernels", f"Use one of: {get_args(Launch)}.")
        self.program, self.schedule, self.graph, self.launch = program, schedule, graph, launch
        read = frozenset(program.outputs).union(*(program.above[n] for n in program.outputs))
        given = frozenset(n for n in read if program.values[n].op in ("feature", "parameter"))
        self._without_gradient = given - {of for of, _ in program.gradients}
        trains = bool(program.gradients)
        self._features, self._parameters_of = program.given("feature"), program.given("parameter")
        if "graph" in self._features:
            raise InputError("features", "graph", "is what calls name a graph by", "Give the feature another name.")
        rows = {"one": (), "relation": (len(graph.schema.relations),), "node_type": (len(graph.schema.node_types),)}
        for name, n in self._parameters_of.items():
            if hasattr(self, name) or "." in name:
                remedy = "Give the weight another name."
                raise InputError("weights", name, "is a name that modules of PyTorch use themselves", remedy)
            typed = program.types[n]
            empty = torch.empty(*rows[typed.space], *typed.shape)
            self.register_parameter(name, nn.Parameter(empty, requires_grad=trains))
        self.reset_parameters()
        self._graphs = {graph.device: graph}
        self._passes: dict[frozenset[int], Passes] = {}
        self._makers: dict[RunKey, Makers] = {}
        self._runs: Runs = WeakKeyDictionary()

    def reset_parameters(self) -> None:
        """Draw matrices and vectors by Glorot's rule, each by itself; numbers become 1."""
        with torch.no_grad():
            for name, n in self._parameters_of.items():
                shape = self.program.types[n].shape
                weight = self.get_parameter(name)
                if not shape:
                    weight.fill_(1.0)
                    continue
                readers = [self.program.values[r] for r in self.program.readers[n]]
                # Rows are multiplied by it as by a matrix, rather than number by number.
                is_matrix = any(reader.op == "linear" and reader.inputs[1] == n for reader in readers)
                ends = sum(shape[-2:]) if len(shape) > 1 and is_matrix else shape[-1] + 1
                bound = math.sqrt(6 / ends)
                weight.uniform_(-bound, bound)

    def extra_repr(self) -> str:
        """The features, with the shape of a row."""
        return ", ".join(f"{name}={self.program.types[n].shape}" for name, n in self._features.items())

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *features: Tensor, graph: Graph | None = None, **named: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The layer's outputs: [nodes, *shape] each; of a block, a row for each node that edges end at.

        Features are in the order in which the layer declares them, or by name: [nodes, *shape], or [edges, *shape] in
        the order in which the edges were given. ``graph`` is another graph, or a block, with the same relations and
        types of nodes; None: the layer's own.

        Raises:
            InputError: features are missing, unknown, no tensors, or of wrong rows, shapes, dtypes or devices.
        """
        given = self._by_name(features, named)
        # Looked up as attributes, so that parametrizations and torch.func may stand in for parameters.
        weights: dict[str, Tensor] = {name: getattr(self, name) for name in self._parameters_of}
        tensors = [*given.values(), *weights.values()]
        device = tensors[0].device
        on = self._expect_graph(graph, device)
        indices = Indices.of(on)
        for name, x in given.items():
            self._expect_feature(name, x, indices)
        dtype = self._dtype(device, {**given, **weights})
        numbers = [*self._features.values(), *self._parameters_of.values()]
        grad = torch.is_grad_enabled()
        wanted = frozenset(n for n, x in zip(numbers, tensors, strict=True) if grad and x.requires_grad)
        for n in wanted & self._without_gradient:
            remedy = "Compile the layer for training, plan with feature gradients, or call it under torch.no_grad()."
            raise InputError(self.program.values[n].name, "requires_grad", "gets no gradient from this layer", remedy)
        outputs = self._run(on, dtype, wanted)(tensors)
        return outputs[0] if len(outputs) == 1 else outputs

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without what belongs to one process, which is made again when it is needed."""
        return {**self.__dict__, "_makers": {}, "_runs": None, "_graphs": {self.graph.device: self.graph}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_runs": WeakKeyDictionary()})  # type: ignore[no-untyped-call]

    def _run(self, graph: Graph, dtype: torch.dtype, wanted: frozenset[int]) -> Call:
        key = (graph.device, dtype, wanted)
        runs = self._runs.setdefault(graph, {})
        if key not in runs:
            runs[key] = self._new_run(graph, key)
        return runs[key]

    def _new_run(self, graph: Graph, key: RunKey) -> Call:
        device, dtype, wanted = key
        if wanted not in self._passes:
            self._passes[wanted] = passes(self.program, self.schedule, wanted)
        if key not in self._makers:
            self._makers[key] = Makers(self.program, self._passes[wanted], dtype, device)
        run = Run(self._makers[key], Indices.of(graph))
        if graph is not self._graphs.get(device):
            return partial(call, run)
        if self.launch == "graph" and device.type != "cuda":
            remedy = 'Move the layer to a GPU, or leave launch at "auto".'
            raise InputError("launch", "graph", f"is for GPUs, and the features are on {device}", remedy)
        if device.type == "cuda" and (self.launch == "graph" or (self.launch == "auto" and is_short(run))):
            return GraphLaunches(run)
        return partial(call, run)

    def _by_name(self, features: tuple[Tensor, ...], named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        names = [*self._features]
        if len(features) > len(names):
            raise InputError("features", len(features), f"are more than {len(names)}", f"Give: {', '.join(names)}.")
        found = dict(zip(names, features, strict=False))
        for name, x in named.items():
            if name not in self._features or name in found:
                problem = "is given twice" if name in found else "is no feature of this layer"
                raise InputError("features", name, problem, f"Give: {', '.join(names)}.")
            found[name] = x
        for name in names:
            if name not in found:
                raise InputError("features", name, "is missing", f"Give: {', '.join(names)}.")
            if not isinstance(found[name], Tensor):
                raise InputError(name, type(found[name]).__name__, "is no tensor", "Give a tensor.")
        return {name: found[name] for name in names}

    def _expect_graph(self, graph: Graph | None, device: torch.device) -> Graph:
        if graph is None:
            if device not in self._graphs:
                self._graphs[device] = self.graph.to(device)
            return self._graphs[device]
        own, other = self.graph.schema, graph.schema
        if own.relations != other.relations or own.node_types != other.node_types:
            found = f"{len(other.relations)} relations, {len(other.node_types)} types of nodes"
            problem = f"has other relations or types of nodes than the layer's {len(own.relations)}"
            raise InputError("graph", found, problem, "Give a graph or block with the same ones, in the same order.")
        if graph.device != device:
            remedy = f"Move the graph there: graph.to({str(device)!r})."
            raise InputError("graph", str(graph.device), f"is not on the features' device, {device}", remedy)
        return graph

    def _expect_feature(self, name: str, x: Tensor, indices: Indices) -> None:
        typed = self.program.types[self._features[name]]
        expected = (indices.rows(typed.space), *typed.shape)
        if tuple(x.shape) != expected:
            what = "nodes" if typed.space == "node" else "edges"
            problem = f"does not have the {expected[0]} rows of {what}, or not their shape"
            raise InputError(name, tuple(x.shape), problem, f"Give a tensor of shape {expected}.")

    def _dtype(self, device: torch.device, given: Mapping[str, Tensor]) -> torch.dtype:
        """Return the dtype of the computation: autocast's where it is on, else the one that all tensors have."""
        first, *others = given
        for name in others:
            if given[name].device != device:
                problem = f"is not on the device of {first}, {device}"
                raise InputError(name, str(given[name].device), problem, "Move features and layer to one device.")
        for name, x in given.items():
            if not x.is_floating_point():
                raise InputError(name, str(x.dtype), "holds no floating-point numbers", "Convert it.")
        if torch.is_autocast_enabled(device.type):
            return torch.get_autocast_dtype(device.type)
        for name in others:
            if given[name].dtype != given[first].dtype:
                problem = f"has another dtype than {first}, {given[first].dtype}"
                raise InputError(name, str(given[name].dtype), problem, "Convert one, or use torch.autocast.")
        return given[first].dtype
