"""Executor ``graph``: a training step as traced, every operator on this rank's shares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from loadmaster.errors import InputError
from loadmaster.executor.partition.compiled import CompiledStep
from loadmaster.executor.partition.kernels import Draws, kernels
from loadmaster.executor.partition.optimizers import expect_right_updates
from loadmaster.executor.partition.shares import Shares, StepOnShares, as_dtensor, like, local, placement_of
from loadmaster.executor.partition.split_step import SplitStep
from loadmaster.executor.partition.traced import TracedStep, leaves_of
from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.stand_ins import has_no_values
from loadmaster.executor.steps.step import Loss, Step
from loadmaster.executor.steps.step_graph import is_random
from loadmaster.models.partition.placements import WHOLE, Placement
from loadmaster.models.partition.plan import PartitionPlan
from loadmaster.models.partition.problem import PartitionProblem

Backend = Literal["eager", "inductor"]
# Shares by the number of their tensor, or those that a compiled backward pass asks for.
Saved = dict[int, Tensor] | list[Tensor]


class PartitionedStep(StepOnShares):
    """Training step on shares: ``loss = step(*batch)`` or ``step(**batch)``, then ``loss.backward()``.

    Every rank is given the whole batch, and takes its share. The loss is that of the whole batch, on every rank.
    Parameters and their ``.grad`` are this rank's shares: each a ``DTensor`` over the mesh, so that clipping,
    optimizers and ``torch.distributed.checkpoint`` do what they do on one device.

    Attributes:
        module: parameters and buffers under the model's names, for PyTorch's functions that take a module.
        traced: the step on one device.
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
        # Only the rules of its call are kept of the model, which may be freed.
        self._calls = Step(model, loss).calls
        self._draws = Draws(mesh.get_coordinate() or ())
        run, count = kernels(traced, problem, plan.splits.strategies, self._draws)
        self._split = SplitStep(problem, plan.splits, run, mesh, kept={traced.loss})
        # Updates of buffers are between the passes.
        self._updates = (count, count + len(traced.graph.buffers))
        self._compiled = self._compiled_step() if compiles else None
        self.counts = self._split.redistribute.counts
        self._constants = {n: self._own(value, self._split.placements[n]) for n, value in traced.constants.items()}
        self.module: Shares = self._shares_of(model)
        self._shares = self._by_number(self.module)
        # Parameters that needed no gradient when the step was captured never get one.
        self._frozen = [(name, n) for name, n in traced.parameters.items() if not self._shares[n].requires_grad]
        expect_right_updates(self.module.parameters())

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the loss of one batch, a scalar."""
        return self.run_with(self.module, args, kwargs)

    def run_with(self, shares: Shares, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Compute the loss of one batch, a scalar, with other shares in the same placements as its own."""
        batch = self._calls.batch(Batch(args, kwargs))
        self._calls.expect(batch)
        own = self._shares if shares is self.module else self._by_number(shares)
        for name, n in self._frozen:
            if own[n].requires_grad:
                remedy = "Split the model again with it unfrozen."
                raise InputError("requires_grad", name, "was frozen when the step was captured", remedy)
        held = {**self._constants, **{n: local(share).detach() for n, share in own.items()}}
        leaves = leaves_of(batch)
        for leaf, n in self.traced.inputs.items():
            held[n] = self._input(leaves[leaf], n)
        parameters = [own[n] for n in self.traced.parameters.values()]
        found: Tensor = _Step.apply(self, held, *parameters)  # type: ignore[no-untyped-call, unused-ignore]
        return found

    def state_dict(self) -> dict[str, Tensor]:
        """Gather the whole model's state on every rank, for ``model.load_state_dict``. A collective call."""
        return {name: self._whole(share) for name, share in self.module.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load this rank's shares of a whole model's state; InputError if something is missing or has another shape."""
        own = self.module.state_dict(keep_vars=True)
        by_share = {id(share): state[name] for name, share in own.items() if name in state}
        for name, share in own.items():
            given = by_share.get(id(share))
            if given is None or given.shape != share.shape:
                found = "nothing" if given is None else list(given.shape)
                raise InputError(f"state[{name!r}]", found, "is not what the model has", f"Give {list(share.shape)}.")
            with torch.no_grad():
                local(share).copy_(self._split.redistribute.cut(given, placement_of(share)))

    def whole_gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Gather the whole gradient of every parameter that has one. A collective call."""
        return ((name, self._whole(p.grad)) for name, p in self.named_parameters() if p.grad is not None)

    def whole_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Gather every buffer, whole. A collective call."""
        return ((name, self._whole(buffer)) for name, buffer in self.module.named_buffers())

    def _whole(self, share: Tensor) -> Tensor:
        return self._split.redistribute.whole(local(share).detach(), share.shape, placement_of(share))

    def _shares_of(self, model: nn.Module) -> Shares:
        numbers = {**self.traced.parameters, **self.traced.buffers}
        made: dict[int, Tensor] = {}
        for name, of in (*model.named_parameters(), *model.named_buffers()):
            # What the step does not use is whole on every rank.
            n = numbers.get(name)
            placement = (WHOLE,) * len(self.problem.axes) if n is None else self._split.placements[n]
            share = as_dtensor(self._own(of, placement), of.shape, self._split.redistribute, placement)
            made[id(of)] = nn.Parameter(share, of.requires_grad) if isinstance(of, nn.Parameter) else share
        draws = any(is_random(run.node) for run in self.traced.runs)
        return Shares(model, made, self, mode_counts=draws or bool(self.traced.graph.buffers))

    def _by_number(self, shares: Shares) -> dict[int, Tensor]:
        """Shares that the step reads, by the number of their tensor."""
        parameters, buffers = dict(shares.named_parameters()), dict(shares.named_buffers())
        found: dict[int, Tensor] = {n: parameters[name] for name, n in self.traced.parameters.items()}
        found.update({n: buffers[name] for name, n in self.traced.buffers.items()})
        return found

    def _own(self, whole: Tensor, placement: Placement) -> Tensor:
        redistribute = self._split.redistribute
        if has_no_values(whole):
            shape = redistribute.worker.share_shape(whole.shape, placement)
            return torch.empty(shape, dtype=whole.dtype, device=self.device)
        return redistribute.cut(whole.detach(), placement).to(self.device).clone()

    def _input(self, given: object, tensor: int) -> Tensor:
        shape = self._split.problem.tensors[tensor].shape
        if not isinstance(given, Tensor) or tuple(given.shape) != shape:
            found = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
            remedy = "Give every rank a whole batch of that shape; DataLoader(..., drop_last=True) gives no short one."
            raise InputError("batch", found, f"is not of the shape {list(shape)}", remedy)
        return self._split.cut(tensor, given).to(self.device, non_blocking=True)

    def _forward(self, held: dict[int, Tensor]) -> tuple[Tensor, Saved]:
        """Run the forward pass and the updates of buffers; return the loss, and what the backward pass needs."""
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
        """Run the backward pass; return the gradient of each parameter, None where it has none."""
        of, found = self.traced, self.traced.graph.gradients
        if self._compiled is not None:
            assert isinstance(saved, list)
            made = self._compiled.backward(saved, tangent)
        else:
            assert isinstance(saved, dict)
            made = saved
            made[of.tangent] = tangent
            self._split.run(made, self._updates[1])
        return [like(self._shares[n], made.pop(found[n])) if n in found else None for n in of.parameters.values()]

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
    """Return the backend asked for, by default the compiler on a GPU where it can run the step; InputError if it is
    unknown, or does not run the step."""
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
    """Step in autograd: between the two passes it holds the shares that the backward pass reads, and nothing else."""

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
        step: PartitionedStep = ctx.step
        return (None, None, *step._backward(saved, tangent.contiguous()))
