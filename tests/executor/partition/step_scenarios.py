"""What every rank does in tests of whole models on shares."""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, fx
from torch._guards import TracingContext
from torch.distributed.device_mesh import init_device_mesh

import loadmaster
from loadmaster.errors import InputError, LoadmasterError
from loadmaster.executor.partition import collectives as collectives_of_graphs
from loadmaster.executor.partition import compiled
from loadmaster.executor.partition.apply import apply, split
from loadmaster.executor.partition.capture import capture
from loadmaster.executor.partition.graph_step import Backend, PartitionedStep
from loadmaster.executor.partition.redistribute import Redistributor
from loadmaster.executor.partition.traced import TracedStep, traced_step
from loadmaster.executor.steps.batch import batch_of
from loadmaster.models.partition.checker import check
from loadmaster.models.partition.choices import coarsened
from loadmaster.models.partition.documents import read_problem, write_problem
from loadmaster.models.partition.placements import TERM, divides, possible
from loadmaster.models.partition.plan import PartitionPlan, Splits
from loadmaster.models.partition.problem import PartitionProblem
from loadmaster.models.partition.sides import collectives
from loadmaster.models.partition.traffic import Traffic
from tests.executor.partition.models import Made, made
from tests.models.partition.instances import axes

STEPS, RATE = 3, 0.01
# Workers along each axis, or the weights of unequal ones.
Sizes = tuple[int | tuple[int, ...], ...]
LARGEST = 1 << 60


def every_redistribution(of: Sizes, rank: int) -> None:
    """From every placement of a matrix to every other one, terms of sums among them."""
    traffic = Traffic(axes(*of, latency_us=1.0))
    sizes, units = traffic.mesh.sizes, traffic.mesh.units
    redistribute = Redistributor(init_device_mesh("cpu", sizes), traffic)
    # Shares of one column are joined, too.
    shape = (24, math.prod(units))
    whole = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    stored = possible(shape, units, replicas=True)
    parts = itertools.product((0, 1, TERM), repeat=len(sizes))
    for held in sorted({*stored, *(p for p in parts if divides(shape, p, units))}):
        (top, bottom), (left, right) = traffic.mesh.regions(shape, [held])[0, rank].tolist()
        assert torch.equal(redistribute.cut(whole, held), whole[top:bottom, left:right])
        terms = 1
        for part, size in zip(held, sizes, strict=True):
            terms *= size if part == TERM else 1
        for needed in stored:
            found = redistribute(redistribute.cut(whole, held) / terms, shape, held, needed)
            torch.testing.assert_close(found, redistribute.cut(whole, needed), rtol=1e-14, atol=0)
            assert found.is_contiguous()


def plan_of(problem: PartitionProblem, splits: Splits) -> PartitionPlan:
    verdict = check(problem, splits, LARGEST)
    assert verdict.ok, verdict.violations
    return PartitionPlan(
        name=problem.name,
        problem_sha256=problem.sha256,
        status="feasible",
        objective=verdict.objective,
        bound=None,
        gap=None,
        unit=problem.unit,
        method="auto",
        stopped_by="method",
        seconds={},
        solver={},
        check=verdict.summary(),
        options={},
        budget_bytes=LARGEST,
        splits=splits,
        redistributions=verdict.redistributions,
    )


