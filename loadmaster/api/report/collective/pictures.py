"""A collective plan in pictures: time against size where the table has several, and who sends when."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from dataclasses import replace
from html import escape

from loadmaster.api.report.chart import LogChart, RowChart, decades
from loadmaster.api.report.collective.timeline import TimelineRow, owner_word, timeline
from loadmaster.api.report.collective.view import CollectiveView
from loadmaster.api.report.collective.words import show_ns
from loadmaster.api.report.picture import Picture, png_bytes
from loadmaster.models.collective.plan import Algorithm
from loadmaster.models.collective.verdict import CollectiveCheck
from loadmaster.models.units import show_bytes, show_share

# A legend of more colours than this does not help.
LARGEST_LEGEND = 16
# Charts of more algorithms make a page that browsers labour at; the smallest and the largest are the telling ones.
LARGEST_CHARTS = 6
_LARGEST_CHARTS_IN_PNG = 2


def png(view: CollectiveView) -> bytes:
    """A feasible plan as a PNG."""
    return png_bytes(view.problem.title or view.problem.name, pictures(view, _LARGEST_CHARTS_IN_PNG))


def pictures(view: CollectiveView, most_charts: int = LARGEST_CHARTS) -> list[Picture]:
    """All pictures of a feasible plan; the colours of ranks are explained below the last."""
    problem, plan = view.problem, view.plan
    found = [curve(plan.algorithms)] if len(plan.algorithms) > 1 else []
    drawn: list[TimelineRow] = []
    for algorithm, check in telling(list(zip(plan.algorithms, view.check.algorithms, strict=True)), most_charts):
        rows = timeline(problem, algorithm, check)
        found.append(who_sends_when(algorithm, rows, check, problem.topology.rank_count))
        drawn += rows
    legend = _legend(drawn, problem.topology.rank_count, owner_word(problem, plan.algorithms[0]))
    return [*found[:-1], replace(found[-1], legend=legend)]


def colour(rank: int, rank_count: int) -> str:
    """One hue for each rank, neighbours told apart by lightness."""
    red, green, blue = colorsys.hls_to_rgb(rank / rank_count, (0.46, 0.58)[rank % 2], 0.55)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def size_ticks(sizes: Sequence[int]) -> list[int]:
    """Select about eight of the sizes, the first and the last among them."""
    step = max(1, math.ceil((len(sizes) - 1) / 7))
    return sorted({*sizes[::step], sizes[-1]})


def telling(shown: Sequence[tuple[Algorithm, CollectiveCheck]], most: int) -> list[tuple[Algorithm, CollectiveCheck]]:
    """Select at most ``most`` of the algorithms, from the smallest to the largest."""
    if len(shown) <= most:
        return list(shown)
    last = len(shown) - 1
    return [shown[round(n * last / max(1, most - 1))] for n in range(most)]


def curve(algorithms: Sequence[Algorithm]) -> Picture:
    """Planned time and proved bound by size."""
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
    return Picture(
        chart.drawing("Planned time and proved bound against size, both logarithmic"),
        heading="Time against size",
        caption="Planned time and proved bound; each algorithm is used from the size where its line starts.",
        legend=[("plan", "planned time"), ("reference", "proved bound")],
    )


def who_sends_when(
    algorithm: Algorithm, rows: Sequence[TimelineRow], check: CollectiveCheck, rank_count: int
) -> Picture:
    """A row of bars for each row of the timeline."""
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
    return Picture(
        chart.drawing(f"When each of {len(rows)} resources is busy"),
        heading=f"Who sends when: {show_bytes(algorithm.size_bytes)} in {show_ns(algorithm.time_ns)}",
        caption=_caption(rows, check),
    )


def _caption(rows: Sequence[TimelineRow], check: CollectiveCheck) -> str:
    """The caption that says how to read the rows of an algorithm."""
    if any(bar.arrives_ns is None for row in rows for bar in row.bars):
        how = "One row per node and sort of resource (how many there are in brackets); stronger where more are busy. "
        how += "Colour: what data it mostly is; what is on its way and holds nothing is not shown."
    else:
        how = "One row per resource: a wire, a port of a switch or a NIC carries one message at a time. "
        how += "Colour: what data it is; thin lines: on its way."
    return f"{len(check.journeys)} sends. {how}"


def _legend(rows: Sequence[TimelineRow], rank_count: int, word: str) -> list[tuple[str, str]]:
    """The ranks, or parts, whose colours are in the charts, or some of them."""
    owners = sorted({bar.owner for row in rows for bar in row.bars})
    chosen = owners[:: max(1, math.ceil(len(owners) / LARGEST_LEGEND))]
    return [(colour(owner, rank_count), f"{word} {owner}") for owner in chosen]
