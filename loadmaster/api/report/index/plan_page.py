"""An index plan as one HTML file."""

from __future__ import annotations

from html import escape

from loadmaster.api.report.index.pictures import pictures
from loadmaster.api.report.index.view import View
from loadmaster.api.report.index.words import SHARD_HEADER, change_words, shard_rows, tally
from loadmaster.api.report.page import facts, html_table, page, shown
from loadmaster.api.report.words import counted
from loadmaster.models.units import show_bytes, show_cost, show_share


def plan_page(view: View) -> str:
    """The report of a feasible plan."""
    problem = view.problem
    keys = sum(shard.keys for shard in problem.shards)
    where = f"{counted(len(problem.shards), 'shard')} on {counted(len(problem.hosts), 'host')}"
    lead = f"{problem.title or problem.name}: {counted(keys, 'key')} in {where}"
    return page(view.plan.name, lead, sections(view))


def sections(view: View) -> list[str]:
    """The sections of the report as HTML, for other pages too."""
    found = [
        _facts(view),
        *map(shown, pictures(view)),
        "<h2>The shards</h2>",
        html_table(SHARD_HEADER, shard_rows(view), numbers=(5, 6, 7, 8)),
    ]
    if view.plan.changes:
        told = "".join(f"<li>{escape(change_words(view.problem, change))}</li>" for change in view.plan.changes)
        found += ["<h2>Changes</h2>", f"<ul>{told}</ul>"]
    return found


def _facts(view: View) -> str:
    plan, check = view.plan, view.check
    assert plan.objective is not None
    bound = "no bound was computed" if plan.bound is None else f"no plan is below {show_cost(plan.bound, plan.unit)}"
    share = show_share(check.peak_bytes / plan.budget_bytes) if plan.budget_bytes else "all"
    measured = sum(row.cost.measured for row in view.rows)
    some = "" if measured == len(view.rows) else "; the others are predicted"
    time = f"{view.problem.objective}, in the horizon{'' if measured else ', predicted'}"
    return facts(
        [
            ("time", show_cost(plan.objective, plan.unit), time),
            ("proved gap", show_share(plan.gap), bound),
            ("memory", show_bytes(check.peak_bytes), f"{share} of the budget, on {check.peak_at}"),
            ("configurations", str(len({row.configuration for row in view.rows})), tally(view.rows)),
            *([("measured", str(measured), f"of {len(view.rows)} that were chosen{some}")] if measured else []),
            ("checker", "passed", f"{plan.method}, stopped by {plan.stopped_by}"),
        ]
    )
