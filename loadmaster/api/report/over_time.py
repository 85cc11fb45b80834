"""One step over time: bytes under the budget line, with the names of modules above; bytes by role above each other; and
rows of what links and processors do. Memory, placement and training plans show them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise

from loadmaster.api.report.bands import bands
from loadmaster.api.report.chart import Chart, RowChart
from loadmaster.models.step_measurement import StepMeasurement
from loadmaster.models.units import byte_scale, show_bytes, show_cost
from loadmaster.solvers.program import IntArray

_ROW_HEIGHT = 26


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

    def draw(self, chart: Chart, factor: float) -> None:
        """Draw it into a chart of milliseconds and of ``factor`` bytes."""
        floor = chart.py(0)
        path = f"M{chart.px(self.steps[0][0] / 1e3)} {floor}"
        for start, duration, size in self.steps:
            path += f"V{chart.py(size / factor)}H{chart.px((start + duration) / 1e3)}"
        dash = f' stroke-dasharray="{self.dash}"' if self.dash else ' stroke-width="1.5"'
        chart.add(f'<path d="{path}V{floor}" fill="none" stroke="var(--{self.colour})"{dash}/>')


def measured_steps(found: StepMeasurement) -> list[tuple[float, float, int]]:
    """Start, duration and bytes. A profiler makes a step longer: all of it shrinks to what a step takes without."""
    scale = found.step_us / found.times_us[-1]
    ends = pairwise(found.times_us)
    return [
        (start * scale, (end - start) * scale, size)
        for (start, end), size in zip(ends, found.allocated_bytes, strict=False)
    ]


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
        line.draw(chart, factor)
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


@dataclass(frozen=True)
class Role:
    """Bytes of one role over a step: ``sizes`` [stretches], in a colour of :mod:`loadmaster.api.report.colours`."""

    name: str
    colour: str
    sizes: IntArray

    @property
    def words(self) -> str:
        """Name of the role, and the most of it."""
        return f"{self.name} (at most {show_bytes(int(self.sizes.max()))})"


def stacked(chart: Chart, starts_us: Sequence[float], time_us: float, roles: Sequence[Role], factor: float) -> None:
    """Draw roles above each other, from the bottom up, at least one; each stretch lasts until the next starts."""
    total = sum((role.sizes for role in roles[1:]), roles[0].sizes)
    floor, right = chart.py(0), chart.px(time_us / 1e3)
    # The highest first: what is lower is drawn over it.
    for role in reversed(roles):
        outline = f"M{chart.px(0)} {floor}"
        for start, size in zip(starts_us, total, strict=True):
            outline += f"H{chart.px(start / 1e3)}V{chart.py(int(size) / factor)}"
        title = f"<title>{escape(role.words)}</title>"
        chart.add(f'<path d="{outline}H{right}V{floor}Z" fill="var(--{role.colour})">{title}</path>')
        total = total - role.sizes


@dataclass(frozen=True)
class Busy:
    """A time at which a row is busy, within one step."""

    start_us: float
    end_us: float
    colour: str
    words: str


@dataclass(frozen=True)
class Row:
    """Work of one link or processor over a step."""

    label: str
    busy: Sequence[Busy]

    def share(self, step_us: float) -> str:
        """Label of the row, and the share of the step in which it is busy."""
        return f"{self.label} {sum(busy.end_us - busy.start_us for busy in self.busy) / step_us:.0%}"


def rows_over_time(rows: Sequence[Row], step_us: float) -> RowChart:
    """Draw a row for each link or processor, at least one, with bars where it is busy."""
    longest = max(len(row.label) for row in rows)
    chart = RowChart((0.0, step_us / 1e3), [row.label for row in rows], _ROW_HEIGHT, 24 + 7 * longest)
    chart.row_axes("milliseconds")
    for n, row in enumerate(rows):
        for busy in row.busy:
            words = f"{row.label}: {busy.words}, {show_cost(busy.end_us - busy.start_us, 'us')}"
            chart.bar(n, busy.start_us / 1e3, busy.end_us / 1e3, f'fill="var(--{busy.colour})"', words)
    return chart


def within_step(start_us: float, end_us: float, step_us: float) -> Iterator[tuple[float, float]]:
    """Parts within one step of what repeats in every step: what is under way at its end is so at its start too. A step
    that takes no time has none."""
    left = end_us - start_us
    if step_us <= 0:
        return
    start = start_us % step_us
    while left > 0:
        end = min(start + left, step_us)
        yield start, end
        left -= max(end - start, 1e-9 * step_us)
        start = 0.0
