"""Workers that are not alike: times and bytes of plans against counting them worker by worker, element by element."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.models.partition.checker import check
from loadmaster.models.partition.choices import coarsened
from loadmaster.models.partition.documents import read_problem, write_problem
from loadmaster.models.partition.limits import least_bytes, summary
from loadmaster.models.partition.placements import Mesh, code
from loadmaster.models.partition.plan import Splits
from loadmaster.models.partition.problem import Axis, PartitionProblem
from loadmaster.models.partition.sides import lives, sides
from tests.models.partition.instances import axes, every_plan, random_problem, two_products, unequal
from tests.models.partition.test_traffic import held_by

PLENTY = 1 << 40
Place = tuple[int, ...]
MESHES = ((2,), ((2, 1),), ((3, 1),), ((1, 1, 2),), ((3, 1), 2), ((2, 4),))


def places(problem: PartitionProblem) -> list[Place]:
    return [*itertools.product(*(range(axis.size) for axis in problem.axes))]


def of_place(axis: Axis, name: str, at: int) -> float:
    given: tuple[float, ...] = getattr(axis, name)
    return given[at] if given else 1.0


def compute_us(problem: PartitionProblem, splits: Splits) -> float:
    """Operators one after the other, each until its last worker has done its share."""
    found = 0.0
    for operator, chosen in zip(problem.operators, splits.strategies, strict=True):
        strategies = [problem.strategies(operator)[s] for s in chosen]
        ends = []
        for place in places(problem):
            share = speed = 1.0
            for axis, at, strategy in zip(problem.axes, place, strategies, strict=True):
                speed *= of_place(axis, "speeds", at)
                if strategy.divides:
                    weights = axis.weights or (1,) * axis.size
                    share *= weights[at] / sum(weights)
            ends.append(operator.launch_us + share / speed * (operator.time_us - operator.launch_us))
        found += max(ends)
    return found


def needed_bytes(problem: PartitionProblem, splits: Splits) -> list[int]:
    """For each operator the least budget of which every worker's part is enough."""
    placements = [tuple(map(code, parts)) for parts in splits.placements]
    needed = [0] * len(problem.operators)
    for place in places(problem):
        part = math.prod(of_place(axis, "memory_factors", at) for axis, at in zip(problem.axes, place, strict=True))
        held = [
            len(held_by(t.shape, p, problem.axes, place)) * t.element_bytes
            for t, p in zip(problem.tensors, placements, strict=True)
        ]
        for copy, original in problem.copied.items():
            held[copy] = 0 if placements[copy] == placements[original] else held[copy]
        for n, (operator, chosen) in enumerate(zip(problem.operators, splits.strategies, strict=True)):
            total = sum(size for size, (first, last) in zip(held, lives(problem), strict=True) if first <= n <= last)
            for side in sides(operator, [problem.strategies(operator)[s] for s in chosen]):
                of = problem.tensors[side.tensor]
                if operator.op == "copy" or (side.placement == placements[side.tensor] and not side.halos):
                    continue
                elements = held_by(of.shape, side.placement, problem.axes, place)
                total += len(elements) * of.element_bytes
                for d, before, after in side.halos:
                    rows = len({element[d] for element in elements})
                    if rows < of.shape[d]:
                        total += len(elements) // rows * (before + after) * of.element_bytes
            needed[n] = max(needed[n], math.ceil(total / part))
    return needed


@given(st.integers(0, 10**6), st.sampled_from(MESHES))
def test_plans_take_what_their_workers_take(seed: int, mesh: tuple[int | tuple[int, ...], ...]) -> None:
    problem = unequal(random_problem(seed, mesh=mesh, operators=4, copies=seed % 2 == 1), seed)
    choices, rng = coarsened(problem), random.Random(seed)
    splits = choices.splits([rng.randrange(len(variable.states)) for variable in choices.variables])
    verdict = check(problem, splits, PLENTY)
    if not verdict.ok:
        assert all("as terms of a sum" in words for words in verdict.violations)
        return
    assert verdict.compute_us == pytest.approx(compute_us(problem, splits))
    assert verdict.resident_bytes.tolist() == needed_bytes(problem, splits)
    assert verdict.peak_bytes >= least_bytes(problem)
    assert check(problem, splits, verdict.peak_bytes).ok
    assert not check(problem, splits, verdict.peak_bytes - 1).ok


