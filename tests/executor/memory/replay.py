"""One traced step whose schedules run again and again without tracing: its joint graph is the oracle."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn

from loadmaster.executor import capture
from loadmaster.executor.memory.implementations.passes import run_passes
from loadmaster.executor.memory.operators.grouping import group
from loadmaster.executor.memory.run import backends
from loadmaster.executor.memory.run.emission import emit
from loadmaster.executor.memory.run.lowering import lower
from loadmaster.executor.steps.step import Step
from loadmaster.executor.steps.step_graph import StepGraph, tensors
from loadmaster.executor.steps.tracing import compiled
from loadmaster.models.memory.plan import Schedule
from loadmaster.models.memory.problem import MemoryProblem
from tests.executor.memory import schedules

SEED = 5


class AsRecorded(fx.Interpreter):
    """Runs a graph, and expects every value to be as its node says: what reads it was chosen and compiled for that."""

    def run_node(self, n: fx.Node) -> Any:
        made = super().run_node(n)
        if "val" in n.meta:
            for value, fake in zip(tensors(made), tensors(n.meta["val"]), strict=True):
                assert _described(value) == _described(fake), n.format_node()
        return made


def _described(value: torch.Tensor) -> object:
    strides = [stride for size, stride in zip(value.shape, value.stride(), strict=True) if size > 1]
    return value.dtype, tuple(value.shape), strides if value.numel() else None


class Replay:
    """A training step with real inputs, operators and problem.

    Attributes:
        problem: as captured for a backend that fuses (or not).
        first: loss, gradients and buffers of the step under a schedule that keeps everything, as the user gets them.
    """

    def __init__(self, model: nn.Module, inputs: Sequence[Any], loss: Any, *, fused: bool = True) -> None:
        self.problem: MemoryProblem = capture(
            model, inputs, loss, hardware="h200", backend="inductor" if fused else "eager"
        )
        model = copy.deepcopy(model)
        self._given: list[Any] = []

        def partition(step_graph: StepGraph) -> tuple[fx.GraphModule, fx.GraphModule]:
            self.step_graph = step_graph
            self.operators = group(step_graph, fused=fused)
            return emit(self.operators, schedules.schedule(self.problem, lambda i: True))

        def compiler(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            run = backends.eager(module, inputs)

            def call(arguments: list[Any]) -> Any:
                if not self._given:  # the forward pass comes first
                    self._given = [copy.deepcopy(a.detach()) for a in arguments]
                return run(arguments)

            call._boxed_call = True  # type: ignore[attr-defined]
            return call

        torch.manual_seed(SEED)
        value = compiled(partition, lambda: (compiler, compiler), run_passes)(Step(model, loss), *inputs)
        value.backward()
        self.first = (value.detach(), [p.grad for p in model.parameters()], list(model.buffers()))
        fakes = [n.meta["val"] for n in self.step_graph.tangents]
        self._tangents = [torch.ones(fake.shape, dtype=fake.dtype) for fake in fakes]

    def expected(self) -> list[Any]:
        """What the joint graph returns: updated buffers, loss, gradients."""
        torch.manual_seed(SEED)
        with torch.no_grad():
            given = [a.clone() for a in self._given]
            step_graph = fx.Interpreter(self.step_graph.module)
            return list(step_graph.run(*given, *self._tangents, enable_io_processing=False))

    def under(self, schedule: Schedule, *, lowered: bool = False) -> list[Any]:
        """The same under a schedule, node by node; or as lowered for a compiler, but not compiled."""
        forward, backward = emit(self.operators, schedule)
        with torch.no_grad():
            given = [a.clone() for a in self._given]
            returned = list(self._run(forward, list(given), lowered=lowered))
            count = len(self.step_graph.returned)
            gradients = self._run(backward, [*returned[count:], *self._tangents], lowered=lowered)
        written = [given[self.step_graph.primals.index(primal)] for primal in self.step_graph.written]
        return [*written, *returned[:count], *gradients]

    def _run(self, module: fx.GraphModule, arguments: list[Any], *, lowered: bool) -> Any:
        if lowered:
            # Lowering runs the graph: it draws, and updates buffers.
            run = lower(module, [a.clone() for a in arguments], channels_last=False)
            torch.manual_seed(SEED)
            return run(*arguments)
        torch.manual_seed(SEED)
        with torch.random.fork_rng():
            copies = [a.clone() for a in arguments]
            AsRecorded(module).run(*copies, enable_io_processing=False)
        return backends.eager(module, arguments)(arguments)

    def random_schedule(self, seed: int) -> Schedule:
        """Some results kept, some recomputed and kept from then on, any implementations."""
        draw = random.Random(seed)
        kept, stays = draw.choice([0.0, 0.1, 0.3, 0.6, 0.9]), draw.choice([0.0, 0.3, 0.8])
        keep = [draw.random() < kept for _ in self.problem.forward]
        choices = [draw.randrange(len(b.implementations)) for b in self.problem.backward]
        again = [[draw.random() < stays for _ in self.problem.forward] for _ in self.problem.backward]
        return schedules.schedule(
            self.problem, keep.__getitem__, lambda k: choices[k - 1], lambda k, i: again[k - 1][i]
        )
