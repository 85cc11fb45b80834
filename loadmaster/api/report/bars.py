"""A bar for each of a few sizes, its name before it and what it comes to behind it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from loadmaster.api.report.bands import LETTER_WIDTH
from loadmaster.api.report.picture import Drawing

_ROW_HEIGHT = 22


def labelled_bars(rows: Sequence[tuple[str, float, str]], description: str, colour: str = "kept") -> Drawing:
    """A row for each (name, size, what it comes to in words), at least one of them."""
    label_width = 24 + LETTER_WIDTH * max(len(name) for name, _, _ in rows)
    scale = (960 - label_width - 150) / (max(size for _, size, _ in rows) or 1)
    bars = []
    for number, (name, size, words) in enumerate(rows):
        y, width = number * _ROW_HEIGHT, max(0.0, size * scale)
        bars.append(f'<text x="{label_width - 8:.2f}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        bars.append(f'<rect x="{label_width:.2f}" y="{y + 3}" width="{width:.2f}" height="16" fill="var(--{colour})"/>')
        bars.append(f'<text x="{label_width + width + 8:.2f}" y="{y + 15}">{escape(words)}</text>')
    return Drawing(960, _ROW_HEIGHT * len(rows), description, "".join(bars))
