"""Residence of values in the GPU's memory while the kernels of a schedule run.

In memory for the whole step: features, weights, the graph's own index arrays, hot feature rows of a store. From the
kernel that stores it to the last that reads it: every value that is kept; to the end, if it is a result. The gradients
of the outputs come with the backward pass and stay.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.models.graph.inline import Inline, base
from loadmaster.models.graph.operators import GIVEN
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.reading import INDEX_BYTES
from loadmaster.models.graph.schedule import Schedule
from loadmaster.solvers.program import IntArray


def value_bytes(problem: GraphProblem, program: Program, n: int) -> int:
    """Bytes of a value that is kept or given."""
    typed = program.types[n]
    return problem.statistics.rows(typed.space) * typed.numbers * problem.element_bytes


def graph_bytes(problem: GraphProblem) -> int:
    """Bytes of the graph's index arrays. Of edges: both ends, relation, both pairs, and two orders by node and two by
    pair; of pairs: node, relation, and the order by node; of nodes: type, and offsets of its edges and pairs."""
    rows = problem.statistics.rows
    edges, pairs = rows("edge"), rows("source_pair") + rows("target_pair")
    return INDEX_BYTES * (9 * edges + 4 * pairs + 5 * rows("node"))


def lasting_bytes(problem: GraphProblem, program: Program) -> int:
    """Bytes in memory for the whole step, without hot rows."""
    given = [n for n, value in enumerate(program.values) if value.op in GIVEN and value.op != "gradient"]
    return graph_bytes(problem) + sum(value_bytes(problem, program, n) for n in given)


def lives(program: Program, schedule: Schedule) -> dict[int, tuple[int, int]]:
    """Lifetimes of kept values and given gradients: the first and the last kernel that finds each in memory."""
    last = len(schedule.kernels) - 1
    made = schedule.kept
    found = {n: (at, at) for n, at in made.items()}
    for n, value in enumerate(program.values):
        if value.op == "gradient":
            found[n] = (schedule.forward_count, last)
    needs = Inline(program, frozenset(made))
    for n, at in made.items():
        for r in needs.to_make(n).reads:
            if r in found:
                found[r] = (found[r][0], max(found[r][1], at))
    for n in program.results:
        if (whole := base(program, n)) in found:
            found[whole] = (found[whole][0], last)
    return found


def over_time(problem: GraphProblem, program: Program, schedule: Schedule) -> IntArray:
    """Bytes in memory while each kernel runs, without hot rows [kernels]."""
    changes = np.zeros(len(schedule.kernels) + 1, dtype=np.int64)
    for n, (first, last) in lives(program, schedule).items():
        if first < len(schedule.kernels):
            changes[first] += value_bytes(problem, program, n)
            changes[last + 1] -= value_bytes(problem, program, n)
    return lasting_bytes(problem, program) + changes.cumsum()[:-1]


def peak_bytes(problem: GraphProblem, program: Program, schedule: Schedule) -> int:
    """Highest bytes in memory over all kernels, without hot rows."""
    return int(over_time(problem, program, schedule).max())


def largest_at(problem: GraphProblem, program: Program, schedule: Schedule, at: int, count: int) -> Sequence[str]:
    """Names of the largest values in memory while a kernel runs, features and weights included."""
    there = [n for n, (first, last) in lives(program, schedule).items() if first <= at <= last]
    there += [n for n, value in enumerate(program.values) if value.op in ("feature", "parameter")]
    there.sort(key=lambda n: -value_bytes(problem, program, n))
    return [program.values[n].name for n in there[:count]]
