"""Capturing a model: its training step as a memory problem with costs.

The step is traced with fake tensors and nothing of it runs, so that a small machine can capture for a large GPU;
only the costs are measured, operator by operator, when they are not estimated. A model that cannot be traced may have
something to make in its first call: it is called once then, if it has values.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import fx, nn

from loadmaster import live_line
from loadmaster.errors import InputError
from loadmaster.executor.costs import CostModel, profiled, roofline
from loadmaster.executor.costs.model import ShownCosts
from loadmaster.executor.memory.implementations.passes import run_passes
from loadmaster.executor.memory.implementations.registry import EVERYTHING, ImplementationFilter
from loadmaster.executor.memory.operators.accounting import Accountant, Runs
from loadmaster.executor.memory.operators.advice import advice
from loadmaster.executor.memory.operators.grouping import group
from loadmaster.executor.memory.operators.groups import BackwardGroup, ForwardGroup, Operators
from loadmaster.executor.memory.run.backends import Backend, expect_backend
from loadmaster.executor.memory.run.channels_last import runs_channels_last
from loadmaster.executor.renamed import renamed_keywords
from loadmaster.executor.steps.batch import AnyBatch, Batch, batch_of
from loadmaster.executor.steps.guards import captured_with
from loadmaster.executor.steps.host_link import host_link as link_of
from loadmaster.executor.steps.one_graph.graph_breaks import UntraceableError
from loadmaster.executor.steps.places import Place, first_known, places
from loadmaster.executor.steps.resident import (
    cuda_resident_bytes,
    device_of,
    gradient_bytes,
    optimizer_state_bytes,
    own_bytes,
)
from loadmaster.executor.steps.stand_ins import autocast_without_cuda, lacks_values, standing_in_for_values
from loadmaster.executor.steps.step import Loss
from loadmaster.executor.steps.step_graph import StepGraph, is_compute
from loadmaster.executor.steps.tracing import trace
from loadmaster.executor.steps.unchanged import make_first_call
from loadmaster.executor.steps.wrappers import Parallel, WrapperBytes, ddp_of, own_module, wrapper_bytes
from loadmaster.executor.torch_private.fake_tensors import unset_fake_temporarily
from loadmaster.models.hardware import HostLink
from loadmaster.models.hardware import hardware as entry_of
from loadmaster.models.memory.problem import (
    BackwardImplementation,
    BackwardOperator,
    ForwardOperator,
    Implementation,
    InPlace,
    MemoryProblem,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class CaptureOptions:
    """Options of a step's training and of what its plan may use: the keywords of :func:`capture`, which says what each
    means. ``fit`` and the commands pass them on."""

    optimizer: torch.optim.Optimizer | None = None
    hardware: str | None = None
    costs: CostModel | None = None
    backend: Backend = "inductor"
    gradients_held: bool = False
    parallel: Parallel | None = None
    ranks: int = 1
    host_link: HostLink | bool = False
    implementations: ImplementationFilter = EVERYTHING
    name: str | None = None
    progress: bool | None = None


@dataclass(frozen=True, eq=False)
class CapturedStep:
    """A traced step and what it costs: its problem can be written down again under other costs.

    Attributes:
        resident_bytes: parameters, buffers, inputs, optimizer state, and gradients that are held.
        caller_bytes: what its caller holds while it runs: the loss and the loss's gradient.
        wrapper: what a wrapper adds to these, at times.
        host_link: over which plans may send results; None: they may not.
    """

    operators: Operators
    costs: CostModel
    fused: bool
    resident_bytes: int
    caller_bytes: int
    name: str
    title: str
    wrapper: WrapperBytes
    host_link: HostLink | None = None
    progress: bool | None = False

    def problem(self, costs: CostModel | None = None) -> MemoryProblem:
        """The memory problem under these costs; under the captured ones by default."""
        # A FakeTensorMode of the caller's would take the graph's own fake tensors for its.
        with unset_fake_temporarily(), live_line.line(self.progress) as line:
            line.show(f"{self.name}: adding up bytes and times", begins=True)
            asked = costs or self.costs
            count = sum(map(is_compute, self.operators.step_graph.nodes))
            # On the CPU they are measured as they are asked for.
            return self._problem(asked if line.quiet else ShownCosts(asked, line, self.name, count))

    def _problem(self, costs: CostModel) -> MemoryProblem:
        held_bytes = self.resident_bytes + self.caller_bytes
        accountant = Accountant(self._runs, costs, fused=self.fused, resident_bytes=held_bytes)
        return MemoryProblem(
            name=self.name,
            title=self.title,
            forward=_forward(accountant, self._places, self.wrapper.forward_bytes),
            backward=_backward(accountant, self._places, self.wrapper.end_bytes),
            host_link=self.host_link,
            captured_with=captured_with(),
        )

    @cached_property
    def _runs(self) -> Runs:
        return Runs(self.operators)

    @cached_property
    def _places(self) -> dict[fx.Node, Place]:
        return places(self.operators.step_graph)


@renamed_keywords(offer="implementations", inputs="batch")
def capture(
    model: nn.Module,
    batch: AnyBatch,
    loss: Loss | None = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    hardware: str | None = None,
    costs: CostModel | None = None,
    backend: Backend = "inductor",
    gradients_held: bool = False,
    parallel: Parallel | None = None,
    ranks: int = 1,
    host_link: HostLink | bool = False,
    implementations: ImplementationFilter = EVERYTHING,
    name: str | None = None,
    progress: bool | None = None,
) -> MemoryProblem:
    """The memory problem of one training step of a model.

    Args:
        model: an ordinary module, in the mode and on the device it trains on; DistributedDataParallel may wrap it.
            With ``hardware`` named it needs no values: ``torch.device("meta")`` and ``FakeTensorMode`` will do.
        batch: one batch: a tuple, or a mapping of inputs by keyword. Trace under ``torch.autocast`` if the training
            does.
        loss: of a tuple, called as ``loss(model(*batch[:-1]), batch[-1])``; of a mapping, as ``loss(output, batch)``,
            where the model gets what its ``forward`` names. None if the model computes the loss itself: it returns it
            alone, as ``loss`` of what it returns, first in a tuple, or as the only scalar in it.
        optimizer: its state counts as resident.
        hardware: estimate costs for this device of the catalogue ("h200"). None: measure on the model's device.
        costs: a cost model of your own, instead of either.
        backend: what the plan will be applied with: ``inductor`` counts fused operators, ``eager`` single ones.
        gradients_held: the parameters' gradients are there when the step starts, and are added to (accumulation over
            micro-batches, or gradients that are zeroed instead of dropped): they count as resident.
        parallel, ranks: what will wrap the step, ``ddp`` or ``fsdp2``, and on how many ranks: what it holds on each
            rank counts. The plan is for one rank and its part of the batch.
        host_link: whether plans may send results to the host; True measures the link on a CUDA device, or takes it
            from the catalogue where ``hardware`` is named. Give one of your own where several processes share it;
            what it says of cuts counts then (``cut_us``, ``cut_gbps``).
        implementations: those that plans may choose from; the same when the plan is applied.
        name: of the problem; the graph's fingerprint is appended, which :func:`apply` holds a plan against.
        progress: whether to say what goes on, in a line on standard error. None: in a terminal or a notebook.

    Raises:
        InputError: the step cannot be traced as one graph (names place and remedy), returns no scalar loss, or has a
            wrapper inside it.
    """
    options = CaptureOptions(
        optimizer=optimizer,
        hardware=hardware,
        costs=costs,
        backend=backend,
        gradients_held=gradients_held,
        parallel=parallel,
        ranks=ranks,
        host_link=host_link,
        implementations=implementations,
        name=name,
        progress=progress,
    )
    return capture_step(model, batch, loss, options).problem()


def capture_step(
    model: nn.Module,
    batch: AnyBatch,
    loss: Loss | None,
    options: CaptureOptions,
    expect: Callable[[StepGraph], None] | None = None,
    noted: Callable[[fx.GraphModule], None] | None = None,
) -> CapturedStep:
    """Trace a step and take its costs, as :func:`capture` does, before the problem is written down. ``expect`` raises
    for a graph that cannot be planned; ``noted`` is called with Dynamo's graph."""
    batch = batch_of(batch)
    modules = [module for module in (model, loss) if isinstance(module, nn.Module)]
    has_values = not lacks_values(model, batch)
    if options.hardware is None and options.costs is None and not has_values:
        remedy = 'Name the device to estimate costs for: hardware="h200".'
        raise InputError("model", type(model).__name__, "has no values to measure operators with", remedy)

    def captured() -> CapturedStep:
        elsewhere = contextlib.nullcontext() if options.hardware is None else autocast_without_cuda()
        with live_line.line(options.progress) as line, standing_in_for_values(modules, batch) as given, elsewhere:
            return _captured(model, given, loss, options, expect, noted, line)

    def called_once() -> bool:
        if not has_values:
            return False
        with live_line.line(options.progress) as line:
            line.show(f"{type(model).__name__}: tracing ended, calling it once", begins=True)
            return make_first_call(model, batch, loss)

    try:
        found = captured()
    except UntraceableError:
        if not called_once():
            raise
        return captured()
    if found.operators.step_graph.kept and called_once():
        return captured()  # what the first call alone makes, others find
    return found


