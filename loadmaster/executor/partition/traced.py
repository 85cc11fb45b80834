"""Training step traced for its split: which tensor of the graph is which parameter, buffer or input."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from loadmaster.errors import InputError
from loadmaster.executor.partition.checkpoints import with_checkpoints
from loadmaster.executor.partition.rewrites import rewritten
from loadmaster.executor.partition.split_graph import Run, SplitGraph
from loadmaster.executor.partition.trials import Trials
from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.places import places
from loadmaster.executor.steps.step import Loss
from loadmaster.executor.steps.step_graph import tensors
from loadmaster.executor.steps.tracing import given_tensors, trace
from loadmaster.executor.torch_private.fake_tensors import unset_fake_temporarily
from loadmaster.executor.torch_private.operators import pytree
from loadmaster.models.canonical import canonical_json, plain
from loadmaster.models.partition.problem import (
    Axis,
    Need,
    Operator,
    PartitionProblem,
    Role,
    Signature,
    Strategy,
    Tensor,
)
from loadmaster.models.partition.tdl.operators import update

_NO_STRATEGY = "none"


@dataclass(frozen=True, eq=False)
class TracedStep:
    """Traced step whose tensors are known by number: ``parameters`` and ``buffers`` by their names, ``inputs`` by the
    leaves of the batch, the loss and its gradient (``tangent``); ``constants`` map numbers to values."""

    graph: SplitGraph
    parameters: dict[str, int]
    buffers: dict[str, int]
    inputs: dict[int, int]
    constants: dict[int, torch.Tensor]
    tangent: int
    loss: int

    @property
    def runs(self) -> list[Run]:
        """Operators of the graph, in execution order, without updates of buffers."""
        return self.graph.runs

    @property
    def forward_operators(self) -> int:
        """Number of operators of :meth:`problem` before the backward pass."""
        return self.graph.forward_count + len(self.graph.buffers)

    def replicated(self) -> dict[str, str]:
        """Map each operator that runs whole on every worker to the reason."""
        return {op_of(run): run.admitted.reason for run in self.runs if run.admitted.reason}

    def problem(
        self, axes: Sequence[Axis], times_us: Sequence[float] | None = None, name: str = "", launch_us: float = 0.0
    ) -> PartitionProblem:
        """Make the problem of the step without its optimizer: operators of the graph, and updates of buffers after the
        forward pass. Of each operator's time, ``launch_us`` is what it takes at least."""
        written = _Writing(self, times_us or [0.0] * len(self.runs), launch_us)
        return PartitionProblem(name, tuple(axes), tuple(written.tensors), tuple(written.operators), written.signatures)

    @property
    def fingerprint(self) -> str:
        """Hash of the graph and of what can be split in it, without times and mesh."""
        problem = self.problem((Axis("any", 2, 1.0),))
        shape = {
            "tensors": [(list(t.shape), t.element_bytes, t.role) for t in problem.tensors],
            "operators": [(o.op, list(o.inputs), list(o.outputs), o.signature) for o in problem.operators],
            "signatures": plain(problem.signatures),
        }
        return hashlib.sha256(canonical_json(shape)).hexdigest()[:12]


def op_of(run: Run) -> str:
    """Name of an operator, as documents have it."""
    return str(run.node.target).removesuffix(".default")


