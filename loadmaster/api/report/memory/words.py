"""A memory plan in a few lines of text: the answer, its proof, and where the memory peak is."""

from __future__ import annotations

from loadmaster.api.columns import table
from loadmaster.api.report.memory.view import FATES, MEANING, MemoryView
from loadmaster.api.report.words import (
    check_row,
    fits,
    measured_words,
    none_fits,
    peak_row,
    proof,
    step_row,
    under_budget,
)
from loadmaster.models.memory.checker import MemoryCheck
from loadmaster.models.memory.plan import MemoryInfeasibility, MemoryPlan
from loadmaster.models.units import show_at_least, show_bytes, show_cost, show_share

_LARGEST_TENSORS = 10


def summary(plan: MemoryPlan) -> str:
    """The lines that ``plan`` and ``show`` print."""
    return under_budget(plan, _infeasible_rows, _rows)


def verdict(plan: MemoryPlan, check: MemoryCheck) -> str:
    """The checker's findings in one line: the peak and the step."""
    return f"peak {fits(plan, check.peak_bytes)} at {check.peak_at}, step {show_cost(check.objective, plan.unit)}"


def infeasible(plan: MemoryPlan) -> str:
    """Explain why there is no plan, and how much more budget it takes."""
    return none_fits(plan, _why)


def _why(found: MemoryInfeasibility) -> str:
    blockers = ", ".join(f"{b.tensor} {show_bytes(b.size_bytes)}" for b in found.blockers[:3])
    return (
        f"it needs {show_bytes(found.short_bytes)} more, at least {found.minimum_budget_bytes} bytes "
        f"(proved){_planned(found)}. The largest blockers at {found.where} are {blockers}."
    )


def _planned(found: MemoryInfeasibility) -> str:
    planned = found.planned_budget_bytes
    return "" if planned is None else f"; {planned} bytes ({show_bytes(planned)}) have a plan"


def _rows(plan: MemoryPlan) -> list[tuple[str, str]]:
    return [step_row(plan, plan.unconstrained), ("proof", _proof(plan)), *_check_rows(plan)]


def _proof(plan: MemoryPlan) -> str:
    text = proof(plan)
    if plan.bound is None or plan.overhead_gap is None:
        return text
    return f"{text} of the step; {show_share(plan.overhead_gap)} of the overhead is not proved"


def _check_rows(plan: MemoryPlan) -> list[tuple[str, str]]:
    check, rows = plan.check, peak_row(plan, "an unnamed operator")
    if not rows:
        return []
    parts = [("recompute_us", "recomputing"), ("stall_us", "waiting for copies"), ("cut_us", "cutting the graph")]
    spent = [f"{show_cost(check[key], 'us')} {what}" for key, what in parts if check.get(key)]
    if check.get("offloaded_bytes"):
        spent.append(f"{show_bytes(check['offloaded_bytes'])} offloaded")
    if spent:
        rows.append(("price", ", ".join(spent)))
    return [*rows, check_row(plan)]


def _infeasible_rows(found: MemoryInfeasibility) -> list[tuple[str, str]]:
    rows = [
        ("minimum", f"{show_at_least(found.minimum_budget_bytes)} ({found.minimum_budget_bytes} bytes), proved"),
        ("short", f"{show_bytes(found.short_bytes)} more are needed"),
        ("where", found.where),
    ]
    if found.planned_budget_bytes is not None:
        planned = found.planned_budget_bytes
        rows.insert(1, ("planned", f"{show_at_least(planned)} ({planned} bytes) has a plan"))
    rows += [("blocker", f"{b.words}: {show_bytes(b.size_bytes)}") for b in found.blockers]
    return rows


def details(view: MemoryView) -> str:
    """Lines on what was measured, where that is known, and on the results: their bytes by fate, and the largest."""
    totals = view.bytes_by_fate()
    found, check = view.measured, view.check
    words = None if found is None else measured_words(found, check.peak_bytes, check.time_us)
    lines = [] if found is None else ["", f"{words}, on {found.device}"]
    lines += ["", "results"]
    lines += [f"  {fate:<10}  {show_bytes(totals[fate]):>9}  {MEANING[fate]}" for fate in FATES if totals[fate]]
    rows = [
        [
            str(t.forward),
            t.made_by,
            show_bytes(t.size_bytes),
            t.fate,
            show_cost(t.recompute_us, "us") if t.recompute_us else "",
        ]
        for t in view.largest(_LARGEST_TENSORS)
    ]
    lines += ["", table(rows, ["id", "made by", "size", "fate", "recompute"])]
    if filling := view.filling():
        parts = [[name, show_bytes(size), show_share(size / view.check.peak_bytes)] for name, size in filling]
        lines += ["", table(parts, ["what fills the peak", "size", "of the peak"])]
    return "\n".join(lines)
