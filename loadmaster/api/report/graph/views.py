"""Views of graph plans: their page, the picture of where the time goes, and the table of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from loadmaster.api.report.bars import labelled_bars
from loadmaster.api.report.csv_text import csv_bytes
from loadmaster.api.report.graph.view import GraphView, view
from loadmaster.api.report.graph.words import (
    KERNEL_HEADER,
    VALUE_HEADER,
    choices_words,
    details,
    infeasible,
    kernel_rows,
    summary,
    value_rows,
    verdict,
)
from loadmaster.api.report.page import facts, html_table, page, shown
from loadmaster.api.report.picture import Picture, png_bytes
from loadmaster.api.report.views import mps_file
from loadmaster.api.report.words import plan_facts
from loadmaster.errors import InputError
from loadmaster.models.graph.candidates import MOST, candidates
from loadmaster.models.graph.costs import Costs
from loadmaster.models.graph.formulation import formulate
from loadmaster.models.graph.hot_rows import gather_us
from loadmaster.models.graph.orders import orders
from loadmaster.models.units import show_bytes, show_cost

__all__ = [
    "csv",
    "details",
    "infeasible",
    "mps",
    "pictures",
    "plan_page",
    "png",
    "sections",
    "summary",
    "verdict",
    "view",
]

_MOST_KERNELS = 40


def plan_page(view: GraphView) -> str:
    """The report of a feasible plan."""
    problem = view.problem
    lead = (
        f"{problem.title or problem.name}: {problem.statistics.rows('node')} nodes, {problem.statistics.rows('edge')} "
        f"edges, {problem.statistics.rows('relation')} relations on {problem.hardware.name}"
    )
    return page(view.plan.name, lead, sections(view))


def sections(view: GraphView) -> list[str]:
    """The sections of the report as HTML, for other pages too."""
    return [
        _facts(view),
        *map(shown, pictures(view)),
        "<h2>The program</h2>",
        html_table(VALUE_HEADER, value_rows(view), numbers=(5, 6)),
        "<h2>The kernels</h2>",
        html_table(KERNEL_HEADER, kernel_rows(view), numbers=(2, 3, 4, 5)),
    ]


def _facts(view: GraphView) -> str:
    plan, check = view.plan, view.check
    return facts(
        plan_facts(
            view,
            ("step", f"{len(view.kernels)} kernels, planned"),
            [
                ("memory traffic", show_bytes(int(check.dram_bytes)), "between memory and cache"),
                ("order", str(len(plan.choices)), choices_words(plan)),
            ],
        )
    )


def pictures(view: GraphView) -> list[Picture]:
    """A bar for every kernel, in the order in which they run; and one for features that are on the host."""
    longest = sorted(view.kernels, key=lambda row: -row.cost.time_us)[:_MOST_KERNELS]
    drawn = {row.number for row in longest}
    rows = [
        (
            f"{row.number} {row.words}",
            row.cost.time_us,
            f"{show_cost(row.cost.time_us, 'us')}, {show_bytes(int(row.cost.dram_bytes))}",
        )
        for row in view.kernels
        if row.number in drawn
    ]
    if view.check.gather_us:
        rows.append(("features from the host", view.check.gather_us, show_cost(view.check.gather_us, "us")))
    caption = f"The forward pass is kernels 0 to {view.schedule.forward_count - 1}."
    if left_out := len(view.kernels) - len(longest):
        caption += f" {left_out} shorter ones are left out."
    return [Picture(labelled_bars(rows, "Time of each kernel"), heading="Where the time goes", caption=caption)]


def png(view: GraphView) -> bytes:
    """A PNG of the picture."""
    return png_bytes(view.plan.name, pictures(view))


def csv(seen: GraphView) -> bytes:
    """A row for every kernel: what it is, what it stores, its time, bytes and products."""
    return csv_bytes(["kernel", "template", "rows", "over", "stores", "time_us", "dram_bytes", "flops"], _rows(seen))


def _rows(seen: GraphView) -> Iterator[list[object]]:
    for row in seen.kernels:
        stores = " ".join(seen.program.values[n].name for n in row.kernel.stores)
        of = (row.number, row.kernel.template, row.kernel.rows, row.kernel.over or "", stores)
        yield [*of, f"{row.cost.time_us:.3f}", f"{row.cost.dram_bytes:.0f}", f"{row.cost.flops:.0f}"]


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