def trains_alike(name: str, plans: int, sizes: Sizes, rank: int, backend: Backend = "eager") -> None:
    """Loss, gradients and parameters of random plans are those of one device; collectives are those predicted."""
    model, batch, loss, traced = traced_once(name)
    problem = replace(captured(name), axes=axes(*sizes, latency_us=1.0))
    choices, rng = coarsened(problem), random.Random(1)
    expected = on_one_device(name)
    mesh = init_device_mesh("cpu", tuple(axis.size for axis in problem.axes))
    for _ in range(plans):
        splits = choices.splits([rng.randrange(len(variable.states)) for variable in choices.variables])
        # As ``apply`` does, but for the tracing: it takes longer than the rest.
        step = PartitionedStep(model, loss, traced, problem, plan_of(problem, splits), mesh, backend)
        optimizer = torch.optim.AdamW(step.parameters(), lr=RATE)
        for wanted, gradients, state in expected:
            step.counts.clear()
            found = step(*batch)
            found.backward()
            torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
            assert step.counts == collectives(problem, splits)
            for parameter, own in step.whole_gradients():
                torch.testing.assert_close(own, gradients[parameter], rtol=1e-10, atol=1e-12, msg=parameter)
            optimizer.step()
            optimizer.zero_grad()
            torch.testing.assert_close(step.state_dict(), state, rtol=1e-9, atol=1e-11)


def passes_are_alike(name: str, plans: int, sizes: Sizes, rank: int) -> None:
    """Compiled passes of ranks with unequal shares begin the same collectives in one order: else they would not end."""
    model, batch, loss, traced = traced_once(name)
    problem = replace(captured(name), axes=axes(*sizes, latency_us=1.0))
    choices, rng = coarsened(problem), random.Random(1)
    mesh = init_device_mesh("cpu", tuple(axis.size for axis in problem.axes))
    begun: list[list[str]] = []

    def runs_nothing(_: object) -> None:
        raise InterruptedError

    def seen(module: fx.GraphModule, *_: object, **__: object) -> Callable[[object], None]:
        nodes = module.graph.nodes
        begun.append([str(node.target) for node in nodes if node.target in collectives_of_graphs.BEGUN.values()])
        context = TracingContext.try_get()
        if context is not None and context.output_strides is not None:
            output: Any = module.graph.output_node()
            context.output_strides += [None] * len(output.args[0])
        return runs_nothing

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(compiled, "compile_fx_inner", seen)
        for _ in range(plans):
            splits = choices.splits([rng.randrange(len(variable.states)) for variable in choices.variables])
            step = PartitionedStep(model, loss, traced, problem, plan_of(problem, splits), mesh, "inductor")
            with pytest.raises(InterruptedError):
                step(*batch)
    assert len(begun) == 2 * plans and all(begun)
    said: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(said, begun)
    assert said == [begun] * len(said)


@cache
def traced_once(name: str) -> tuple[*Made, TracedStep]:
    """A model, which steps read and do not train."""
    model, batch, loss = made(name)
    return model, batch, loss, traced_step(model, batch_of(batch), loss)


@cache
def captured(name: str) -> PartitionProblem:
    """One rank captures for all, whatever the mesh."""
    said: list[object] = [None]
    if dist.get_rank() == 0:
        model, batch, loss = made(name)
        said = [write_problem(capture(model, batch, loss, axes=axes(2)))]
    dist.broadcast_object_list(said)
    return read_problem(said[0])


