"""A placement plan as one HTML file."""

from __future__ import annotations

from loadmaster.api.report.page import facts, html_table, page, shown
from loadmaster.api.report.placement.pictures import pictures
from loadmaster.api.report.placement.view import View
from loadmaster.api.report.placement.words import WEAR, longest_waits, wear
from loadmaster.models.units import show_bytes, show_cost, show_share

_MOST_BLOCKS = 15
_MOST_WAITS = 10


def plan_page(view: View) -> str:
    """The report of a feasible plan."""
    lead = f"{view.problem.title or view.problem.name}, under {show_bytes(view.plan.budget_bytes)}"
    return page(view.plan.name, lead, sections(view))


def sections(view: View) -> list[str]:
    """The sections of the report as HTML, for other pages too."""
    found = [_facts(view), *map(shown, pictures(view))]
    if view.away:
        found += ["<h2>What moves most</h2>", _blocks(view)]
        found += ["<h2>What the tiers take</h2>", html_table(WEAR, wear(view), numbers=(1, 2))]
    if waits := longest_waits(view, _MOST_WAITS):
        found += ["<h2>The longest waits</h2>", html_table(["operator", "waits"], waits, numbers=(1,))]
    return found


def _facts(view: View) -> str:
    plan, check = view.plan, view.check
    assert plan.objective is not None
    over = plan.objective / plan.compute_us - 1 if plan.compute_us else 0.0
    bound = "no bound was computed" if plan.bound is None else f"no plan is below {show_cost(plan.bound, plan.unit)}"
    share = show_share(check.peak_bytes / plan.budget_bytes) if plan.budget_bytes else "all"
    # Of a plan that moves nothing there is nothing to say of copies.
    moves = [
        ("waiting for copies", show_cost(view.run.total_stall_us, "us"), "in every step"),
        ("stored", show_bytes(check.stored_bytes), f"{len(view.moves.stores)} copies to a tier"),
        ("loaded", show_bytes(check.loaded_bytes), f"{len(view.moves.absences)} copies from a tier"),
    ]
    return facts(
        [
            ("step", show_cost(plan.objective, plan.unit), f"{show_share(over)} over unlimited memory"),
            ("proved gap", show_share(plan.gap), bound),
            ("peak", show_bytes(check.peak_bytes), f"{share} of the budget, at {check.peak_at}"),
            *(moves if view.moves.absences else []),
            ("checker", "passed", f"{plan.method}, stopped by {plan.stopped_by}"),
        ]
    )


def _blocks(view: View) -> str:
    blocks = view.problem.blocks
    rows = [
        [blocks[a.block].name, blocks[a.block].role, show_bytes(a.size_bytes), str(a.absences), str(a.positions)]
        for a in view.away[:_MOST_BLOCKS]
    ]
    return html_table(["block", "role", "size", "times away", "operators meanwhile"], rows, numbers=(2, 3, 4))
