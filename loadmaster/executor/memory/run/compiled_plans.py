"""Graphs compiled under plans: those of a step, cut as the plan says that was made for it.

A plan that was made for a batch is the plan for a smaller one, too: the same operators in the same order, on tensors of
which none is larger, take no more memory. It needs no new schedule; its graphs are compiled again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from loadmaster.errors import InputError
from loadmaster.executor.memory.implementations.passes import run_passes
from loadmaster.executor.memory.implementations.registry import EVERYTHING, ImplementationFilter
from loadmaster.executor.memory.operators.grouping import group
from loadmaster.executor.memory.operators.groups import Operators, carried_over
from loadmaster.executor.memory.run.backends import COMPILERS, Backend, both_halves
from loadmaster.executor.memory.run.channels_last import runs_channels_last
from loadmaster.executor.memory.run.emission import emit
from loadmaster.executor.steps.cuda_graphs import CudaGraphs
from loadmaster.executor.steps.guards import other_versions
from loadmaster.executor.steps.step import Step
from loadmaster.executor.steps.step_graph import StepGraph, tensors
from loadmaster.executor.steps.tracing import Before, Compiler, Half, Mode, compiled, compiled_plainly
from loadmaster.models.memory.plan import MemoryPlan, Schedule

logger = logging.getLogger(__name__)

# Eight bytes each, and a thousand are added: the least that a chunk of 256 KiB is made for, and leaves most of it free.
_SLOTS = 16_000


class NoPlanError(InputError):
    """None of the plans is for this graph. Users get it as a plain :class:`InputError`."""


class CompiledPlans:
    """Graphs compiled under some plans: shared by equal steps, such as the blocks of a transformer. ``call(step, *args,
    **kwargs)`` runs a step under the plans, with an :class:`InputError` for a graph that none is for; ``plain`` does so
    without a plan. ``before`` is called before each half of a step is compiled."""

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
                schedule = _of_block(schedule_of(plan), len(operators.forward))
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
            if operators.is_within(larger):
                logger.info("a smaller batch than %s was made for: it is compiled under the same plan", plan.name)
                return plan, carried_over(larger, operators.step_graph)
        return None


def with_room(run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """The function, called from a frame that is too long for any chunk of memory there is, and gets one with much room.

    CPython keeps the frames of a thread in chunks, 16 KiB each or as long as a longer frame needs. Where a long
    function leaves a chunk all but full, every function that it calls gets a chunk of its own, mapped for that call and
    given back after it, with a page fault or more. Planned steps of GPT-2 and BERT did that some hundred times a step,
    and were notably longer for it. The function's arguments come as one list, which it may empty.
    """

    def call(arguments: list[Any]) -> Any:
        return run(arguments)

    call.__code__ = call.__code__.replace(co_stacksize=_SLOTS)
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _of_block(schedule: Schedule, operators: int) -> Schedule:
    """The schedule without a last operator that is not one of the ``operators`` of the graph: a block's has one."""
    first = schedule.stages[0]
    if not first.computes or first.computes[-1].forward != operators:
        return schedule
    stages = [replace(s, keep=tuple(i for i in s.keep if i != operators)) for s in schedule.stages]
    return replace(schedule, stages=(replace(stages[0], computes=first.computes[:-1]), *stages[1:]))


def fingerprint_of(plan: MemoryPlan) -> str:
    return plan.name.rpartition("-")[2]


def schedule_of(plan: MemoryPlan) -> Schedule:
    """The plan's schedule; an InputError if the plan is infeasible and has none."""
    if plan.schedule is None:
        why = plan.infeasibility
        enough = "a larger budget"
        if why is not None:
            enough = f"{why.planned_budget_bytes or why.minimum_budget_bytes} bytes or more"
        raise InputError("plan.status", plan.status, "has no schedule to apply", f"Plan again with {enough}.")
    return plan.schedule