@cache
def on_one_device(name: str) -> list[tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]]:
    model, batch, loss = made(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    found = []
    for _ in range(STEPS):
        value = loss(model(*batch[:-1]), batch[-1])
        value.backward()
        gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
        found.append((value.detach(), gradients, {n: v.clone() for n, v in model.state_dict().items()}))
    return found


class Dropped(torch.nn.Module):
    """Rows of ones, half of them dropped, each row's own sum."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(64, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(x * self.scale, 0.5)


def drops_alike(sizes: tuple[int, ...], rank: int) -> None:
    """Workers that hold one share drop alike, others do not; each step drops anew."""
    batch = torch.ones(8, 64, dtype=torch.float64), torch.ones(8, 64, dtype=torch.float64)

    def loss(out: Tensor, target: Tensor) -> Tensor:
        return (out * target).sum()

    problem = capture(Dropped(), batch, loss, axes=axes(*sizes, latency_us=1.0), strict=True)
    at = next(n for n, operator in enumerate(problem.operators) if operator.op == "aten.native_dropout")
    choices, rng = coarsened(problem), random.Random(1)
    kinds = set()
    for _ in range(12):
        splits = choices.splits([rng.randrange(len(variable.states)) for variable in choices.variables])
        kinds.add(splits.strategies[at])
        torch.manual_seed(7)
        step = apply(Dropped(), batch, loss, problem=problem, plan=plan_of(problem, splits))
        sums = []
        for _ in range(2):
            step(*batch).backward()
            (share,) = step.parameters()
            sums.append(share.grad.full_tensor())
            share.grad = None
        assert not torch.equal(*sums)
        # A kept element counts 2, of eight rows: were all shares of rows dropped alike, sums would be few even numbers.
        assert len(set(sums[0].tolist())) > 3
        everywhere = [torch.empty_like(sums[0]) for _ in range(dist.get_world_size())]
        dist.all_gather(everywhere, sums[0].contiguous())
        assert all(torch.equal(one, sums[0]) for one in everywhere)
    assert len(kinds) > 2


def splits_in_one_call(sizes: tuple[int, ...], rank: int) -> None:
    """The first rank plans; what it refuses, all refuse."""
    mesh = "x".join(map(str, sizes))
    model, batch, loss = made("perceptron")
    step = split(
        model, batch, loss, mesh=mesh, planner=loadmaster.plan, budget_bytes="1GiB", optimizer=torch.optim.AdamW
    )
    torch.testing.assert_close(step(*batch), loss(model(*batch[:-1]), batch[-1]), rtol=1e-10, atol=1e-12)
    with pytest.raises(LoadmasterError, match="budget_bytes"):
        split(model, batch, loss, mesh=mesh, planner=loadmaster.plan, budget_bytes=1)
    with pytest.raises(InputError, match=r"axes\[0\].weights.*executor='graph'"):
        split(
            model,
            batch,
            loss,
            mesh=mesh,
            weights="3,1x1",
            planner=loadmaster.plan,
            budget_bytes="1GiB",
            executor="module",
        )
    with pytest.raises(InputError, match=r"batch: .*\[8, 8\]"):
        step(batch[0][:4], batch[1][:4])
    with pytest.raises(InputError, match="mesh"):
        split(model, batch, loss, mesh="8x8", planner=loadmaster.plan, budget_bytes="1GiB")


def saves_and_loads(sizes: tuple[int, ...], rank: int, speeds: str | None = None) -> None:
    """A plain state dict goes out and in; a model without values gets them that way."""
    model, batch, loss = made("convolutional")
    mesh = "x".join(map(str, sizes))
    step = split(model, batch, loss, mesh=mesh, speeds=speeds, planner=loadmaster.plan, budget_bytes="1GiB")
    step(*batch).backward()
    state = step.state_dict()
    model.load_state_dict(state)
    assert model[1].num_batches_tracked == 1
    with torch.device("meta"):
        empty, _, _ = made("convolutional")
    problem, plan = step.problem, step.plan
    other = apply(empty, batch, loss, problem=problem, plan=plan)
    other.load_state_dict(state)
    torch.testing.assert_close(other(*batch), step(*batch), rtol=0, atol=0)
    del state["0.weight"]
    with pytest.raises(InputError, match=r"0\.weight"):
        other.load_state_dict(state)


def a_rank_ends(rank: int) -> None:
    """The others do not wait for ever: their next collective fails."""
    model, batch, loss = made("perceptron")
    problem = capture(model, batch, loss, axes=axes(2, latency_us=1.0))
    choices, rng = coarsened(problem), random.Random(1)
    splits = choices.splits([rng.randrange(len(variable.states)) for variable in choices.variables])
    assert collectives(problem, splits)
    step = apply(model, batch, loss, problem=problem, plan=plan_of(problem, splits))
    step(*batch).backward()
    if rank == 1:
        os._exit(1)
    with pytest.raises(RuntimeError, match=r"[Cc]onnection"):
        step(*batch).backward()
