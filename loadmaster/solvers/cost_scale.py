"""Scaling of costs to about one thousand for solvers whose tolerances are absolute, and of answers back.

Solvers take a reduced cost or a gap below 1e-7 or 1e-6 for zero: where costs are 1e-6, all that they prove is false.
The factor is a power of two: nothing is rounded.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from loadmaster.solvers.driver import Link
from loadmaster.solvers.program import FloatArray, Program
from loadmaster.solvers.solution import Progress, Solution, SolveOptions

# Where the largest cost is between these, tolerances mean what they say.
_LEAST, _MOST = 1.0, float(1 << 20)
_AIM_EXPONENT = 10


def factor_of(program: Program, *, whole: bool) -> float:
    """Return the factor by which to multiply the costs of a program: 1 where they are fine.

    Args:
        whole: the solver works in whole numbers: large ones are fine, and are not divided.
    """
    largest = float(np.abs(program.cost).max(initial=0.0))
    if largest == 0.0 or _LEAST <= largest <= _MOST or (whole and largest > _MOST):
        return 1.0
    return math.ldexp(1.0, _AIM_EXPONENT - math.frexp(largest)[1])


def scaled(program: Program, options: SolveOptions, factor: float) -> tuple[Program, SolveOptions]:
    """The program and its cutoff in other units of cost."""
    cutoff = None if options.cutoff is None else options.cutoff * factor
    program = dataclasses.replace(program, cost=program.cost * factor, offset=program.offset * factor)
    return program, dataclasses.replace(options, cutoff=cutoff)


def unscaled(solution: Solution, factor: float) -> Solution:
    """Convert an answer back to the units of cost that it was asked in."""
    return dataclasses.replace(
        solution, objective=_over(solution.objective, factor), bound=_over(solution.bound, factor)
    )


class UnscaledLink:
    """The :class:`~loadmaster.solvers.driver.Link` of a scaled solve: its reports in the units that were asked in."""

    def __init__(self, link: Link, factor: float) -> None:
        self._link = link
        self._factor = factor

    def progress(self, progress: Progress) -> None:
        objective, bound = _over(progress.objective, self._factor), _over(progress.bound, self._factor)
        self._link.progress(dataclasses.replace(progress, objective=objective, bound=bound))

    def incumbent(self, objective: float, values: FloatArray) -> None:
        self._link.incumbent(objective / self._factor, values)

    def settled(self, solution: Solution) -> None:
        self._link.settled(unscaled(solution, self._factor))

    def stop_asked(self) -> bool:
        return self._link.stop_asked()


def _over(value: float | None, factor: float) -> float | None:
    return None if value is None else value / factor
