"""Charts with axes of their own: time against size, both logarithmic; and rows of bars by time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from loadmaster.api.report.page import Chart, tick_label, ticks


class LogChart(Chart):
    """Both axes logarithmic; data coordinates are logarithms to base 10."""

    def log_axes(self, x: Sequence[tuple[float, str]], y: Sequence[tuple[float, str]], titles: tuple[str, str]) -> None:
        """Grid lines at (value, label)."""
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
        """Time ticks below, a label before every row."""
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
        self.add(f"<rect {box} {height} {paint}><title>{escape(words)}</title></rect>")

    def flight(self, row: int, start: float, end: float, paint: str) -> None:
        """A thin line in the middle of a row; ``paint`` is a colour."""
        self.add(
            f'<path d="M{self.px(start)} {self.py(row + 0.5)}H{self.px(end)}" stroke="{paint}" stroke-opacity="0.5"/>'
        )


def decades(low: float, high: float) -> list[float]:
    """Powers of ten from one below or at ``low`` to one above or at ``high``."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**n for n in range(first, max(last, first + 1) + 1)]
