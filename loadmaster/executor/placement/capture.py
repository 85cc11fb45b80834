"""Capturing a placement problem: one training step, forward, backward and optimizer, as the blocks that it uses.

A copy of the model without values runs two steps with fake tensors, and the second one is written down: the first makes
the optimizer's state. Nothing of it computes or takes memory, so that a laptop captures what it cannot hold. Optimizers
update one parameter after the other in the trace (neither ``foreach`` nor ``fused``): all of the state in one operator
would have to be on the device at once.

Gradients are dropped after the optimizer's step, as ``zero_grad`` does by default. Storages smaller than
``small_bytes`` do not move: their total counts as workspace of every operator. An operator that uses no other block
adds its time to the one before it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_leaves, tree_map

from loadmaster.errors import InputError
from loadmaster.executor.costs import CostModel, roofline
from loadmaster.executor.placement.recorder import Ran, Recorder
from loadmaster.executor.steps.autocast import autocast_without_cuda
from loadmaster.executor.steps.batch import AnyBatch, Batch
from loadmaster.executor.steps.host_link import host_link
from loadmaster.executor.steps.stand_ins import standing_in_for_values
from loadmaster.executor.steps.step import Loss, Step
from loadmaster.executor.steps.versions import captured_with
from loadmaster.models.placement.problem import Block, Operator, PlacementProblem, Role, Tier

SMALL_BYTES = 64 << 10


def capture(
    model: nn.Module,
    batch: AnyBatch,
    loss: Loss | None = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    hardware: str = "h200",
    costs: CostModel | None = None,
    tiers: Sequence[Tier] | None = None,
    small_bytes: int = SMALL_BYTES,
    name: str | None = None,
) -> PlacementProblem:
    """The placement problem of a training step.

    Args:
        batch, loss: as for :func:`loadmaster.executor.capture`.
        optimizer: of the model's parameters; None: the step ends with the gradients.
        hardware: the entry of the catalogue that times, and the link to host memory, are estimated for.
        costs: of operators, instead of the entry's.
        tiers: where blocks may lie; None: host memory, over the entry's link.
        small_bytes: storages smaller than that stay on the device.
        name: of the problem; None: the model's class.

    Raises:
        InputError: the batch does not fit the model, the loss is no scalar, or nothing needs a gradient.
    """
    link = host_link(torch.device("cpu"), hardware)
    if tiers is None:
        tiers = (Tier("host", link.to_host_gbps, link.from_host_gbps),)
    step = Step(model, loss, expects_loss=True)
    taken = step.batch(batch)
    step.expect_call(taken)
    recorder = Recorder(costs or roofline(hardware))
    # By name: those that have no values are replaced while the copy is made.
    names = {id(p): n for n, p in model.named_parameters()}
    with unset_fake_temporarily(), standing_in_for_values([step], taken) as values, autocast_without_cuda():
        recorded = _Recorded(step, values, optimizer, names, recorder)
    return recorded.problem(name or type(model).__name__, tuple(tiers), small_bytes)


class _Recorded:
    """One step of a fake copy, and what its storages are called."""

    def __init__(
        self,
        step: Step,
        batch: Batch,
        optimizer: torch.optim.Optimizer | None,
        names: Mapping[int, str],
        recorder: Recorder,
    ) -> None:
        self.recorder = recorder
        self.named: dict[int, tuple[str, Role]] = {}
        mode = FakeTensorMode()
        with FakeCopyMode(mode):
            self.step = copy.deepcopy(step)
        args, kwargs = tree_map(lambda v: _fake(mode, v), (batch.args, dict(batch.kwargs)))
        self.optimizer = None if optimizer is None else self._over(optimizer, names)
        # The mode that fakes is inner: what is recorded is what the model calls, not how it is faked.
        with mode, recorder, recorder.modules:
            self._run(args, kwargs)
            recorder.on = True
            self._run(args, kwargs)
            recorder.on = False
            self._name_what_lasts(args, kwargs)

    def _run(self, args: Any, kwargs: Any) -> None:
        value = self.step(*args, **kwargs)
        if value.numel() != 1:
            remedy = "Give a loss function, or a model that returns its loss."
            raise InputError("loss", tuple(value.shape), "is no scalar", remedy)
        if not value.requires_grad:
            raise InputError("model", type(self.step.model).__name__, "has no gradient", "Let a parameter require one.")
        value.backward()
        parameters = dict(self.step.model.named_parameters())
        if self.recorder.on:
            for name, parameter in parameters.items():
                if parameter.grad is not None:
                    self.named[self.recorder.number(parameter.grad)] = f"gradient of {name}", "gradient"
        del value
        if self.optimizer is not None:
            self.optimizer.step()
        for parameter in parameters.values():
            parameter.grad = None

    def _name_what_lasts(self, args: Any, kwargs: Any) -> None:
        number = self.recorder.number
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor):
                self.named[number(leaf)] = "input", "input"
        names = {id(p): name for name, p in self.step.model.named_parameters()}
        if self.optimizer is not None:
            for parameter, state in self.optimizer.state.items():
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        self.named[number(value)] = f"{key} of {names.get(id(parameter), 'a parameter')}", "state"
        for name, buffer in self.step.model.named_buffers():
            self.named[number(buffer)] = name, "state"
        for name, parameter in self.step.model.named_parameters():
            self.named[number(parameter)] = name, "parameter"

    def _over(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> torch.optim.Optimizer:
        """The same optimizer over the copied parameters, one parameter at a time."""
        copied = dict(self.step.model.named_parameters())
        groups = []
        for group in optimizer.param_groups:
            parameters = [copied[names[id(p)]] for p in group["params"] if id(p) in names]
            if len(parameters) < len(group["params"]):
                remedy = "Make the optimizer of this model's parameters, after the model is on its device."
                raise InputError("optimizer", type(optimizer).__name__, "has parameters of another model", remedy)
            single = {key: False if key in ("foreach", "fused") else value for key, value in group.items()}
            groups.append({**single, "params": parameters})
        known: Any = type(optimizer)
        try:
            made: torch.optim.Optimizer = known(groups, **_of_its_own(optimizer))
        except (TypeError, ValueError) as error:
            remedy = "Give an optimizer of torch.optim, or None to capture the step without it."
            raise InputError(
                "optimizer", known.__name__, f"cannot be made for another model: {error}", remedy
            ) from error
        return made

    def problem(self, name: str, tiers: tuple[Tier, ...], small_bytes: int) -> PlacementProblem:
        """What was recorded, without what is small."""
        storages = self.recorder.storages
        used = {b for ran in self.recorder.operators for b in ran.reads | ran.writes}
        large = {b: n for n, b in enumerate(sorted(b for b in used if storages[b].size_bytes >= small_bytes))}
        small = sum(storages[b].size_bytes for b in range(len(storages)) if b not in large)
        operators: list[Operator] = []
        waiting_us = 0.0
        for ran in self.recorder.operators:
            uses = ran.reads, ran.writes
            reads, writes = (tuple(sorted(large[b] for b in blocks if b in large)) for blocks in uses)
            if reads or writes:
                operators.append(_operator(ran, waiting_us, reads, writes, ran.workspace_bytes + small))
                waiting_us = 0.0
            elif operators:
                operators[-1] = replace(operators[-1], time_us=operators[-1].time_us + ran.time_us)
            else:
                waiting_us += ran.time_us
        if not operators:
            remedy = f"Capture a larger model, or give a smaller small_bytes than {small_bytes}."
            raise InputError("small_bytes", small_bytes, "is more than any storage of the step", remedy)
        return PlacementProblem(
            name=name,
            operators=tuple(operators),
            blocks=tuple(self._block(b) for b in large),
            tiers=tiers,
            captured_with=captured_with(),
        )

    def _block(self, number: int) -> Block:
        seen = self.recorder.storages[number]
        name, role = self.named.get(number, (f"{seen.made_by or 'tensor'} ({number})", "activation"))
        return Block(name[:200], seen.size_bytes, role)


def _operator(
    ran: Ran, waiting_us: float, reads: tuple[int, ...], writes: tuple[int, ...], workspace_bytes: int
) -> Operator:
    return Operator(ran.op, ran.time_us + waiting_us, reads, writes, workspace_bytes, ran.module)


def _fake(mode: FakeTensorMode, value: Any) -> Any:
    return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value


def _of_its_own(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The arguments without a default of its own: SGD of torch 2.11 and later has one for each."""
    return {"lr": optimizer.defaults["lr"]} if "lr" in optimizer.defaults else {}
