"""A step as it was cut in two, run operator by operator, with draws that plain PyTorch has as well.

The masks that compiled code draws are known to nobody else. So of a step that draws, what is held against plain
PyTorch's are the very graphs that are compiled: traced, rewritten and cut as ever. An operator that draws in the
backward pass draws others than in the forward pass, so that no mask can be drawn again unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from loadmaster.executor.memory.fit.any_step import AnyStep
from loadmaster.executor.memory.fit.same_draws import SEED, SameDraws
from loadmaster.executor.memory.run.apply import PlannedStep
from loadmaster.executor.memory.run.backends import eager
from loadmaster.executor.memory.run.compiled_plans import CompiledPlans
from loadmaster.executor.memory.run.knob_step import KnobStep
from loadmaster.executor.steps.tracing import Compiler, Half, compiled_plainly
from loadmaster.executor.torch_private.functorch import functorch_config
from loadmaster.executor.torch_private.operators import rng_prims
from loadmaster.executor.torch_private.tracing import boxed

_OTHER_SEED = SEED + 1
_DRAWN_AGAIN = (rng_prims.run_with_rng_state, rng_prims.graphsafe_run_with_rng_state)


class ByOperator:
    """A step that computes what another one does, operator by operator instead of compiled.

    Attributes:
        call: ``call(*args, **kwargs)``, the loss. Settings that its first call needs hold for its backward pass, too.
        seeded: operators that drew under a seed of the device's generator, so far.
    """

    def __init__(self, step: AnyStep) -> None:
        self.seeded: set[str] = set()
        model, loss = step.step.model, step.step.loss
        self.call: Callable[..., Any]
        if isinstance(step, KnobStep):
            twin = KnobStep(model, loss, knob=step.knob)
            twin.run_by(compiled_plainly(inner=self._inner))
            self.call = twin
        else:
            plans = _PlansByOperator(step.planned, self._run)
            self.call = PlannedStep(plans, model, loss, "refuse", enforce=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The loss of one batch."""
        with functorch_config.patch(enable_autograd_cache=False):  # it would have compiled halves
            return self.call(*args, **kwargs)

    def _inner(self, module: fx.GraphModule, inputs: Sequence[Any], **settings: Any) -> Any:
        return self._run(module, inputs, "backward" if settings.get("is_backward") else "forward")

    def _run(self, module: fx.GraphModule, inputs: Sequence[Any], half: Half) -> Callable[..., Any]:
        # What the user's checkpoints compute again draws with the generator put back.
        puts_back = any(node.target in _DRAWN_AGAIN for node in module.graph.nodes)
        seed = SEED if half == "forward" or puts_back else _OTHER_SEED
        run = eager(module, inputs, half)

        def drawing(arguments: list[Any]) -> Any:
            with SameDraws(seed) as draws:
                results = run(arguments)
            self.seeded |= draws.seeded
            return results

        return boxed(drawing)


class _PlansByOperator(CompiledPlans):
    """Plans of a step, run operator by operator, and known for smaller batches, too."""

    def __init__(self, planned: CompiledPlans, run: Callable[[fx.GraphModule, Sequence[Any], Half], Any]) -> None:
        super().__init__(planned.plans, "eager", planned.implementations)
        self._run = list(planned._run)
        self._by_operator = run

    def _compilers(self) -> tuple[Compiler, Compiler]:
        return (lambda m, i: self._by_operator(m, i, "forward")), (lambda m, i: self._by_operator(m, i, "backward"))