def test_no_plan_takes_less_than_the_least() -> None:
    problem = unequal(random_problem(2, mesh=((3, 1),), operators=2), 1)
    verdicts = (check(problem, splits, PLENTY) for splits in every_plan(problem))
    assert least_bytes(problem) <= min(verdict.peak_bytes for verdict in verdicts if verdict.ok)


def test_a_place_with_twice_the_weight_holds_twice_as_much_and_works_twice_as_long() -> None:
    problem = replace(two_products(2), axes=axes((3, 1)))
    splits = Splits((("S0",), ("R",), ("S0",), ("S0",), ("R",), ("S0",)), ((0,), (0,), (0,)))
    verdict = check(problem, splits, PLENTY)
    assert verdict.ok and verdict.compute_us == 17 * 3 / 4
    # Both matrices; three rows, or one, of x and of two that live at once.
    assert {worker.shares: held for worker, held in verdict.held_bytes.items()} == {
        (3,): 2 * 64 * 64 * 4 + 3 * 3 * 64 * 4,
        (1,): 2 * 64 * 64 * 4 + 3 * 1 * 64 * 4,
    }
    fast = replace(problem, axes=(replace(problem.axes[0], speeds=(3.0, 1.0)),))
    assert check(fast, splits, PLENTY).compute_us == 17 / 4


def test_weights_with_a_common_divisor_are_as_without() -> None:
    (axis,) = axes((4, 2))
    assert (axis.shares, axis.units, axis.is_even) == ((2, 1), 3, False)
    (axis,) = axes((5, 5))
    assert (axis.shares, axis.units, axis.is_even) == ((1, 1), 2, True)


@given(st.integers(0, 10**6))
def test_who_is_fullest_needs_the_largest_budget(seed: int) -> None:
    problem = unequal(random_problem(seed, mesh=((3, 1, 2), (1, 2))), seed)
    mesh = Mesh(problem.axes)
    rng = random.Random(seed)
    shape, placement = (18, 18), tuple(rng.choice((0, 1, -1)) for _ in range(2))

    def needs(worker: object) -> float:
        return worker.held_elements(shape, placement) / worker.memory_factor  # type: ignore[attr-defined,no-any-return]

    assert max(map(needs, mesh.fullest)) == max(needs(mesh.worker(place)) for place in mesh.places.tolist())


def test_equal_workers_are_written_as_ever() -> None:
    problem = two_products(2, 2)
    assert write_problem(problem)["axes"][1] == {"name": "axis 1", "size": 2, "gbps": 0.5}
    written = write_problem(unequal(replace(problem, axes=axes((3, 1), 2)), 0))
    assert set(written["axes"][0]) == {"name", "size", "gbps", "weights", "speeds", "memory_factors"}
    assert read_problem(written).sha256 != problem.sha256


def test_a_summary_says_who_is_unequal() -> None:
    problem = replace(two_products(2), axes=(Axis("gpus", 2, 1.0, 0.0, (2, 1), (2.0, 1.0), (1.0, 0.5)),))
    said = [words for name, words in summary(problem).rows if name == "mesh"]
    assert said == ["gpus: 2 GPUs, 1 GB/s each, speeds 2:1, shares 2:1, memory 1:0.5"]


def test_what_unequal_workers_gather_is_not_hidden() -> None:
    """They begin no collective early, so that kernels hide nothing of a parameter's."""

    def transfer_us(mesh: tuple[Axis, ...], overlap: float) -> float:
        sharded = Splits((("S0",), ("S0",), ("S0",), ("S0",), ("S0",), ("S0",)), ((0,), (0,), (0,)))
        verdict = check(replace(two_products(2), axes=mesh, overlap=overlap), sharded, PLENTY)
        assert verdict.ok and verdict.transfer_us
        return verdict.transfer_us

    assert transfer_us(axes(2), 0.5) == transfer_us(axes(2), 0.0) / 2
    assert transfer_us(axes((3, 1)), 0.5) == transfer_us(axes((3, 1)), 0.0)
