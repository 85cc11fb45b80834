"""Executor ``module``: the model's own code, split by ``fully_shard`` and ``DTensor`` as a plan says.

It is checked before it trains: loss and gradients of one batch must be those of the ``graph`` executor under the same
plan, whose operators were all tried. The check covers what ``DTensor`` makes of each operator, losses that are not a
mean over the batch, and statistics over it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from loadmaster.errors import InputError
from loadmaster.executor.partition.graph_step import PartitionedStep
from loadmaster.executor.partition.optimizers import expect_right_updates
from loadmaster.executor.partition.shares import StepOnShares
from loadmaster.executor.partition.traced import TracedStep
from loadmaster.executor.partition.wrapped import layout_of, mesh_of, wrap
from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.stand_ins import lacks_values
from loadmaster.executor.steps.step import Loss, Step
from loadmaster.executor.steps.step_graph import is_random
from loadmaster.executor.torch_private.operators import pytree
from loadmaster.executor.torch_private.sharded_tensors import replicate_implicitly
from loadmaster.models.partition.plan import PartitionPlan
from loadmaster.models.partition.problem import PartitionProblem

# Tolerances relative to the norm of a gradient, or to the loss: rounding of sums that are taken in another order.
_CLOSE = {torch.float64: 1e-9, torch.float32: 1e-3}
_ROUGHLY = 5e-2
# Share of the largest gradient: a smaller one may be nothing but rounding, as that of a shift before a batch norm.
_NO_GRADIENT = 1e-2
# Methods whose plans give every axis one role.
METHODS = ("module", "fsdp", "zero-2", "hsdp", "data-parallel")
_REMEDY = "Use executor='graph', which runs the plan as it was checked."


class ModuleStep(StepOnShares):
    """Training step of a wrapped model: ``loss = step(*batch)`` or ``step(**batch)``, then ``loss.backward()``.

    Every rank is given the whole batch, and takes its share. The loss is that of the whole batch, on every rank.
    ``module`` is the model, wrapped in place.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss | None,
        traced: TracedStep,
        problem: PartitionProblem,
        plan: PartitionPlan,
        mesh: DeviceMesh,
        batch: Batch,
    ) -> None:
        assert plan.splits is not None
        _expect(model, batch, traced, plan)
        self.module, self.problem, self.plan = model, problem, plan
        self._step = Step(model, loss)
        self._layout = layout_of(traced, problem, plan.splits)
        self._device = torch.device(mesh.device_type)
        self._sums = False
        expected = _expected_of(PartitionedStep(model, loss, traced, problem, plan, mesh, "eager"), batch)
        self._mesh = mesh_of(self._layout, mesh.device_type)
        wrap(model, self._layout, self._mesh)
        self._check(batch, *expected)
        expect_right_updates(model.parameters())

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the loss of one batch, a scalar."""
        batch = self._step.batch(Batch(args, kwargs))
        self._step.expect_call(batch)
        own = self._own(batch)
        on_shares = bool(self._layout.axes("tensor"))
        if on_shares:
            # As ``implicit_replication``, but for backward passes, too: tensors that the model makes in its own code,
            # masks for example, are equal on all ranks.
            replicate_implicitly()
        # On CPUs the fused attention has no rule for shares.
        plain = on_shares and self._device.type == "cpu"
        with sdpa_kernel(SDPBackend.MATH) if plain else contextlib.nullcontext():
            loss = self._step(*own.args, **own.kwargs)
        loss = loss.full_tensor() if isinstance(loss, DTensor) else loss
        found: Tensor = _OfAll.apply(loss, self)  # type: ignore[no-untyped-call, unused-ignore]
        return found

    def state_dict(self) -> dict[str, Tensor]:
        """Gather the whole model's state on every rank. A collective call."""
        return {name: _whole(value).detach() for name, value in self.module.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load this rank's shares of a whole model's state. Errors are those of ``Module.load_state_dict``."""
        set_model_state_dict(self.module, dict(state), options=StateDictOptions(full_state_dict=True))

    @property
    def _shares(self) -> int:
        """Number of shares that a batch is divided into."""
        return self._mesh["replicate"].size() * self._mesh["shard"].size()

    def _own(self, batch: Batch) -> Batch:
        """Cut this rank's share of a batch, on its device."""
        leaves, form = pytree.tree_flatten((batch.args, dict(batch.kwargs)))
        place = self._mesh.get_local_rank("replicate") * self._mesh["shard"].size() + self._mesh.get_local_rank("shard")
        for n, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                share = leaf.chunk(self._shares)[place] if n in self._layout.split_inputs else leaf
                leaves[n] = share.to(self._device, non_blocking=True)
        args, kwargs = pytree.tree_unflatten(leaves, form)
        return Batch(args, kwargs)

    def _of_all(self, loss: Tensor) -> Tensor:
        """Combine the losses of shares into the loss of the whole batch."""
        found = loss.detach().clone()
        for name in ("replicate", "shard"):
            dist.all_reduce(found, group=self._mesh.get_group(name))
        return found if self._sums else found / self._shares

    def _check(self, batch: Batch, loss: Tensor, expected: Mapping[str, Tensor]) -> None:
        """Compare one step's loss, gradients and buffers with the graph executor's; InputError if they differ."""
        before = [(buffer, buffer.clone()) for buffer in self.module.buffers()]
        try:
            found = self(*batch.args, **batch.kwargs)
            self._check_loss(found, loss)
            found.backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            reason = f"does not run split into modules: {str(error).splitlines()[0]}"
            raise InputError("model", type(self.module).__name__, reason, _REMEDY) from error
        made = {name: parameter.grad for name, parameter in self.module.named_parameters()}
        made.update(self.module.named_buffers())
        largest = max(float(torch.linalg.vector_norm(wanted.double())) for wanted in expected.values())
        for name, wanted in expected.items():
            own = made[name]
            if own is None or not _is_close(_whole(own).cpu(), wanted, _NO_GRADIENT * largest):
                what = "has another gradient, or another value after a step, than on one device"
                raise InputError("model", name, f"{what}, split into modules", _REMEDY)
        for parameter in self.module.parameters():
            parameter.grad = None
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)

    def _check_loss(self, found: Tensor, loss: Tensor) -> None:
        """Compare the mean of the losses of shares, or their sum, with the loss; InputError if it is neither."""
        found = found.detach()
        if not _is_close(found, loss):
            # ``fully_shard`` takes means over shares; a loss that is a sum is as many times larger.
            self._sums = _is_close(self._shares * found, loss)
            if not self._sums:
                problem = f"is the mean of what shares of the batch have; one device has {float(loss):.6g}, which is "
                raise InputError("loss", f"{float(found):.6g}", f"{problem}not their sum either", _REMEDY)


