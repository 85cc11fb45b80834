"""A collective plan as one HTML file: the table with its proofs, time against size, and who sends when."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from html import escape

from loadmaster.api.report.collective.bandwidth import bus_gbps
from loadmaster.api.report.collective.curve import LogChart, RowChart, decades
from loadmaster.api.report.collective.timeline import Row, owner_word, timeline
from loadmaster.api.report.collective.view import View
from loadmaster.api.report.collective.words import show_gbps, show_ns
from loadmaster.api.report.page import facts, html_table, keys, page
from loadmaster.api.units import show_bytes, show_share
from loadmaster.models.collective.plan import Algorithm
from loadmaster.models.collective.verdict import Check

# A legend of more colours than this is no help.
LARGEST_LEGEND = 16
# Charts of more algorithms make a page that browsers labour at; the smallest and the largest are the telling ones.
LARGEST_CHARTS = 6


def plan_page(view: View) -> str:
    """The report of a feasible plan."""
    problem, plan = view.problem, view.plan
    sections = [_facts(view), "<h2>Algorithms by size</h2>", _table(view)]
    if len(plan.algorithms) > 1:
        lead = "Planned time and proved bound; each algorithm is used from the size where its line starts."
        sections += ["<h2>Time against size</h2>", f"<figure>{_curve(plan.algorithms)}"]
        sections += [f"<figcaption>{lead}</figcaption></figure>"]
        sections += [keys([("plan", "planned time"), ("reference", "proved bound")])]
    shown = list(zip(plan.algorithms, view.check.algorithms, strict=True))
    drawn: list[Row] = []
    for algorithm, check in telling(shown, LARGEST_CHARTS):
        rows = timeline(problem, algorithm, check)
        title = f"<h2>Who sends when: {escape(show_bytes(algorithm.size_bytes))}</h2>"
        sections += [title, _gantt(rows, check, problem.topology.rank_count)]
        drawn += rows
    sections.append(_legend(drawn, problem.topology.rank_count, owner_word(problem, plan.algorithms[0])))
    return page(plan.name, problem.title or problem.name, sections)


def colour(rank: int, rank_count: int) -> str:
    """One hue for each rank, neighbours told apart by lightness."""
    red, green, blue = colorsys.hls_to_rgb(rank / rank_count, (0.46, 0.58)[rank % 2], 0.55)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def size_ticks(sizes: Sequence[int]) -> list[int]:
    """Some eight of the sizes, the first and the last among them."""
    step = max(1, math.ceil((len(sizes) - 1) / 7))
    return sorted({*sizes[::step], sizes[-1]})


def telling(shown: Sequence[tuple[Algorithm, Check]], most: int) -> list[tuple[Algorithm, Check]]:
    """All, or where there are more than ``most`` so many of them, from the smallest to the largest."""
    if len(shown) <= most:
        return list(shown)
    last = len(shown) - 1
    return [shown[round(n * last / max(1, most - 1))] for n in range(most)]


def _facts(view: View) -> str:
    topology, plan = view.problem.topology, view.plan
    best = max(plan.algorithms, key=lambda a: bus_gbps(view.problem, a) or 0.0)
    highest = bus_gbps(view.problem, best)
    worst = max(plan.algorithms, key=lambda a: a.gap)
    rows = [
        ("collective", view.problem.collective, f"{topology.name}, {topology.rank_count} ranks"),
        ("proved gap", show_share(worst.gap), f"the largest, at {show_bytes(worst.size_bytes)}, by {worst.bound_by}"),
        ("checker", "passed", f"{plan.method}, stopped by {plan.stopped_by}"),
        (
            "planning",
            f"{sum(plan.seconds.values()):.2f} s",
            f"{topology.node_count} nodes, {len(topology.links)} links",
        ),
    ]
    if highest is not None:
        rows.insert(
            1, ("bus bandwidth", f"{show_gbps(highest)} GB/s", f"the highest, at {show_bytes(best.size_bytes)}")
        )
    return facts(rows)


def _table(view: View) -> str:
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


def _curve(algorithms: Sequence[Algorithm]) -> str:
    sizes = [a.size_bytes for a in algorithms]
    times = [max(1, t) for a in algorithms for t in (a.time_ns, a.bound_ns)]
    marks = decades(min(times), max(times))
    pad = 0.04 * (math.log10(sizes[-1] / sizes[0]) or 1)
    chart = LogChart(
        (math.log10(sizes[0]) - pad, math.log10(sizes[-1]) + pad), (math.log10(marks[0]), math.log10(marks[-1]))
    )
    chart.log_axes(
        [(s, show_bytes(s)) for s in size_ticks(sizes)], [(m, show_ns(round(m))) for m in marks], ("size", "time")
    )
    for name, values in (("reference", [a.bound_ns for a in algorithms]), ("plan", [a.time_ns for a in algorithms])):
        points = [
            (chart.px(math.log10(s)), chart.py(math.log10(max(1, v)))) for s, v in zip(sizes, values, strict=True)
        ]
        line = "L".join(f"{x} {y}" for x, y in points)
        chart.add(f'<path d="M{line}" fill="none" stroke="var(--{name})" stroke-width="2"/>')
        for (x, y), a, v in zip(points, algorithms, values, strict=True):
            words = f"{show_bytes(a.size_bytes)}: {show_ns(v)}, gap {show_share(a.gap)}"
            chart.add(f'<circle cx="{x}" cy="{y}" r="4" fill="var(--{name})"><title>{escape(words)}</title></circle>')
    return chart.svg("Planned time and proved bound against size, both logarithmic")


def _gantt(rows: Sequence[Row], check: Check, rank_count: int) -> str:
    longest = max((len(row.label) for row in rows), default=0)
    height = 18 if len(rows) <= 32 else 14
    chart = RowChart((0.0, max(1, check.time_ns) / 1e3), [row.label for row in rows], height, 24 + 7 * longest)
    chart.row_axes("microseconds")
    for n, row in enumerate(rows):
        for bar in row.bars:
            hue = colour(bar.owner, rank_count)
            if bar.arrives_ns is not None and bar.arrives_ns > bar.end_ns:
                chart.flight(n, bar.end_ns / 1e3, bar.arrives_ns / 1e3, hue)
        for bar in row.bars:
            paint = f'fill="{colour(bar.owner, rank_count)}"'
            if bar.share < 1:
                paint += f' fill-opacity="{bar.opacity:.2f}"'
            span = f"{bar.start_ns / 1e3:.2f} to {bar.end_ns / 1e3:.2f} us"
            chart.bar(n, bar.start_ns / 1e3, bar.end_ns / 1e3, paint, f"{row.label}: {bar.words}, {span}")
    svg = chart.svg(f"When each of {len(rows)} resources is busy")
    return f"<figure>{svg}<figcaption>{escape(caption(rows, check))}</figcaption></figure>"


def caption(rows: Sequence[Row], check: Check) -> str:
    """How to read the rows of an algorithm."""
    if any(bar.arrives_ns is None for row in rows for bar in row.bars):
        how = "One row per node and sort of resource (how many there are in brackets); stronger where more are busy. "
        how += "Colour: what data it mostly is; what is on its way and holds nothing is not shown."
    else:
        how = "One row per resource: a wire, a port of a switch or a NIC carries one message at a time. "
        how += "Colour: what data it is; thin lines: on its way."
    return f"{len(check.journeys)} sends. {how}"


def legend_owners(rows: Sequence[Row]) -> list[int]:
    """The ranks, or parts, whose colours a legend shows: those in the chart, or some of them."""
    owners = sorted({bar.owner for row in rows for bar in row.bars})
    return owners[:: max(1, math.ceil(len(owners) / LARGEST_LEGEND))]


def _legend(rows: Sequence[Row], rank_count: int, word: str) -> str:
    items = [
        f'<span class="item"><i class="key" style="background:{colour(owner, rank_count)}"></i>{word} {owner}</span>'
        for owner in legend_owners(rows)
    ]
    return f'<p class="keys">{"".join(items)}</p>'
