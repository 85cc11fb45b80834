"""All schedules of small programs, one by one, in all tiles: what the program of candidate kernels is held against."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from loadmaster.models.graph.costs import Costs
from loadmaster.models.graph.inline import Inline, Need, required
from loadmaster.models.graph.lowering import kernel_of, template_of
from loadmaster.models.graph.operators import GIVEN, OPERATORS
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Kernel, Schedule, Tile
from loadmaster.models.graph.schedule_rules import broken_rules
from loadmaster.models.graph.sequence import in_sequence


def schedules(problem: GraphProblem, step: Program) -> Iterator[Schedule]:
    """Every set of kept values, in every grouping into kernels, that holds."""
    must = required(step)
    others = [
        n
        for n, value in enumerate(step.values)
        if n not in must and value.op not in GIVEN and OPERATORS[value.op].sort != "view"
    ]
    for size in range(len(others) + 1):
        for some in itertools.combinations(others, size):
            for groups in _groupings(step, sorted(must | {*some})):
                found = in_sequence(problem, step, [kernel_of(step, group) for group in groups])
                if found is not None and not broken_rules(step, found.schedule):
                    yield found.schedule


def _groupings(step: Program, kept: list[int]) -> Iterator[list[tuple[int, ...]]]:
    if not kept:
        yield []
        return
    *before, last = kept
    for groups in _groupings(step, before):
        yield [*groups, (last,)]
        for at, group in enumerate(groups):
            if _could_share(step, group, last):
                yield [*groups[:at], (*group, last), *groups[at + 1 :]]


def _could_share(step: Program, group: tuple[int, ...], n: int) -> bool:
    """One pass, and templates that hold several values; the rules say the rest."""
    templates = {template_of(step, v) for v in (*group, n)}
    same_pass = (n < step.forward_count) == (group[0] < step.forward_count)
    return same_pass and templates in ({"map"}, {"traverse"}, {"map", "gemm"})


def time_us(problem: GraphProblem, step: Program, schedule: Schedule) -> float:
    """Of all kernels, each in the tiles of the device that are best for it."""
    costs = Costs(step, problem.statistics, problem.element_bytes, problem.hardware)
    needs = Inline(step, frozenset(schedule.kept))
    return sum(min(_kernel_us(costs, needs, kernel) for kernel in _tiled(problem, k)) for k in schedule.kernels)


def _tiled(problem: GraphProblem, kernel: Kernel) -> list[Kernel]:
    tiles = problem.hardware.tiles.of(kernel.template)
    return [replace(kernel, tile=Tile(*some)) for some in itertools.product(tiles.rows, tiles.columns[:1], tiles.warps)]


def _kernel_us(costs: Costs, needs: Inline, kernel: Kernel) -> float:
    need = Need()
    for n in kernel.stores:
        need |= needs.to_make(n)
    return costs.work(kernel, need).time_us(costs.hardware, costs.element_bytes)
