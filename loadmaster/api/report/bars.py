"""A bar for each of a few sizes, before it its name and what it comes to: a phone shows the beginning of a row."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from loadmaster.api.report.bands import LETTER_WIDTH
from loadmaster.api.report.picture import Drawing

_ROW_HEIGHT = 22
# Names are their author's; one has to leave room for the bar.
_LONGEST_NAME = 60


def labelled_bars(rows: Sequence[tuple[str, float, str]], description: str) -> Drawing:
    """A row for each (name, size, what it comes to in words), at least one of them."""
    rows = [(_short(name), size, words) for name, size, words in rows]
    name_end = 4 + LETTER_WIDTH * max(len(name) for name, _, _ in rows)
    words_end = name_end + 12 + LETTER_WIDTH * max(len(words) for _, _, words in rows)
    start = words_end + 8
    scale = (960 - start) / (max(size for _, size, _ in rows) or 1)
    bars = []
    for number, (name, size, words) in enumerate(rows):
        y, width = number * _ROW_HEIGHT, max(0.0, size * scale)
        for end, text in ((name_end, name), (words_end, words)):
            bars.append(f'<text x="{end:.2f}" y="{y + 15}" text-anchor="end">{escape(text)}</text>')
        bars.append(f'<rect x="{start:.2f}" y="{y + 3}" width="{width:.2f}" height="16" fill="var(--kept)"/>')
    return Drawing(960, _ROW_HEIGHT * len(rows), description, "".join(bars))


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."
