"""Bytes over one step under the budget line, with the names of modules above: what memory and placement plans show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from loadmaster.api.report.bands import bands
from loadmaster.api.report.chart import Chart
from loadmaster.models.units import byte_scale, show_bytes


@dataclass(frozen=True)
class Stretch:
    """A number of bytes for a length of time. ``colour`` is of :mod:`loadmaster.api.report.colours`, and neighbours of
    one colour are one shape; ``words`` are shown where the pointer is."""

    start_us: float
    duration_us: float
    size_bytes: int
    colour: str
    words: str
    module: str | None = None

    @property
    def end_us(self) -> float:
        """The end of the stretch, in microseconds from the start of the step."""
        return self.start_us + self.duration_us


@dataclass(frozen=True)
class Line:
    """Another step, drawn as a line over the first: ``steps`` (start, duration, bytes), one after another; ``dash`` as
    of SVG's ``stroke-dasharray``, empty for a line without gaps."""

    steps: Sequence[tuple[float, float, int]]
    colour: str
    dash: str = ""


def bytes_over_time(
    stretches: Sequence[Stretch],
    budget_bytes: int,
    peak_bytes: int,
    time_us: float,
    lines: Sequence[Line] = (),
) -> Chart:
    """Steps of bytes, a filled shape per run of stretches of the same colour; other steps as lines; the budget."""
    factor, unit = byte_scale(budget_bytes)
    budget = budget_bytes / factor
    end_us = max([time_us, *(start + duration for line in lines for start, duration, _ in line.steps)])
    most = max([budget_bytes, peak_bytes, *(size for line in lines for _, _, size in line.steps)])
    chart = Chart((0.0, end_us / 1e3), (0.0, most / factor * 1.1))
    chart.axes("milliseconds", unit)
    floor = chart.py(0)
    for colour, group in groupby(stretches, key=lambda s: s.colour):
        run = list(group)
        outline = f"M{chart.px(run[0].start_us / 1e3)} {floor}"
        for stretch in run:
            outline += f"H{chart.px(stretch.start_us / 1e3)}V{chart.py(stretch.size_bytes / factor)}"
        outline += f"H{chart.px(run[-1].end_us / 1e3)}V{floor}Z"
        chart.add(f'<path d="{outline}" fill="var(--{colour})"/>')
    for line in lines:
        path = f"M{chart.px(line.steps[0][0] / 1e3)} {floor}"
        for start, duration, size in line.steps:
            path += f"V{chart.py(size / factor)}H{chart.px((start + duration) / 1e3)}"
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ' stroke-width="1.5"'
        chart.add(f'<path d="{path}V{floor}" fill="none" stroke="var(--{line.colour})"{dash}/>')
    for stretch in stretches:
        left, right = chart.px(stretch.start_us / 1e3), chart.px(stretch.end_us / 1e3)
        y = chart.py(stretch.size_bytes / factor)
        box = f'x="{left}" y="{y}" width="{max(right - left, 0.5):.2f}" height="{floor - y:.2f}"'
        chart.add(f'<rect {box} fill="transparent"><title>{escape(stretch.words)}</title></rect>')
    for left, right, name in bands(stretches, chart.px):
        chart.add(f'<path d="M{left} 3V15M{right} 3V15" stroke="var(--quiet)"/>')
        chart.add(f'<text x="{(left + right) / 2:.2f}" y="13" text-anchor="middle">{escape(name)}</text>')
    chart.rule(budget, "budget", f"budget {show_bytes(budget_bytes)}")
    return chart
