"""Half of a step's compilation or all of it, for the sake of what it leaves in Inductor's cache on disk.

A step is compiled from Dynamo's graph by the very functions that compile it where it is run, so that these find there
what they ask for. Of a half, only the forward or the backward graph is compiled. The layout of the forward graph's
results is guessed where it is not compiled: that of the traced graph, or the one that a planned step's convolutions
have. For torch.compile's own that is wrong where it changes the layout of convolutions.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import fx

from loadmaster.executor.memory.fit.ahead import vector_isas
from loadmaster.executor.memory.implementations.passes import run_passes
from loadmaster.executor.memory.implementations.registry import EVERYTHING, ImplementationFilter
from loadmaster.executor.memory.run.backends import inductor, lowered_only, report_strides
from loadmaster.executor.memory.run.compiled_plans import CompiledPlans
from loadmaster.executor.steps.drawn_once import compile_drawing_once
from loadmaster.executor.steps.sent_graph import TorchSettings, received
from loadmaster.executor.steps.tracing import backend_of, left
from loadmaster.executor.torch_private.dynamo import ShapeEnv, dynamo_config
from loadmaster.executor.torch_private.fake_tensors import FakeTensorMode
from loadmaster.executor.torch_private.functorch import functorch_config
from loadmaster.executor.torch_private.inductor import compile_fx_inner
from loadmaster.executor.torch_private.tracing import TracingContext, tracing, use_lazy_graph_modules
from loadmaster.models.memory.plan import MemoryPlan

Part = Literal["forward", "backward", "whole"]


@dataclass(frozen=True, eq=False)
class Job:
    """A step, or half of it: Dynamo's ``graph``, as :func:`~loadmaster.executor.steps.sent_graph.sent` gives it, under
    the ``activation_memory_budget`` or the plan that ``how`` is; ``implementations`` is the filter of the plan's
    capture."""

    graph: bytes
    settings: TorchSettings
    how: float | MemoryPlan
    part: Part
    implementations: ImplementationFilter = EVERYTHING

    def save(self, path: Path) -> None:
        """Write the job to a file, as a pickle."""
        path.write_bytes(pickle.dumps(self))

    @staticmethod
    def load(path: Path) -> Job:
        """Read a job that :meth:`save` wrote."""
        job = pickle.loads(path.read_bytes())
        assert isinstance(job, Job)
        return job

    def run(self) -> None:
        """Compile the job. PyTorch's settings become those of the job, for good."""
        self.settings.take()
        mode = FakeTensorMode(shape_env=ShapeEnv())
        module, inputs = received(self.graph, mode)
        vector_isas.ask_ahead(module)
        vector_isas.settle()
        # What AOTAutograd's own cache has depends on more than its keys say, and would have both halves.
        whole = {"enable_autograd_cache": False, "force_non_lazy_backward_lowering": True}
        with (
            tracing(TracingContext(mode)),
            torch.enable_grad(),
            use_lazy_graph_modules(dynamo_config.use_lazy_graph_module),  # as inside Dynamo; it enters Inductor's keys
            functorch_config.patch(whole),
        ):
            if isinstance(self.how, MemoryPlan):
                self._compile_planned(self.how, module, inputs)
            else:
                with functorch_config.patch(activation_memory_budget=self.how):
                    compile_drawing_once(module, inputs, self._inner)

    def _compile_planned(self, plan: MemoryPlan, module: fx.GraphModule, inputs: Sequence[Any]) -> None:
        partition = CompiledPlans((plan,), "inductor", self.implementations).partition
        forward = lowered_only if self.part == "backward" else inductor
        backward = left if self.part == "forward" else partial(inductor, half="backward", last_first=True)
        backend_of(partition, run_passes, forward, backward)(module, inputs)

    def _inner(self, module: fx.GraphModule, inputs: Sequence[Any], **settings: Any) -> Any:
        is_backward = bool(settings.get("is_backward"))
        if self.part == "whole" or is_backward == (self.part == "backward"):
            return compile_fx_inner(module, inputs, **settings)
        if not is_backward:
            report_strides(module)
        return module
