"""The program of a graph plan's problem: an order, the kernels that store all it needs, and hot rows next to them."""

from __future__ import annotations

from dataclasses import replace

from loadmaster.api.report.graph.view import GraphView
from loadmaster.api.report.programs import mps_file
from loadmaster.errors import InputError
from loadmaster.models.graph.candidates import MOST, candidates
from loadmaster.models.graph.costs import Costs
from loadmaster.models.graph.formulation import formulate
from loadmaster.models.graph.hot_rows import gather_us
from loadmaster.models.graph.orders import orders

__all__ = ["mps"]


def mps(seen: GraphView) -> bytes:
    """The program of all orders under the plan's budget, as far as its rows count memory. Raises InputError if it would
    be too large."""
    problem, budget_bytes = seen.problem, seen.plan.budget_bytes
    of = []
    for order in orders(problem.program):
        costs = Costs(problem.step(order.program), problem.statistics, problem.element_bytes, problem.hardware)
        of.append(candidates(costs, by_time_alone=False))
        if not of[-1].are_all:
            found = f"more than {MOST} kernels in one order"
            raise InputError("mps", found, "are too many for one file", "Export a smaller problem.")
    formulated = formulate(problem, of, budget_bytes, scale=1.0)
    # All features over the link, which the program's hot rows save from.
    program = replace(formulated.program, offset=formulated.program.offset + gather_us(problem, 0))
    words = f"an order and its kernels within {budget_bytes} bytes; in sequence they may take more: a bound on plans"
    return mps_file(program, seen.plan, words)
