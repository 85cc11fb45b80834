"""Graphs compiled under plans: those of a step, cut as the plan says that was made for it.

A plan that was made for a batch is the plan for a smaller one, too: the same operators in the same order, on tensors of
which none is larger, take no more memory. It needs no new schedule; its graphs are compiled again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from loadmaster.errors import InputError
from loadmaster.executor.memory.implementations.passes import run_passes
from loadmaster.executor.memory.operators.carried_over import carried_over
from loadmaster.executor.memory.operators.grouping import group
from loadmaster.executor.memory.operators.groups import Operators
from loadmaster.executor.memory.operators.implementation_filter import EVERYTHING, ImplementationFilter
from loadmaster.executor.memory.run.backends import COMPILERS, Backend, both_halves
from loadmaster.executor.memory.run.channels_last import runs_channels_last
from loadmaster.executor.memory.run.elsewhere import without_elsewhere
from loadmaster.executor.memory.run.emission import emit
from loadmaster.executor.memory.run.frame_room import with_room
from loadmaster.executor.steps.cuda_graphs import CudaGraphs
from loadmaster.executor.steps.guards import other_versions
from loadmaster.executor.steps.step import Step
from loadmaster.executor.steps.step_graph import StepGraph, tensors
from loadmaster.executor.steps.tracing import Before, Compiler, Half, Mode, compiled, compiled_plainly
from loadmaster.models.memory.plan import MemoryPlan, Schedule

logger = logging.getLogger(__name__)


class NoPlanError(InputError):
    """None of the plans is for this graph. Users get it as a plain :class:`InputError`."""


class CompiledPlans:
    """Graphs compiled under some plans: shared by equal steps, such as the blocks of a transformer.

    Attributes:
        call: ``call(step, *args, **kwargs)`` under the plans. Raises :class:`InputError` for a graph that none is for.
        plain: the same without a plan.
        before: called before each half of a step is compiled.
    """

    def __init__(
        self,
        plans: Sequence[MemoryPlan],
        backend: Backend,
        implementations: ImplementationFilter = EVERYTHING,
        mode: Mode = "default",
    ) -> None:
        self.plans = tuple(plans)
        self.backend = backend
        self.implementations = implementations
        self.mode = mode
        self.before: Before = lambda _half: None
        self._run: list[tuple[MemoryPlan, Operators]] = []
        """Plans that were put in place, and the operators that they were made for."""
        # As CUDA graphs a backward graph is compiled when it first runs, as PyTorch's own are.
        during = both_halves if backend == "inductor" and mode == "default" else contextlib.nullcontext
        self.call = compiled(self.partition, self._compilers, run_passes, during=during)
        self.plain: Callable[..., torch.Tensor] = Step.__call__ if backend == "eager" else compiled_plainly(mode)

    def _compilers(self) -> tuple[Compiler, Compiler]:
        def of(half: Half) -> Compiler:
            def compile(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
                self.before(half)
                return with_room(COMPILERS[self.backend](module, inputs, half))

            return compile

        forward, backward = of("forward"), of("backward")
        if self.mode == "reduce-overhead":
            graphs = CudaGraphs(forward, backward)
            return graphs.forward, graphs.backward
        return forward, backward

    def partition(self, step_graph: StepGraph) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The two graphs of the plan that is for this joint graph, or for the same on a larger batch."""
        channels_last = self.backend == "inductor" and runs_channels_last(step_graph.module)
        found = []
        for fused in (True, False):  # a plan made for one backend runs on the other, though not as fast or as small
            operators = group(step_graph, self.implementations, fused=fused)
            if (known := self._known(operators)) is not None:
                plan, operators = known
                schedule = without_elsewhere(schedule_of(plan), len(operators.forward))
                return emit(operators, schedule, channels_last=channels_last)
            found.append(operators.fingerprint)
        where = " and ".join(sorted({t.device.type for n in step_graph.primals for t in tensors(n.meta.get("val"))}))
        planned = ", ".join(map(fingerprint_of, self.plans))
        made = f"was made for the graph {planned}, this step on {where} is {' or '.join(found)}"
        versions = other_versions(self.plans)
        raise NoPlanError(
            "plan.name",
            ", ".join(plan.name for plan in self.plans),
            made if versions is None else f"{versions}, and {made}",
            f"Capture this model on {where} with this batch, loss, precision, mode and filter, and plan again.",
        )

    def _known(self, operators: Operators) -> tuple[MemoryPlan, Operators] | None:
        """The plan that was made for these operators, or for those of a larger batch, and the operators as planned."""
        for plan in self.plans:
            if fingerprint_of(plan) == operators.fingerprint:
                self._run.append((plan, operators))
                return plan, operators
        for plan, larger in self._run:
            if operators.size.is_within(larger.size):
                logger.info("a smaller batch than %s was made for: it is compiled under the same plan", plan.name)
                return plan, carried_over(larger, operators.step_graph)
        return None


def fingerprint_of(plan: MemoryPlan) -> str:
    """Fingerprint of the graph that a plan was made for."""
    return plan.name.rpartition("-")[2]


def schedule_of(plan: MemoryPlan) -> Schedule:
    """The plan's schedule.

    Raises:
        InputError: the plan is infeasible and has none.
    """
    if plan.schedule is None:
        why = plan.infeasibility
        enough = "a larger budget"
        if why is not None:
            enough = f"{why.planned_budget_bytes or why.minimum_budget_bytes} bytes or more"
        raise InputError("plan.status", plan.status, "has no schedule to apply", f"Plan again with {enough}.")
    return plan.schedule
