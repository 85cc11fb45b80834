"""A graph plan as one HTML file."""

from __future__ import annotations

from loadmaster.api.report.graph.pictures import pictures
from loadmaster.api.report.graph.view import View
from loadmaster.api.report.graph.words import KERNEL_HEADER, VALUE_HEADER, choices_words, kernel_rows, value_rows
from loadmaster.api.report.page import facts, html_table, page, shown
from loadmaster.models.units import show_bytes, show_cost, show_share


def plan_page(view: View) -> str:
    """The report of a feasible plan."""
    problem = view.problem
    lead = (
        f"{problem.title or problem.name}: {problem.statistics.rows('node')} nodes, {problem.statistics.rows('edge')} "
        f"edges, {problem.statistics.rows('relation')} relations on {problem.hardware.name}"
    )
    return page(view.plan.name, lead, sections(view))


def sections(view: View) -> list[str]:
    """The sections of the report as HTML, for other pages too."""
    return [
        _facts(view),
        *map(shown, pictures(view)),
        "<h2>The program</h2>",
        html_table(VALUE_HEADER, value_rows(view), numbers=(5, 6)),
        "<h2>The kernels</h2>",
        html_table(KERNEL_HEADER, kernel_rows(view), numbers=(2, 3, 4, 5)),
    ]


def _facts(view: View) -> str:
    plan, check = view.plan, view.check
    assert plan.objective is not None
    bound = "no bound was computed" if plan.bound is None else f"no plan is below {show_cost(plan.bound, plan.unit)}"
    share = show_share(check.peak_bytes / plan.budget_bytes) if plan.budget_bytes else "all"
    return facts(
        [
            ("step", show_cost(plan.objective, plan.unit), f"{len(view.kernels)} kernels, planned"),
            ("proved gap", show_share(plan.gap), bound),
            ("peak", show_bytes(check.peak_bytes), f"{share} of the budget, at {check.peak_at}"),
            ("memory traffic", show_bytes(int(check.dram_bytes)), "between memory and cache"),
            ("order", str(len(plan.choices)), choices_words(plan)),
            ("checker", "passed", f"{plan.method}, stopped by {plan.stopped_by}"),
        ]
    )