def _captured(
    model: nn.Module,
    batch: Batch,
    loss: Loss | None,
    options: CaptureOptions,
    expect: Callable[[StepGraph], None] | None,
    noted: Callable[[fx.GraphModule], None] | None,
    line: live_line.LiveLine,
) -> CapturedStep:
    wrapped = ddp_of(model) is not None
    model = own_module(model)
    optimizer, hardware = options.optimizer, options.hardware
    state_bytes = 0 if optimizer is None else optimizer_state_bytes(optimizer)
    parallel = "ddp" if wrapped and options.parallel is None else options.parallel
    wrapper = wrapper_bytes(parallel, options.ranks, model, state_bytes)
    expect_backend(options.backend)
    fused = options.backend == "inductor"
    line.show(f"{type(model).__name__}: tracing the step", begins=True)
    step_graph = trace(model, batch, loss, passes=run_passes, expect=expect, noted=noted)
    device = device_of(model, batch)
    line.settle()
    meant_for = device.type if hardware is None else entry_of(hardware).device_type
    for sentence in advice(step_graph, on_gpu=meant_for == "cuda"):
        logger.warning("%s", sentence)
    line.show(f"{type(model).__name__}: grouping {len(step_graph.nodes)} nodes into operators", begins=True)
    operators = group(step_graph, options.implementations, fused=fused)
    if options.costs is not None:
        costs = options.costs
    elif hardware is not None:
        costs = roofline(hardware, compiled=fused)
    else:
        channels_last = fused and runs_channels_last(operators.step_graph.module)
        costs = profiled(device, compiled=fused, channels_last=channels_last)
    resident_bytes = own_bytes(model, batch) + state_bytes
    if device.type == "cuda":
        # Once, now: libraries make their workspaces before resident bytes are read.
        nodes = list(filter(is_compute, step_graph.nodes))
        told = ShownCosts(costs, line, type(model).__name__, len(nodes))
        for node in nodes:
            told.node_us(node)
        present_bytes = wrapper.step_bytes if wrapped else 0
        to_come_bytes = 0 if optimizer is None or optimizer.state else state_bytes
        resident_bytes = max(resident_bytes, cuda_resident_bytes(model, device) + to_come_bytes - present_bytes)
    resident_bytes += wrapper.step_bytes
    if options.gradients_held:
        resident_bytes += gradient_bytes(model)
    link = options.host_link
    whose = "measured on " + device.type if hardware is None else "of " + hardware
    return CapturedStep(
        operators,
        costs,
        fused,
        resident_bytes,
        2 * sum(step_graph.bytes_of(tangent) for tangent in step_graph.tangents),
        name=f"{options.name or type(model).__name__}-{operators.fingerprint}",
        title=f"{type(model).__name__}, costs {whose}",
        wrapper=wrapper,
        host_link=link_of(device, hardware, compiled=fused) if link is True else link or None,
        progress=options.progress,
    )


