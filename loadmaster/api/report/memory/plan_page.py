"""A memory plan as one HTML file: memory over time under the budget line, and what became of every result."""

from __future__ import annotations

from loadmaster.api.report.memory.pictures import fates, filling, over_time, residency
from loadmaster.api.report.memory.view import MemoryView
from loadmaster.api.report.page import facts, html_table, page, shown
from loadmaster.api.report.words import counted, measured_facts, over, plan_facts
from loadmaster.models.units import show_bytes, show_cost

_LARGEST = 15


def plan_page(view: MemoryView) -> str:
    """The report of a feasible plan."""
    lead = f"{view.problem.title or view.problem.name}, under {show_bytes(view.plan.budget_bytes)}"
    return page(view.plan.name, lead, sections(view))


def sections(view: MemoryView) -> list[str]:
    """The sections of the report as HTML, for other pages too."""
    return [
        _facts(view),
        shown(over_time(view)),
        *map(shown, filling(view)),
        shown(fates(view)),
        shown(residency(view)),
        "<h2>The largest results</h2>",
        _largest(view),
    ]


def _facts(view: MemoryView) -> str:
    plan, check = view.plan, view.check
    # What a plan does not do gets no tile.
    price = []
    if check.recomputed:
        price.append(
            ("recomputing", show_cost(check.recompute_us, "us"), f"{counted(check.recomputed, 'operator')} again")
        )
    if check.offloaded_bytes:
        offloaded = f"{show_bytes(check.offloaded_bytes)} offloaded"
        price.append(("waiting for copies", show_cost(check.stall_us, "us"), offloaded))
    if check.cut_us:
        price.append(("cutting the graph", show_cost(check.cut_us, "us"), "where copies are waited for"))
    price += measured_facts(view.measured, check.peak_bytes, check.time_us)
    return facts(plan_facts(view, ("step", f"{over(plan, plan.unconstrained)} unlimited memory"), price))


def _largest(view: MemoryView) -> str:
    rows = [
        [
            str(t.forward),
            t.made_by,
            show_bytes(t.size_bytes),
            t.fate,
            str(t.times_computed),
            show_cost(t.recompute_us, "us") if t.recompute_us else "",
        ]
        for t in view.largest(_LARGEST)
    ]
    header = ["id", "made by", "size", "fate", "computed", "time to recompute"]
    return html_table(header, rows, numbers=(0, 2, 4, 5))
