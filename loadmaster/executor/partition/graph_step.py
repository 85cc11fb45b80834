"""The ``graph`` executor: a training step as traced, every operator on this rank's shares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from loadmaster.errors import InputError
from loadmaster.executor.partition.compiled import CompiledStep
from loadmaster.executor.partition.kernels import Draws, kernels
from loadmaster.executor.partition.split_step import SplitStep
from loadmaster.executor.partition.traced import TracedStep, leaves_of
from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.stand_ins import has_no_values
from loadmaster.executor.steps.step import Loss, Step
from loadmaster.executor.steps.step_graph import is_random
from loadmaster.models.partition.plan import PartitionPlan
from loadmaster.models.partition.problem import PartitionProblem

Backend = Literal["eager", "inductor"]
# Shares by the number of their tensor, or those that a compiled backward pass asks for.
Saved = dict[int, Tensor] | list[Tensor]


class PartitionedStep:
    """A training step on shares: ``loss = step(*batch)`` or ``step(**batch)``, then ``loss.backward()``.

    Every rank is given the whole batch, and takes its share. The loss is that of the whole batch, on every rank.
    Gradients are in ``.grad`` of :meth:`parameters`, which are this rank's shares: any optimizer that updates each
    element by itself trains them.

    Attributes:
        problem, plan: what it runs.
        traced: the step.
        device: that it runs on.
        counts: collectives so far, by name.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss | None,
        traced: TracedStep,
        problem: PartitionProblem,
        plan: PartitionPlan,
        mesh: DeviceMesh,
        backend: Backend | None = None,
    ) -> None:
        self.device = torch.device(mesh.device_type)
        compiles = _backend_of(backend, traced, self.device) == "inductor"
        assert plan.splits is not None
        self.problem, self.plan = problem, plan
        self.traced = traced
        # Of the model nothing is kept but what it does not train by: it may be let go.
        self._calls = Step(model, loss).calls
        self._draws = Draws(mesh.get_coordinate() or ())
        run, count = kernels(traced, problem, plan.splits.strategies, self._draws)
        self._split = SplitStep(problem, plan.splits, run, mesh, kept={traced.loss})
        # Updates of buffers are between the passes.
        self._updates = (count, count + len(traced.graph.buffers))
        self._compiled = self._compiled_step() if compiles else None
        self.counts = self._split.redistribute.counts
        own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self._parameters = {
            name: nn.Parameter(self._share(n, own[name]), requires_grad=own[name].requires_grad)
            for name, n in traced.parameters.items()
        }
        self._buffers = {name: self._share(n, own[name]) for name, n in traced.buffers.items()}
        self._constants = {n: self._share(n, value) for n, value in traced.constants.items()}
        # Names of a state dict as those of the tensors that they stand for: one tensor may have several.
        first = {id(value): name for name, value in reversed(own.items())}
        self._state_names = {
            name: first.get(id(value), name) for name, value in model.state_dict(keep_vars=True).items()
        }
        # What the step does not use.
        self._unused = {name: value for name, value in own.items() if name not in {*self._parameters, *self._buffers}}

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """The loss of one batch, a scalar."""
        batch = self._calls.batch(Batch(args, kwargs))
        self._calls.expect(batch)
        held: dict[int, Tensor] = dict(self._constants)
        held.update((self.traced.buffers[name], share) for name, share in self._buffers.items())
        held.update((self.traced.parameters[name], share.detach()) for name, share in self._parameters.items())
        leaves = leaves_of(batch)
        for leaf, n in self.traced.inputs.items():
            held[n] = self._input(leaves[leaf], n)
        found: Tensor = _Step.apply(self, held, *self._parameters.values())  # type: ignore[no-untyped-call]
        return found

    def parameters(self) -> Iterator[nn.Parameter]:
        """This rank's shares."""
        return iter(self._parameters.values())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's shares, by the names that the model has for them."""
        return iter(self._parameters.items())

    def state_dict(self) -> dict[str, Tensor]:
        """The whole model's, on every rank: what ``model.load_state_dict`` takes. A collective call."""
        found = dict(self._unused)
        for shares, numbers in self._kinds():
            for name, share in shares.items():
                found[name] = self._split.whole(numbers[name], share.detach())
        return {name: found[of] for name, of in self._state_names.items() if of in found}

    def whole_gradients(self) -> Iterator[tuple[str, Tensor]]:
        """The whole gradient of every parameter that has one. A collective call."""
        for name, share in self._parameters.items():
            if share.grad is not None:
                yield name, self._split.whole(self.traced.parameters[name], share.grad)

    def whole_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Every buffer that the step reads, whole. A collective call."""
        for name, share in self._buffers.items():
            yield name, self._split.whole(self.traced.buffers[name], share)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take this rank's shares of a whole model's state.

        Raises:
            InputError: something is missing, or has another shape.
        """
        given = {of: state[name] for name, of in self._state_names.items() if name in state}
        for shares, numbers in self._kinds():
            for name, share in shares.items():
                if name not in self._state_names.values():
                    continue  # the model does not save it
                shape = self._split.problem.tensors[numbers[name]].shape
                if name not in given or tuple(given[name].shape) != shape:
                    found = "nothing" if name not in given else list(given[name].shape)
                    raise InputError(f"state[{name!r}]", found, "is not what the model has", f"Give {list(shape)}.")
                with torch.no_grad():
                    share.copy_(self._split.cut(numbers[name], given[name]))

    def _kinds(self) -> list[tuple[Mapping[str, Tensor], Mapping[str, int]]]:
        return [(self._parameters, self.traced.parameters), (self._buffers, self.traced.buffers)]

    def _share(self, tensor: int, whole: Tensor) -> Tensor:
        if has_no_values(whole):
            return torch.empty(self._split.share_shape(tensor), dtype=whole.dtype, device=self.device)
        return self._split.cut(tensor, whole.detach()).to(self.device).clone()

    def _input(self, given: object, tensor: int) -> Tensor:
        shape = self._split.problem.tensors[tensor].shape
        if not isinstance(given, Tensor) or tuple(given.shape) != shape:
            found = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
            remedy = "Give every rank a whole batch of that shape; DataLoader(..., drop_last=True) gives no short one."
            raise InputError("batch", found, f"is not of the shape {list(shape)}", remedy)
        return self._split.cut(tensor, given).to(self.device, non_blocking=True)

    def _forward(self, held: dict[int, Tensor]) -> tuple[Tensor, Saved]:
        """The loss, and what the backward pass needs."""
        self._draws.begin()
        saved: Saved = held
        if self._compiled is not None:
            saved = self._compiled.forward(held)
        else:
            self._split.run(held, 0, self._updates[0])
        self._split.run(held, *self._updates)
        loss = self.traced.loss
        return self._split.whole(loss, held[loss]).clone(), saved

    def _backward(self, saved: Saved, tangent: Tensor) -> list[Tensor | None]:
        of, found = self.traced, self.traced.graph.gradients
        if self._compiled is not None:
            assert isinstance(saved, list)
            made = self._compiled.backward(saved, tangent)
        else:
            assert isinstance(saved, dict)
            made = saved
            made[of.tangent] = tangent
            self._split.run(made, self._updates[1])
        return [made.pop(found[n], None) if n in found else None for n in of.parameters.values()]

    def _compiled_step(self) -> CompiledStep:
        graph = self.traced.graph
        results = [self.traced.loss, *(value for _, value in graph.buffers)]
        last = len(self._split.kernels)
        gradients = sorted(graph.gradients.values())
        forward, backward = (0, self._updates[0]), (self._updates[1], last)
        tangent = graph.held[self.traced.loss].value
        peak = int(self.plan.check["peak_bytes"])
        return CompiledStep(self._split, forward, backward, results, (self.traced.tangent, tangent), gradients, peak)


