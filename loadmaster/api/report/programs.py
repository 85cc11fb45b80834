"""The program behind a plan as an MPS file, for other solvers, with a head that says what it is."""

from __future__ import annotations

import io

from loadmaster.models.envelope import Plan
from loadmaster.solvers.mps import write_mps
from loadmaster.solvers.program import Program

__all__ = ["mps_file"]


def mps_file(program: Program, plan: Plan, words: str) -> bytes:
    """Write a program as an MPS file with its head, whose ``words`` say what the program's points are."""
    file = io.StringIO()
    # Names come from documents: one with a line break in it would end the comment.
    file.write(f"* {plan.name!a}: {words}\n")
    file.write(f"* The objective is in {plan.unit}. It has a constant: add {program.offset!r} to what a solver says.\n")
    write_mps(program, file)
    return file.getvalue().encode()
