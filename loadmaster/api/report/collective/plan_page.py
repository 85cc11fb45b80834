"""A collective plan as one HTML file: the table with its proofs, time against size, and who sends when."""

from __future__ import annotations

from loadmaster.api.report.collective.pictures import pictures
from loadmaster.api.report.collective.view import CollectiveView, bus_gbps
from loadmaster.api.report.collective.words import show_gbps, show_ns
from loadmaster.api.report.page import facts, html_table, page, shown
from loadmaster.api.report.words import checker_fact, counted
from loadmaster.models.units import show_bytes, show_share


def plan_page(view: CollectiveView) -> str:
    """The report of a feasible plan."""
    return page(view.plan.name, view.problem.title or view.problem.name, sections(view))


def sections(view: CollectiveView) -> list[str]:
    """The sections of the report as HTML, for other pages too."""
    return [_facts(view), "<h2>Algorithms by size</h2>", _table(view), *map(shown, pictures(view))]


def _facts(view: CollectiveView) -> str:
    topology, plan = view.problem.topology, view.plan
    best = max(plan.algorithms, key=lambda a: bus_gbps(view.problem, a) or 0.0)
    highest = bus_gbps(view.problem, best)
    worst = max(plan.algorithms, key=lambda a: a.gap)
    rows = [
        ("collective", view.problem.collective, f"{topology.name}, {topology.rank_count} ranks"),
        ("proved gap", show_share(worst.gap), f"the largest, at {show_bytes(worst.size_bytes)}, by {worst.bound_by}"),
        checker_fact(plan),
        (
            "planning",
            f"{sum(plan.seconds.values()):.2f} s",
            f"{counted(topology.node_count, 'node')}, {counted(len(topology.links), 'link')}",
        ),
    ]
    if highest is not None:
        rows.insert(
            1, ("bus bandwidth", f"{show_gbps(highest)} GB/s", f"the highest, at {show_bytes(best.size_bytes)}")
        )
    return facts(rows)


def _table(view: CollectiveView) -> str:
    header = ["size", "from", "chunks", "form", "time", "bound", "gap", "bound by", "any chunks", "bus GB/s", "method"]
    rows = []
    for a in view.plan.algorithms:
        rows.append(
            [
                show_bytes(a.size_bytes),
                show_bytes(a.from_bytes),
                str(a.chunk_count),
                a.form,
                show_ns(a.time_ns),
                show_ns(a.bound_ns),
                show_share(a.gap),
                a.bound_by,
                show_ns(a.throughput_bound_ns),
                show_gbps(bus_gbps(view.problem, a)),
                a.method,
            ]
        )
    note = (
        '<p class="lead">From: the size from which on the table uses an algorithm. Bound: no schedule of chunks of '
        "this size is faster. Any chunks: nor is any with chunks however small.</p>"
    )
    return html_table(header, rows, numbers=(0, 1, 2, 4, 5, 6, 8, 9)) + note