def _op(node: fx.Node) -> str:
    return str(node.target).removesuffix(".default")


def _forward(accountant: Accountant, where: dict[fx.Node, Place], extra_bytes: int) -> tuple[ForwardOperator, ...]:
    operators = accountant.operators
    sizes = [accountant.output_bytes(f) for f in operators.forward]
    captured: list[ForwardOperator] = []
    for f in operators.forward:
        size, encodes = sizes[f.id], f.encodes
        live = tuple(i for i in range(f.id) if operators.last_readers[i] >= f.id)
        first, again = accountant.forward(f), accountant.recompute(f)
        is_part = encodes is not None and f.encoding is None
        parent = None if encodes is None else captured[encodes]
        place = _place(f, where) if parent is None else Place(parent.module, parent.source)
        captured.append(
            ForwardOperator(
                id=f.id,
                op=_forward_op(f, operators),
                inputs=f.inputs,
                output_bytes=size,
                live_inputs=live,
                live_bytes=sum(sizes[i] for i in live),
                fixed_bytes=accountant.resident_bytes + extra_bytes,
                implementations=(Implementation(first.time_us, 0 if is_part else first.peak_bytes - size),),
                recompute_implementations=(Implementation(again.time_us, 0 if is_part else again.peak_bytes - size),),
                encodes=encodes,
                in_place=None if f.overwrites is None else InPlace(f.overwrites, 0.0, -sizes[f.overwrites]),
                recomputable=f.recomputable,
                node=f.name,
                module=place.module,
                source=place.source,
            )
        )
    return tuple(captured)


def _place(group: ForwardGroup | BackwardGroup, where: dict[fx.Node, Place]) -> Place:
    """Place of the node that names the operator, or of the last node before it that has one."""
    return first_known(where[node] for node in reversed(group.nodes))


def _forward_op(group: ForwardGroup, operators: Operators) -> str:
    if group.encoding is not None:
        return group.encoding.alternative.name
    if group.encodes is not None:
        return f"part of {_forward_op(operators.forward[group.encodes], operators)}"
    return _op(group.nodes[-1])


def _backward(accountant: Accountant, where: dict[fx.Node, Place], end_bytes: int) -> tuple[BackwardOperator, ...]:
    operators = accountant.operators
    captured = []
    for b, usage in zip(operators.backward, accountant.backward(), strict=True):
        choices = []
        for choice, time_us, workspace in zip(b.choices, usage.time_us, usage.workspace_bytes, strict=True):
            name = None if choice.alternative is None else choice.alternative.name
            choices.append(BackwardImplementation(time_us, workspace, choice.needs, name=name))
        place = _place(b, where)
        captured.append(
            BackwardOperator(
                id=b.id,
                op=_op(b.nodes[-1]),
                output_bytes=usage.output_bytes,
                live_bytes=usage.live_bytes,
                fixed_bytes=usage.fixed_bytes + (end_bytes if b is operators.backward[-1] else 0),
                implementations=tuple(choices),
                node=b.name,
                module=place.module,
                source=place.source,
            )
        )
    return tuple(captured)
