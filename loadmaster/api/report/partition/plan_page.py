"""A partition plan as one HTML file."""

from __future__ import annotations

from loadmaster.api.report.page import facts, html_table, page, shown
from loadmaster.api.report.partition.pictures import pictures
from loadmaster.api.report.partition.view import View
from loadmaster.api.report.partition.words import (
    LAYER_HEADER,
    WORKER_HEADER,
    layer_rows,
    tensor_header,
    tensor_rows,
    worker_rows,
)
from loadmaster.models.units import show_bytes, show_cost, show_share

_MOST_TENSORS = 60
_MOST_LAYERS = 40


def plan_page(view: View) -> str:
    """The report of a feasible plan."""
    mesh = " x ".join(str(axis.size) for axis in view.problem.axes)
    lead = f"{view.problem.title or view.problem.name} on {mesh} GPUs, {show_bytes(view.plan.budget_bytes)} each"
    return page(view.plan.name, lead, sections(view))


def sections(view: View) -> list[str]:
    """The sections of the report as HTML, for other pages too."""
    header = tensor_header(view)
    found = [_facts(view), *map(shown, pictures(view))]
    found += [
        "<h2>How tensors are split</h2>",
        html_table(header, tensor_rows(view, _MOST_TENSORS), numbers=(1, len(header) - 1)),
    ]
    if view.workers:
        found += ["<h2>GPUs that are not alike</h2>", html_table(WORKER_HEADER, worker_rows(view), (1, 2, 3))]
    if view.layers:
        found += ["<h2>What moves most</h2>", html_table(LAYER_HEADER, layer_rows(view, _MOST_LAYERS), (1, 2, 3, 4))]
    return found


def _facts(view: View) -> str:
    plan, check = view.plan, view.check
    assert plan.objective is not None
    bound = "no bound was computed" if plan.bound is None else f"no plan is below {show_cost(plan.bound, plan.unit)}"
    share = show_share(check.peak_bytes / plan.budget_bytes) if plan.budget_bytes else "all"
    # Where nothing moves, there is nothing to say of how.
    moves = [
        ("collectives", show_cost(check.transfer_us, "us"), f"{show_bytes(check.moved_bytes)} received"),
        ("redistributions", str(len(check.redistributions)), "in every step"),
    ]
    what = "received" if plan.unit == "bytes" else "step"
    return facts(
        [
            (what, show_cost(plan.objective, plan.unit), "by all GPUs" if plan.unit == "bytes" else "planned"),
            ("proved gap", show_share(plan.gap), bound),
            ("peak", show_bytes(check.peak_bytes), f"{share} of the budget, at {check.peak_at}"),
            *(moves if check.redistributions else []),
            ("checker", "passed", f"{plan.method}, stopped by {plan.stopped_by}"),
        ]
    )
