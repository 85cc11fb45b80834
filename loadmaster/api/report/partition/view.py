"""A partition plan joined with its problem: how each sort of tensor is split, and what moves in each layer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from loadmaster.api.report.words import expect_held
from loadmaster.models.partition.checker import PartitionCheck, check_plan
from loadmaster.models.partition.placements import Mesh, Worker, code
from loadmaster.models.partition.plan import PartitionPlan, Redistribution, Splits
from loadmaster.models.partition.problem import PartitionProblem, Role


@dataclass(frozen=True)
class TiedTensorsRow:
    """Tensors of one tie and shape: their count, the ``parts`` on each axis, and the bytes of one of them on the worker
    with the largest share."""

    name: str
    count: int
    role: Role
    shape: tuple[int, ...]
    parts: tuple[str, ...]
    worker_bytes: int


@dataclass(frozen=True)
class Workers:
    """GPUs that hold the same: their count, the most bytes that one holds, and the most that it may hold."""

    worker: Worker
    count: int
    held_bytes: int
    limit_bytes: int


@dataclass(frozen=True)
class Layer:
    """Data moved for the operators of one tie, or of one module; ``count`` of these operators."""

    name: str
    count: int
    received_bytes: int
    time_us: float
    redistributions: int


@dataclass(frozen=True)
class PartitionView:
    """A plan and its check, ready to draw: ``rows`` with the largest on a worker first, ``workers`` empty where all
    hold the same, ``layers`` in the order of the step."""

    problem: PartitionProblem
    plan: PartitionPlan
    splits: Splits
    check: PartitionCheck
    rows: tuple[TiedTensorsRow, ...]
    workers: tuple[Workers, ...]
    layers: tuple[Layer, ...]


def view(problem: PartitionProblem, plan: PartitionPlan) -> PartitionView:
    """Check a plan and sum it up. Raises InputError if the plan is of another problem, splits nothing, or does not pass
    the checker."""
    verdict = check_plan(problem, plan)
    expect_held(plan, verdict)
    assert plan.splits is not None
    rows = tuple(_rows(problem, plan.splits))
    layers = tuple(_layers(problem, verdict.redistributions))
    return PartitionView(problem, plan, plan.splits, verdict, rows, tuple(_workers(problem, plan, verdict)), layers)


def _rows(problem: PartitionProblem, splits: Splits) -> list[TiedTensorsRow]:
    worker = Mesh(problem.axes).largest
    alike: dict[object, list[int]] = defaultdict(list)
    for n, tensor in enumerate(problem.tensors):
        alike[tensor.tie or n, tensor.shape, tensor.role].append(n)
    found = []
    for members in alike.values():
        of, parts = problem.tensors[members[0]], splits.placements[members[0]]
        held = worker.held_elements(of.shape, tuple(map(code, parts))) * of.element_bytes
        found.append(TiedTensorsRow(of.tie or of.name, len(members), of.role, of.shape, parts, held))
    return sorted(found, key=lambda row: -row.worker_bytes * row.count)


def _workers(problem: PartitionProblem, plan: PartitionPlan, verdict: PartitionCheck) -> list[Workers]:
    mesh = Mesh(problem.axes)
    counts = Counter(mesh.worker(place) for place in mesh.places.tolist())
    found = [
        Workers(worker, counts[worker], held, int(worker.memory_factor * plan.budget_bytes))
        for worker, held in verdict.held_bytes.items()
    ]
    return found if len(found) > 1 else []


def _layers(problem: PartitionProblem, redistributions: Sequence[Redistribution]) -> list[Layer]:
    names = [operator.tie or operator.module or operator.op for operator in problem.operators]
    counts = Counter(names)
    by_layer: dict[str, list[Redistribution]] = {name: [] for name in names}
    for one in redistributions:
        by_layer[names[one.operator]].append(one)
    return [
        Layer(name, counts[name], sum(r.received_bytes for r in of), sum(r.time_us for r in of), len(of))
        for name, of in by_layer.items()
        if of
    ]
