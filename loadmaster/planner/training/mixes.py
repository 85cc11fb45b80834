"""Mixes from counts: a program says how many layers of a run do what, and this says which."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loadmaster.models.training.formulation import Formulated
from loadmaster.models.training.runs import Runs
from loadmaster.models.training.ways import ways
from loadmaster.planner.training.baselines import Mix
from loadmaster.solvers.program import FloatArray

__all__ = ["mixes"]

# Parts of a count below this are a solver's last digits.
_CLOSE = 1e-6


def mixes(runs: Runs, formulated: Formulated, values: FloatArray) -> Iterator[Mix]:
    """Make mixes of the counts at a point of the program. Members of a run do different things in turn; or, for ways,
    host updates are those of its last layers, whose gradients come first and whose weights are needed last."""
    problem = runs.problem
    points = [0] * len(problem.layers)
    for run, counts in zip(runs.layers, formulated.points(values), strict=True):
        for layer, number in zip(run.layers, _in_turn(counts, len(run.layers)), strict=True):
            points[layer] = number
    for hosts_last in (False, True):
        chosen = [0] * len(problem.groups)
        for alike, of_ways in zip(runs.groups, formulated.ways(values), strict=True):
            numbers = _in_turn(of_ways, len(alike.groups))
            if hosts_last:
                of = ways(problem.groups[alike.groups[0]], has_disk=problem.disk is not None)
                numbers.sort(key=lambda n: of[n].update == "host")
            for g, number in zip(alike.groups, numbers, strict=True):
                chosen[g] = number
        yield Mix(tuple(points), tuple(chosen))


def _in_turn(counts: Sequence[float] | FloatArray, total: int) -> list[int]:
    """List numbers so that each stretch of them has each as often as its count says, as nearly as can be."""
    behind = [0.0] * len(counts)
    found = []
    for _ in range(total):
        for n, count in enumerate(counts):
            behind[n] += max(float(count), 0.0) / total
        n = max(range(len(behind)), key=lambda n: behind[n] if counts[n] > _CLOSE else -float(total))
        behind[n] -= 1.0
        found.append(n)
    return found
