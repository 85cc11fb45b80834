"""Charts as SVG: one pair of axes, linear or logarithmic, and rows of bars by time.

Data coordinates go in, markup comes out, in picture coordinates of our own. Colours are names of
:mod:`loadmaster.api.report.colours`, written as CSS variables, so that they follow the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from loadmaster.api.report.picture import Drawing


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from ``low`` to ``high``."""
    if high <= low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_label(value: float, step: float) -> str:
    """A tick with as many decimals as its step needs."""
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    return f"{value:.{decimals}f}"


class Chart:
    """An SVG with one pair of linear axes. Data coordinates in, markup out."""

    def __init__(
        self, x: tuple[float, float], y: tuple[float, float], *, width: int = 960, height: int = 380, left: int = 64
    ) -> None:
        self._x, self._y = x, y
        self._width, self._height = width, height
        self._left, self._right, self._top, self._bottom = left, width - 18, 16, height - 44
        self._parts: list[str] = []

    def px(self, x: float) -> float:
        """Picture coordinate of a data x."""
        share = (x - self._x[0]) / (self._x[1] - self._x[0] or 1)
        return round(self._left + share * (self._right - self._left), 2)

    def py(self, y: float) -> float:
        """Picture coordinate of a data y."""
        share = (y - self._y[0]) / (self._y[1] - self._y[0] or 1)
        return round(self._bottom - share * (self._bottom - self._top), 2)

    def add(self, markup: str) -> None:
        """Add raw SVG markup to the chart."""
        self._parts.append(markup)

    def axes(self, x_title: str, y_title: str, y_labels: Sequence[tuple[float, str]] = ()) -> None:
        """Draw grid lines, ticks and titles; on y at round numbers, or at (y, label)."""
        ys, xs = ticks(min(self._y), max(self._y), 8), ticks(*self._x, 9)
        round_labels = [(y, tick_label(y, ys[1] - ys[0] if len(ys) > 1 else 1)) for y in ys]
        for y, label in y_labels or round_labels:
            at = self.py(y)
            self.add(f'<path d="M{self._left} {at}H{self._right}" stroke="var(--line)"/>')
            self.add(f'<text x="{self._left - 8}" y="{at + 4}" text-anchor="end">{label}</text>')
        for x in xs:
            label = tick_label(x, xs[1] - xs[0] if len(xs) > 1 else 1)
            self.add(f'<text x="{self.px(x)}" y="{self._bottom + 18}" text-anchor="middle">{label}</text>')
        self.add(f'<path d="M{self._left} {self._bottom}H{self._right}" stroke="var(--quiet)"/>')
        self.add(f'<text x="{self._right}" y="{self._height - 8}" text-anchor="end">{escape(x_title)}</text>')
        middle = (self._top + self._bottom) / 2
        turn = f'transform="rotate(-90 14 {middle})"'
        self.add(f'<text x="14" y="{middle}" text-anchor="middle" {turn}>{escape(y_title)}</text>')

    def rule(self, y: float, colour: str, label: str, dash: str = "6 4", *, label_on_left: bool = False) -> None:
        """A labelled horizontal line across the chart."""
        at = self.py(y)
        self.add(
            f'<path d="M{self._left} {at}H{self._right}" stroke="var(--{colour})" stroke-width="1.5" '
            f'stroke-dasharray="{dash}"/>'
        )
        x, anchor = (self._left, "start") if label_on_left else (self._right, "end")
        self.add(f'<text x="{x}" y="{at - 6}" text-anchor="{anchor}" class="in-{colour}">{escape(label)}</text>')

    def drawing(self, description: str) -> Drawing:
        """The finished chart; ``description`` is for screen readers."""
        return Drawing(self._width, self._height, description, "\n".join(self._parts))


class LogChart(Chart):
    """A chart with both axes logarithmic; data coordinates are logarithms to base 10."""

    def log_axes(self, x: Sequence[tuple[float, str]], y: Sequence[tuple[float, str]], titles: tuple[str, str]) -> None:
        """Draw grid lines and labels at (value, label)."""
        for value, label in y:
            at = self.py(math.log10(value))
            self.add(f'<path d="M{self._left} {at}H{self._right}" stroke="var(--line)"/>')
            self.add(f'<text x="{self._left - 8}" y="{at + 4}" text-anchor="end">{escape(label)}</text>')
        for value, label in x:
            at = self.px(math.log10(value))
            self.add(f'<path d="M{at} {self._top}V{self._bottom}" stroke="var(--line)"/>')
            self.add(f'<text x="{at}" y="{self._bottom + 18}" text-anchor="middle">{escape(label)}</text>')
        self.add(f'<path d="M{self._left} {self._bottom}H{self._right}" stroke="var(--quiet)"/>')
        self.add(f'<text x="{self._right}" y="{self._height - 8}" text-anchor="end">{escape(titles[0])}</text>')
        self.add(f'<text x="{self._left}" y="12">{escape(titles[1])}</text>')


class RowChart(Chart):
    """A labelled row for each unit of y, from the top."""

    def __init__(self, x: tuple[float, float], labels: Sequence[str], row_height: int, left: int) -> None:
        super().__init__(x, (len(labels), 0.0), height=row_height * len(labels) + 60, left=left)
        self._labels, self._row_height = labels, row_height

    def row_axes(self, x_title: str) -> None:
        """Draw time ticks below, and a label before every row."""
        xs = ticks(*self._x, 9)
        for x in xs:
            at = self.px(x)
            label = tick_label(x, xs[1] - xs[0] if len(xs) > 1 else 1)
            self.add(f'<path d="M{at} {self._top}V{self._bottom}" stroke="var(--line)"/>')
            self.add(f'<text x="{at}" y="{self._bottom + 18}" text-anchor="middle">{label}</text>')
        for n, label in enumerate(self._labels):
            text = f'<text class="row" x="{self._left - 8}" y="{self.py(n + 0.5) + 4}" text-anchor="end">'
            self.add(f"{text}{escape(label)}</text>")
        self.add(f'<path d="M{self._left} {self._bottom}H{self._right}" stroke="var(--quiet)"/>')
        self.add(f'<text x="{self._right}" y="{self._height - 8}" text-anchor="end">{escape(x_title)}</text>')

    def bar(self, row: int, start: float, end: float, paint: str, words: str) -> None:
        """A bar in a row; ``paint`` are SVG attributes."""
        left, right = self.px(start), self.px(end)
        box = f'x="{left}" y="{self.py(row) + 1:.2f}" width="{max(right - left, 0.4):.2f}"'
        height = f'height="{self._row_height - 2}"'
        self.add(f'<rect data-row="{row}" {box} {height} {paint}><title>{escape(words)}</title></rect>')

    def flight(self, row: int, start: float, end: float, paint: str) -> None:
        """A thin line in the middle of a row; ``paint`` is a colour."""
        self.add(
            f'<path d="M{self.px(start)} {self.py(row + 0.5)}H{self.px(end)}" stroke="{paint}" stroke-opacity="0.5"/>'
        )


def decades(low: float, high: float) -> list[float]:
    """Powers of ten from one below or at ``low`` to one above or at ``high``."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**n for n in range(first, max(last, first + 1) + 1)]