def traced_step(model: nn.Module, batch: Batch, loss: Loss | None) -> TracedStep:
    """Trace a training step for its split; the batch has stand-ins where it has no values. InputError: the step cannot
    be traced as one graph, returns no scalar loss, updates a tensor in a way that is not traced, or keeps tensors."""
    given: list[torch.Tensor | None] = []
    step_graph = trace(model, batch, loss, passes=rewritten, noted=lambda module: given.extend(given_tensors(module)))
    if step_graph.mutated != frozenset(step_graph.written):
        raise InputError("model", type(model).__name__, "updates a tensor in a way that is not traced", "Copy into it.")
    if step_graph.kept:
        shapes = [tuple(t.shape) for root in step_graph.kept for t in tensors(root.meta.get("val"))]
        remedy = "Write into buffers instead (self.mean.copy_(...)), and take torch.nn.utils.parametrizations for "
        remedy += "weights that are computed."
        raise InputError("model", shapes, "keeps tensors of these shapes from its step, which are split", remedy)
    with unset_fake_temporarily():
        graph = SplitGraph(with_checkpoints(step_graph), Trials())
    names = {id(p): name for name, p in model.named_parameters()}
    buffer_names = {id(b): name for name, b in model.named_buffers()}
    leaves = {id(leaf): n for n, leaf in enumerate(leaves_of(batch))}
    parameters: dict[str, int] = {}
    buffers: dict[str, int] = {}
    inputs: dict[int, int] = {}
    constants: dict[int, torch.Tensor] = {}
    for primal, tensor in zip(step_graph.primals, given, strict=True):
        number = graph.seen(primal)[0]
        if id(tensor) in names:
            parameters[names[id(tensor)]] = number
        elif id(tensor) in buffer_names:
            buffers[buffer_names[id(tensor)]] = number
        elif id(tensor) in leaves:
            inputs[leaves[id(tensor)]] = number
        elif tensor is not None:
            constants[number] = tensor
    given.clear()  # torch.compile's caches keep the list: a model that is freed elsewhere must not live on in it
    for node in step_graph.module.graph.find_nodes(op="get_attr"):
        constants[graph.seen(node)[0]] = getattr(step_graph.module, str(node.target))
    loss_tensor, view = graph.seen(step_graph.loss)
    assert not view.stages or view.shape in ((), (1,)), "a loss is a scalar"
    return TracedStep(graph, parameters, buffers, inputs, constants, graph.seen(step_graph.tangents[0])[0], loss_tensor)


def leaves_of(batch: Batch) -> list[object]:
    """Leaves of a batch, in order: everything that holds no other values."""
    return pytree.tree_leaves((batch.args, dict(batch.kwargs)))


class _Writing:
    """Tensors, operators and signatures of a traced step, as a problem has them."""

    def __init__(self, traced: TracedStep, times_us: Sequence[float], launch_us: float) -> None:
        graph = traced.graph
        self._numbers: dict[Signature, int] = {}
        named: dict[int, tuple[Role, str]] = {n: ("parameter", name) for name, n in traced.parameters.items()}
        named |= {n: ("state", name) for name, n in traced.buffers.items()}
        named |= {of: ("gradient", f"{named[n][1]}.grad") for n, of in graph.gradients.items() if n in named}
        self.tensors = [
            Tensor(
                named[n][1] if n in named else held.node.name,
                held.shape,
                held.value.element_size(),
                named[n][0] if n in named else "input" if n < graph.given_count else "activation",
            )
            for n, held in enumerate(graph.held)
        ]
        self.operators: list[Operator] = []
        where = places(graph.step_graph)
        for n, (run, time_us) in enumerate(zip(graph.runs, times_us, strict=True)):
            if n == graph.forward_count:
                self._updates(graph)
            place = where.get(run.node)
            inputs, outputs = (tuple(t for t, _ in side) for side in (run.inputs, run.outputs))
            self.operators.append(
                Operator(
                    op_of(run),
                    self._signature(run),
                    inputs,
                    outputs,
                    time_us,
                    min(launch_us, time_us),
                    module=None if place is None else place.module,
                    source=None if place is None else place.source,
                )
            )

    @property
    def signatures(self) -> tuple[Signature, ...]:
        return tuple(self._numbers)

    def _updates(self, graph: SplitGraph) -> None:
        for buffer, value in graph.buffers:
            signature = update(2, len(graph.held[buffer].shape))
            self.operators.append(Operator("buffer update", self._number(signature), (buffer, value)))

    def _signature(self, run: Run) -> int:
        found = tuple(seen.strategy for seen in run.seen)
        if not found:
            whole = tuple(Need("R") for _ in run.inputs)
            found = (Strategy(_NO_STRATEGY, whole, ("R",) * len(run.outputs), divides=False),)
        return self._number(Signature(op_of(run), found, elementwise=run.is_elementwise))

    def _number(self, signature: Signature) -> int:
        return self._numbers.setdefault(signature, len(self._numbers))
