"""What every rank does in tests of steps on shares."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from loadmaster.executor.partition.redistribute import Redistributor
from loadmaster.executor.partition.split_step import Kernel, SplitStep
from loadmaster.models.hardware import hardware
from loadmaster.models.partition.checker import check
from loadmaster.models.partition.choices import coarsened
from loadmaster.models.partition.placements import TERM, divides, possible
from loadmaster.models.partition.problem import Axis, PartitionProblem
from loadmaster.models.partition.tables.builder import Graph
from loadmaster.models.partition.traffic import Traffic
from tests.models.partition.instances import axes

PLANS = 50
RATE = 0.1


def every_redistribution(sizes: tuple[int, ...], rank: int) -> None:
    """From every placement of a matrix to every other one, terms of sums among them."""
    redistribute = Redistributor(init_device_mesh("cpu", sizes), Traffic(axes(*sizes, latency_us=1.0)))
    shape = (8, 12)
    whole = torch.arange(96, dtype=torch.float64).reshape(shape)
    stored = possible(shape, sizes, replicas=True)
    parts = itertools.product((0, 1, TERM), repeat=len(sizes))
    for held in {*stored, *(p for p in parts if divides(shape, p, sizes))}:
        terms = 1
        for part, size in zip(held, sizes, strict=True):
            terms *= size if part == TERM else 1
        for needed in stored:
            found = redistribute(redistribute.cut(whole, held) / terms, shape, held, needed)
            torch.testing.assert_close(found, redistribute.cut(whole, needed), rtol=1e-14, atol=0)


def perceptron(mesh: tuple[Axis, ...]) -> PartitionProblem:
    g = Graph(8, hardware("p100"))
    x = g.tensor("x", (8, 16), "input")
    h = g.elementwise("relu", g.product("first", "nk,km->nm", x, g.parameter("a", (16, 32))))
    out = g.product("second", "nk,km->nm", h, g.parameter("b", (32, 4)))
    g.reached(out, g.tensor("given", (8, 4), "input"))
    g.backward()
    g.optimizer(0, 8)
    return g.problem("perceptron", "", mesh)


def _updated(given: Sequence[Tensor], shapes: object) -> None:
    given[0].sub_(RATE * given[1])


KERNELS: dict[str, Kernel] = {
    "first": lambda given, shapes: given[0] @ given[1],
    "second": lambda given, shapes: given[0] @ given[1],
    "relu": lambda given, shapes: given[0].relu(),
    "second, input gradient": lambda given, shapes: given[0] @ given[1].T,
    "second, weight gradient": lambda given, shapes: given[0].T @ given[1],
    "first, weight gradient": lambda given, shapes: given[0].T @ given[1],
    "relu, gradient": lambda given, shapes: given[0] * (given[1] > 0),
    "a, update": _updated,
    "b, update": _updated,
}


def random_plans_train_alike(sizes: tuple[int, ...], rank: int) -> None:
    """Whatever plan holds, parameters after a step are those of one device."""
    problem = perceptron(axes(*sizes, latency_us=1.0))
    mesh, choices = init_device_mesh("cpu", sizes), coarsened(problem)
    number = {tensor.name: n for n, tensor in enumerate(problem.tensors)}
    generator = torch.Generator().manual_seed(0)
    values = {
        n: torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        for n, tensor in enumerate(problem.tensors)
        if tensor.role in ("input", "parameter")
    }
    x, given = values[number["x"]], values[number["given"]]
    leaves = [values[number[name]].clone().requires_grad_() for name in "ab"]
    gradients = torch.autograd.grad((x @ leaves[0]).relu() @ leaves[1], leaves, given)
    rng = random.Random(1)
    for _ in range(PLANS):
        splits = choices.splits([rng.randrange(len(variable.states)) for variable in choices.variables])
        verdict = check(problem, splits, 1 << 60)
        assert verdict.ok
        step = SplitStep(problem, splits, [KERNELS[operator.op] for operator in problem.operators], mesh)
        after = {n: step.cut(n, value).clone() for n, value in values.items()}
        step.run(after)
        for name, leaf, gradient in zip("ab", leaves, gradients, strict=True):
            found = step.whole(number[name], after[number[name]])
            torch.testing.assert_close(found, leaf.detach() - RATE * gradient, rtol=1e-10, atol=1e-12)
