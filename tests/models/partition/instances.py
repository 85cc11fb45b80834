"""Small steps to split: matrix products, a sum, elementwise operators; by hand and at random."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

from loadmaster.models.partition.checker import check
from loadmaster.models.partition.copies import with_copies
from loadmaster.models.partition.placements import part_of, possible
from loadmaster.models.partition.plan import Splits
from loadmaster.models.partition.problem import (
    Axis,
    Need,
    Operator,
    PartitionProblem,
    Signature,
    Strategy,
    Tensor,
)

PRODUCT = Signature(
    "product",
    (
        Strategy("m", (Need("S0"), Need("R")), ("S0",)),
        Strategy("n", (Need("R"), Need("S1")), ("S1",)),
        Strategy("k", (Need("S1"), Need("S0")), ("P",)),
    ),
)
ELEMENTWISE = Signature(
    "elementwise", (Strategy("0", (Need("S0"),), ("S0",)), Strategy("1", (Need("S1"),), ("S1",))), elementwise=True
)
SMOOTH = Signature("smooth", (Strategy("0", (Need("S0", 1, 1),), ("S0",)), Strategy("1", (Need("S1"),), ("S1",))))
SIGNATURES = (PRODUCT, ELEMENTWISE, SMOOTH)


def axes(*sizes: int | tuple[int, ...], gbps: float = 1.0, latency_us: float = 0.0) -> tuple[Axis, ...]:
    """Of so many equal workers each, or of workers with such weights."""
    found = []
    for n, of in enumerate(sizes):
        size, weights = (of, ()) if isinstance(of, int) else (len(of), of)
        found.append(Axis(f"axis {n}", size, gbps / (n + 1), latency_us, weights))
    return tuple(found)


def two_products(*sizes: int, **options: object) -> PartitionProblem:
    """y = relu(x a) b, with few rows and wide matrices."""
    tensors = (
        Tensor("x", (4, 64), role="input"),
        Tensor("a", (64, 64), role="parameter"),
        Tensor("h", (4, 64)),
        Tensor("r", (4, 64)),
        Tensor("b", (64, 64), role="parameter"),
        Tensor("y", (4, 64)),
    )
    operators = (
        Operator("mm", 0, (0, 1), (2,), 8.0),
        Operator("relu", 1, (2,), (3,), 1.0),
        Operator("mm", 0, (3, 4), (5,), 8.0),
    )
    return PartitionProblem("two-products", axes(*sizes), tensors, operators, SIGNATURES, **options)  # type: ignore[arg-type]


def random_problem(
    seed: int, *, mesh: tuple[int | tuple[int, ...], ...] = (2,), operators: int = 3, copies: bool = False
) -> PartitionProblem:
    """A chain with branches, of random sorts and shapes that fit; with copies of what several operators read."""
    rng = random.Random(seed)
    extents = (2, 4, 6, 8)
    tensors = [Tensor("t0", (rng.choice(extents), rng.choice(extents)), 2, "input")]
    steps: list[Operator] = []
    for n in range(operators):
        source = rng.randrange(len(tensors))
        rows, columns = tensors[source].shape
        sort = rng.randrange(3)
        inputs: tuple[int, ...] = (source,)
        shape = (rows, columns)
        if sort == 0:
            shape = (rows, rng.choice(extents))
            tensors.append(Tensor(f"w{n}", (columns, shape[1]), 4, "parameter"))
            inputs = (source, len(tensors) - 1)
        tensors.append(Tensor(f"t{n + 1}", shape, 2))
        time_us = rng.choice((0.0, 3.0, 10.0))
        steps.append(Operator("op", sort, inputs, (len(tensors) - 1,), time_us, time_us / 4))
    found = PartitionProblem(
        "random",
        axes(*mesh, gbps=rng.choice((1e-3, 1e-1)), latency_us=rng.choice((0.0, 0.5))),
        tuple(tensors),
        tuple(steps),
        SIGNATURES,
        objective=rng.choice(("bytes", "time")),
        replicas=rng.random() < 0.5,
    )
    return with_copies(found, operators) if copies else found


def unequal(problem: PartitionProblem, seed: int) -> PartitionProblem:
    """With workers of other speeds and parts of the budget, at random."""
    rng = random.Random(seed)
    axes = []
    for axis in problem.axes:
        factors = [rng.choice((0.25, 0.5, 1.0)) for _ in range(axis.size)]
        factors[rng.randrange(axis.size)] = 1.0
        speeds = tuple(rng.choice((0.5, 1.0, 3.0)) for _ in range(axis.size))
        axes.append(replace(axis, speeds=speeds, memory_factors=tuple(factors)))
    return replace(problem, axes=tuple(axes))


def every_plan(problem: PartitionProblem) -> Iterator[Splits]:
    """All of them, those that do not hold too."""
    units = tuple(axis.units for axis in problem.axes)
    placements: list[list[tuple[str, ...]]] = [
        [tuple(map(part_of, p)) for p in possible(t.shape, units, replicas=True)] for t in problem.tensors
    ]
    strategies: list[list[tuple[int, ...]]] = [
        [*itertools.product(range(len(problem.strategies(operator))), repeat=len(units))]
        for operator in problem.operators
    ]
    for placed in itertools.product(*placements):
        for run in itertools.product(*strategies):
            yield Splits(placed, run)


def best_by_force(problem: PartitionProblem, budget_bytes: int) -> float | None:
    """The least objective of all plans that hold."""
    found = (check(problem, splits, budget_bytes) for splits in every_plan(problem))
    return min((verdict.objective for verdict in found if verdict.ok), default=None)
