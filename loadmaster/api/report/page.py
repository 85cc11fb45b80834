"""The frame of every HTML report: one file, no scripts, nothing fetched, readable in light and dark.

Pictures are inline SVG in coordinates of our own; their colours are CSS variables, so that they follow the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import loadmaster

_STYLE = """
:root { color-scheme: light dark; --ground: #fbfbfa; --ink: #1d2430; --quiet: #667085; --line: #e3e6ea;
  --plan: #2b6cb0; --band: #2b6cb026; --budget: #c2410c; --forward: #4c8dd6; --recompute: #e08e2b;
  --backward: #3a9d7c; --kept: #3b7dc4; --recomputed: #e08e2b; --offloaded: #8a63c9; --freed: #c3c9d1;
  --reference: #8a63c9; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171c; --ink: #e6e9ee; --quiet: #98a2b3;
  --line: #2a3038; --plan: #6ea8e6; --band: #6ea8e633; --budget: #f0814f; --forward: #5b9be0;
  --recompute: #e8a04a; --backward: #4fb594; --kept: #5b9be0; --recomputed: #e8a04a; --offloaded: #a98be0;
  --freed: #4a525e; --reference: #a98be0; } }
body { background: var(--ground); color: var(--ink); margin: 2.5rem auto; max-width: 64rem; padding: 0 1.25rem;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.45rem; font-weight: 650; margin: 0 0 .2rem; }
h2 { font-size: 1.05rem; font-weight: 600; margin: 2.2rem 0 .5rem; }
p.lead, figcaption, footer { color: var(--quiet); }
p.lead { margin: 0 0 1.4rem; }
figure { margin: 0; } figcaption { font-size: .87rem; margin-top: .3rem; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--quiet); font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
svg .strong { fill: var(--ink); font-weight: 600; }
dl.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .9rem 1.6rem;
  margin: 0; } dl.facts div { border-top: 2px solid var(--line); padding-top: .35rem; }
dl.facts dt { color: var(--quiet); font-size: .82rem; } dl.facts dd { margin: 0; font-size: 1.12rem;
  font-weight: 600; font-variant-numeric: tabular-nums; } dl.facts small { display: block; font-weight: 400;
  font-size: .8rem; color: var(--quiet); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9rem; }
th { color: var(--quiet); font-weight: 500; text-align: left; } th, td { padding: .32rem .7rem .32rem 0;
  border-bottom: 1px solid var(--line); } td.n, th.n { text-align: right; }
.key { display: inline-block; width: .72em; height: .72em; border-radius: 2px; margin-right: .4em; }
.keys span.item { margin-right: 1.3em; white-space: nowrap; font-size: .87rem; color: var(--quiet); }
.scroll { overflow-x: auto; } footer { margin-top: 3rem; font-size: .82rem; }
@media print { body { margin: 0; max-width: none; } }
"""


def page(title: str, lead: str, sections: Sequence[str]) -> str:
    """A whole HTML document. ``title`` and ``lead`` are plain text, ``sections`` are HTML."""
    body = "\n".join(sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="lead">{escape(lead)}</p>
{body}
<footer>Loadmaster {loadmaster.__version__}</footer>
</body>
</html>
"""


def facts(rows: Sequence[tuple[str, str, str]]) -> str:
    """Figures at a glance: (what, figure, small print), plain text."""
    cells = [
        f"<div><dt>{escape(what)}</dt><dd>{escape(figure)}<small>{escape(note)}</small></dd></div>"
        for what, figure, note in rows
    ]
    return f'<dl class="facts">{"".join(cells)}</dl>'


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table of plain text; the columns in ``numbers`` are set to the right."""

    def cells(tag: str, row: Sequence[str]) -> str:
        mark = [' class="n"' if i in numbers else "" for i in range(len(row))]
        return "".join(f"<{tag}{mark[i]}>{escape(text)}</{tag}>" for i, text in enumerate(row))

    lines = [f"<tr>{cells('td', row)}</tr>" for row in rows]
    return f'<div class="scroll"><table><tr>{cells("th", header)}</tr>\n{chr(10).join(lines)}\n</table></div>'


def keys(items: Sequence[tuple[str, str]]) -> str:
    """A legend: (CSS variable without its dashes, plain text)."""
    spans = [
        f'<span class="item"><i class="key" style="background:var(--{colour})"></i>{escape(text)}</span>'
        for colour, text in items
    ]
    return f'<p class="keys">{"".join(spans)}</p>'


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
        """Raw SVG."""
        self._parts.append(markup)

    def axes(self, x_title: str, y_title: str) -> None:
        """Grid lines, ticks and titles."""
        ys, xs = ticks(min(self._y), max(self._y), 8), ticks(*self._x, 9)
        for y in ys:
            at = self.py(y)
            self.add(f'<path d="M{self._left} {at}H{self._right}" stroke="var(--line)"/>')
            label = tick_label(y, ys[1] - ys[0] if len(ys) > 1 else 1)
            self.add(f'<text x="{self._left - 8}" y="{at + 4}" text-anchor="end">{label}</text>')
        for x in xs:
            label = tick_label(x, xs[1] - xs[0] if len(xs) > 1 else 1)
            self.add(f'<text x="{self.px(x)}" y="{self._bottom + 18}" text-anchor="middle">{label}</text>')
        self.add(f'<path d="M{self._left} {self._bottom}H{self._right}" stroke="var(--quiet)"/>')
        self.add(f'<text x="{self._right}" y="{self._height - 8}" text-anchor="end">{escape(x_title)}</text>')
        middle = (self._top + self._bottom) / 2
        turn = f'transform="rotate(-90 14 {middle})"'
        self.add(f'<text x="14" y="{middle}" text-anchor="middle" {turn}>{escape(y_title)}</text>')

    def rule(self, y: float, colour: str, label: str, dash: str = "6 4") -> None:
        """A labelled horizontal line across the chart."""
        at = self.py(y)
        self.add(
            f'<path d="M{self._left} {at}H{self._right}" stroke="var(--{colour})" stroke-width="1.5" '
            f'stroke-dasharray="{dash}"/>'
        )
        self.add(
            f'<text x="{self._right}" y="{at - 6}" text-anchor="end" style="fill:var(--{colour})">'
            f"{escape(label)}</text>"
        )

    def svg(self, description: str) -> str:
        """The finished picture; ``description`` is for screen readers."""
        parts = "\n".join(self._parts)
        return (
            f'<svg viewBox="0 0 {self._width} {self._height}" role="img" aria-label="{escape(description)}" '
            f'xmlns="http://www.w3.org/2000/svg">\n{parts}\n</svg>'
        )
