"""The ``graph`` executor: a training step as traced, every operator on this rank's shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from loadmaster.errors import InputError
from loadmaster.executor.partition.compiled import CompiledPass
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
Pass = Callable[[MutableMapping[int, Tensor]], None]


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
        backend: Backend = "eager",
    ) -> None:
        _expect_backend(backend, traced)
        assert plan.splits is not None
        self.problem, self.plan = problem, plan
        self.traced = traced
        self._step = Step(model, loss)
        self.device = torch.device(mesh.device_type)
        sizes = tuple(axis.size for axis in problem.axes)
        self._draws = Draws(mesh.get_coordinate() or ())
        run = kernels(traced, sizes, plan.splits.strategies, self._draws)
        self._split = SplitStep(problem, plan.splits, run, mesh, kept={traced.loss})
        self._passes = self._passes_of(backend, len(run))
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
        batch = self._step.batch(Batch(args, kwargs))
        self._step.expect_call(batch)
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
            remedy = "Give every rank the whole batch that was captured, or capture this one."
            raise InputError("batch", found, f"is not of the shape {list(shape)}", remedy)
        return self._split.cut(tensor, given).to(self.device, non_blocking=True)

    def _passes_of(self, backend: Backend, count: int) -> tuple[Pass, Pass, Pass]:
        """The forward pass, the updates of buffers, and the backward pass."""
        forward, updates = self.traced.graph.forward_count, len(self.traced.graph.buffers)
        bounds = [(0, forward), (forward, forward + updates), (forward + updates, count)]
        first, between, last = (partial(self._split.run, first=a, last=b) for a, b in bounds)
        if backend == "eager":
            return first, between, last
        gradients = sorted(self.traced.graph.gradients.values())
        return CompiledPass(self._split, *bounds[0]), between, CompiledPass(self._split, *bounds[2], gradients)

    def _forward(self, held: MutableMapping[int, Tensor]) -> Tensor:
        self._draws.begin()
        forward, updates, _ = self._passes
        forward(held)
        updates(held)
        loss = self.traced.loss
        return self._split.whole(loss, held[loss]).clone()

    def _backward(self, held: MutableMapping[int, Tensor], tangent: Tensor) -> list[Tensor | None]:
        of = self.traced
        held[of.tangent] = tangent
        self._passes[2](held)
        found = of.graph.gradients
        return [held.pop(found[n], None) if n in found else None for n in of.parameters.values()]


def _expect_backend(backend: str, traced: TracedStep) -> None:
    if backend not in get_args(Backend):
        raise InputError("backend", backend, "is unknown", f"Choose one of: {', '.join(get_args(Backend))}.")
    if backend == "inductor" and any(is_random(run.node) for run in traced.runs):
        remedy = "Set dropout to 0, or give backend='eager'."
        raise InputError("backend", backend, "does not draw random numbers on shares", remedy)


class _Step(torch.autograd.Function):
    """Between the two passes the shares that the backward pass reads are held, and nothing else."""

    @staticmethod
    def forward(ctx: Any, step: PartitionedStep, held: dict[int, Tensor], *parameters: Tensor) -> Tensor:
        ctx.step, ctx.held = step, held
        return step._forward(held)

    @staticmethod
    def backward(ctx: Any, tangent: Tensor) -> Any:
        held, ctx.held = ctx.held, None
        if held is None:
            raise RuntimeError("the step was run backward already: call it again first")
        return (None, None, *ctx.step._backward(held, tangent.contiguous()))