def _expect(model: nn.Module, batch: Batch, traced: TracedStep, plan: PartitionPlan) -> None:
    """Refuse plans of other methods, and models that cannot be checked: without values, or with random numbers."""
    if plan.method not in METHODS:
        remedy = 'Plan with method="module", or use executor="graph".'
        raise InputError("plan.method", plan.method, "has splits that modules cannot run", remedy)
    if lacks_values(model, batch):
        remedy = "Make the model and the batch with values, or use executor='graph'."
        raise InputError("model", type(model).__name__, "has no values to check the split with", remedy)
    if any(is_random(run.node) for run in traced.runs):
        remedy = "Set dropout to 0, or use executor='graph'."
        raise InputError("model", type(model).__name__, "draws random numbers, so that no check is possible", remedy)


def _expected_of(graph: PartitionedStep, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Run one step of the graph executor: its loss, and whole gradients and buffers after it in host memory."""
    loss = graph(*batch.args, **batch.kwargs)
    loss.backward()  # type: ignore[no-untyped-call]
    found = {name: whole.cpu() for name, whole in graph.whole_gradients()}
    found |= {name: whole.cpu() for name, whole in graph.whole_buffers()}
    return loss.detach(), found


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _is_close(found: Tensor, wanted: Tensor, least: float = 0.0) -> bool:
    """Return whether two tensors differ by no more than rounding, relative to a norm of ``least`` or more."""
    if not wanted.is_floating_point():
        return torch.equal(found, wanted)
    difference = torch.linalg.vector_norm(found.double() - wanted.double())
    norm = max(float(torch.linalg.vector_norm(wanted.double())), least)
    return bool(difference <= _CLOSE.get(wanted.dtype, _ROUGHLY) * norm)


class _OfAll(torch.autograd.Function):
    """Loss of the whole batch in autograd, whose gradient is that of each share's own loss."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, step: ModuleStep) -> Tensor:
        ctx.step = step
        return step._of_all(loss)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        step: ModuleStep = ctx.step
        return (gradient * step._shares if step._sums else gradient), None
