"""A graph plan in a few lines of text: the step, its proof, the order, the program and its kernels."""

from __future__ import annotations

from loadmaster.api.columns import table
from loadmaster.api.report.graph.view import View
from loadmaster.api.report.words import how, in_rows, proof
from loadmaster.models.graph.checker import Check
from loadmaster.models.graph.plan import GraphPlan
from loadmaster.models.units import show_at_least, show_bytes, show_cost, show_share


def summary(plan: GraphPlan) -> str:
    """The lines that ``plan`` and ``show`` print."""
    rows = _infeasible_rows(plan) if plan.status == "infeasible" else _rows(plan)
    return in_rows(f"{plan.name} under {show_bytes(plan.budget_bytes)}: {plan.standing}", rows)


def infeasible(plan: GraphPlan) -> str:
    """Explain why there is no plan, and how much more budget it takes."""
    found = plan.infeasibility
    if found is None:
        return f"no plan fits {show_bytes(plan.budget_bytes)}"
    return (
        f"no plan fits {show_bytes(plan.budget_bytes)}: {show_bytes(found.short_bytes)} more are enough, "
        f"{found.minimum_budget_bytes} bytes ({found.where}; most of it for {', '.join(found.largest)})."
    )


def verdict(plan: GraphPlan, check: Check) -> str:
    """The checker's findings in one line: the peak, the kernels and their time."""
    fit = f"{show_bytes(check.peak_bytes)} of {show_bytes(plan.budget_bytes)}"
    return f"peak {fit} at {check.peak_at}, {len(check.kernels)} kernels take {show_cost(check.kernels_us, 'us')}"


def details(view: View) -> str:
    """The program, value by value; the kernels, one by one."""
    return "\n".join(["", table(value_rows(view), VALUE_HEADER), "", table(kernel_rows(view), KERNEL_HEADER)])


VALUE_HEADER = ["value", "is", "rows", "shape", "", "kernel", "bytes"]


def value_rows(view: View) -> list[list[str]]:
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


def kernel_rows(view: View) -> list[list[str]]:
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
    ]
    check = plan.check
    if "peak_bytes" in check:
        share = f" ({show_share(check['peak_bytes'] / plan.budget_bytes)} of the budget)" if plan.budget_bytes else ""
        rows.append(
            ("peak", f"{show_bytes(check['peak_bytes'])}{share} at {check.get('peak_at', 'an unnamed kernel')}")
        )
    if plan.hot_rows or check.get("gather_us"):
        link = show_cost(check.get("gather_us", 0.0), "us")
        rows.append(("features", f"{plan.hot_rows} hottest rows on the GPU, {link} for the others"))
    rows.append(("check", "passed" if check.get("ok") else "FAILED"))
    return rows + how(plan)


def _infeasible_rows(plan: GraphPlan) -> list[tuple[str, str]]:
    found = plan.infeasibility
    if found is None:
        return [("why", "no plan exists within this budget")]
    return [
        ("works", f"{show_at_least(found.minimum_budget_bytes)} ({found.minimum_budget_bytes} bytes)"),
        ("short", f"{show_bytes(found.short_bytes)} more are enough"),
        ("where", found.where),
        ("largest", ", ".join(found.largest)),
    ]
