"""A graph plan in a few lines of text: the step, its proof, the order, the program and its kernels."""

from __future__ import annotations

from loadmaster.api.columns import table
from loadmaster.api.report.graph.view import GraphView
from loadmaster.api.report.words import check_row, fits, none_fits, peak_row, proof, under_budget
from loadmaster.models.graph.checker import GraphCheck
from loadmaster.models.graph.plan import GraphInfeasibility, GraphPlan
from loadmaster.models.units import show_at_least, show_bytes, show_cost, show_share


def summary(plan: GraphPlan) -> str:
    """The lines that ``plan`` and ``show`` print."""
    return under_budget(plan, _infeasible_rows, _rows)


def infeasible(plan: GraphPlan) -> str:
    """Explain why there is no plan, and how much more budget it takes."""
    return none_fits(plan, _why)


def _why(found: GraphInfeasibility) -> str:
    return (
        f"{show_bytes(found.short_bytes)} more are enough, {found.minimum_budget_bytes} bytes "
        f"({found.where}; most of it for {', '.join(found.largest)})."
    )


def verdict(plan: GraphPlan, check: GraphCheck) -> str:
    """The checker's findings in one line: the peak, the kernels and their time."""
    ran = f"{len(check.kernels)} kernels take {show_cost(check.kernels_us, 'us')}"
    return f"peak {fits(plan, check.peak_bytes)} at {check.peak_at}, {ran}"


def details(view: GraphView) -> str:
    """The program, value by value; the kernels, one by one."""
    return "\n".join(["", table(value_rows(view), VALUE_HEADER), "", table(kernel_rows(view), KERNEL_HEADER)])


VALUE_HEADER = ["value", "is", "rows", "shape", "", "kernel", "bytes"]


def value_rows(view: GraphView) -> list[list[str]]:
    """Rows of the table of values, one for each value of the program."""
    return [
        [
            row.name,
            row.text,
            row.space,
            " x ".join(map(str, row.shape)) or "number",
            row.where,
            "" if row.kernel is None else str(row.kernel),
            show_bytes(row.size_bytes) if row.size_bytes else "",
        ]
        for row in view.values
    ]


KERNEL_HEADER = ["kernel", "", "tile rows", "time", "share", "memory traffic"]


def kernel_rows(view: GraphView) -> list[list[str]]:
    """Rows of the table of kernels, in the order in which they run."""
    whole = view.check.kernels_us or 1.0
    return [
        [
            str(row.number),
            row.words,
            str(row.kernel.tile.rows),
            show_cost(row.cost.time_us, "us"),
            show_share(row.cost.time_us / whole),
            show_bytes(int(row.cost.dram_bytes)),
        ]
        for row in view.kernels
    ]


def choices_words(plan: GraphPlan) -> str:
    """Describe the order: which form each choice takes."""
    return ", ".join(f"{name} {form}" for name, form in plan.choices.items()) or "nothing to choose"


def _rows(plan: GraphPlan) -> list[tuple[str, str]]:
    assert plan.objective is not None and plan.schedule is not None
    rows = [
        ("step", f"{show_cost(plan.objective, plan.unit)} in {len(plan.schedule.kernels)} kernels"),
        ("proof", proof(plan)),
        ("order", choices_words(plan)),
        *peak_row(plan, "an unnamed kernel"),
    ]
    check = plan.check
    if plan.hot_rows or check.get("gather_us"):
        link = show_cost(check.get("gather_us", 0.0), "us")
        rows.append(("features", f"{plan.hot_rows} hottest rows on the GPU, {link} for the others"))
    return [*rows, check_row(plan)]


def _infeasible_rows(found: GraphInfeasibility) -> list[tuple[str, str]]:
    return [
        ("works", f"{show_at_least(found.minimum_budget_bytes)} ({found.minimum_budget_bytes} bytes)"),
        ("short", f"{show_bytes(found.short_bytes)} more are enough"),
        ("where", found.where),
        ("largest", ", ".join(found.largest)),
    ]