def _backend_of(backend: str | None, traced: TracedStep, device: torch.device) -> str:
    """The backend asked for; without one, the compiler on a GPU where it can be.

    Raises:
        InputError: it is unknown, or does not run the step.
    """
    draws = any(is_random(run.node) for run in traced.runs)
    if backend is None:
        return "inductor" if device.type == "cuda" and not draws else "eager"
    if backend not in get_args(Backend):
        raise InputError("backend", backend, "is unknown", f"Choose one of: {', '.join(get_args(Backend))}.")
    if backend == "inductor" and draws:
        remedy = "Set dropout to 0, or give backend='eager'."
        raise InputError("backend", backend, "does not draw random numbers on shares", remedy)
    return backend


class _Step(torch.autograd.Function):
    """Between the two passes the shares that the backward pass reads are held, and nothing else."""

    @staticmethod
    def forward(ctx: Any, step: PartitionedStep, held: dict[int, Tensor], *parameters: Tensor) -> Tensor:
        loss, ctx.saved = step._forward(held)
        ctx.step = step
        return loss

    @staticmethod
    def backward(ctx: Any, tangent: Tensor) -> Any:
        saved, ctx.saved = ctx.saved, None
        if saved is None:
            raise RuntimeError("the step was run backward already: call it again first")
        return (None, None, *ctx.step._backward(saved, tangent.contiguous()))
