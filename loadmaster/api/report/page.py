"""The frame of every HTML report: one file, nothing fetched, readable in light and dark.

Pictures are inline SVG; their colours are CSS variables, so that they follow the page. All there is to read can be read
without a script; the one there is gives keys and fingers what pointers are told of a picture's marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files

import loadmaster
from loadmaster.api.report.colours import css, paint, words_css
from loadmaster.api.report.picture import Picture

_STYLE = """
* { box-sizing: border-box; }
body { background: var(--ground); color: var(--ink); margin: 2.5rem auto; max-width: 64rem; padding: 0 1.25rem;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.45rem; font-weight: 650; margin: 0 0 .2rem; }
h2 { font-size: 1.05rem; font-weight: 600; margin: 2.2rem 0 .5rem; }
p.lead, figcaption, footer { color: var(--quiet); }
p.lead { margin: 0 0 1.4rem; } .scroll + p.lead { margin-top: .6rem; }
figure { margin: 0; } figcaption { font-size: .87rem; margin-top: .3rem; }
figure svg, .key svg { display: block; width: 100%; height: auto; }
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
.key { display: inline-block; width: .72em; height: .72em; border-radius: 2px; overflow: hidden; margin-right: .4em; }
.keys span.item { display: inline-block; margin-right: 1.3em; font-size: .87rem; color: var(--quiet); }
/* A shadow at the side where there is more: what lies over it moves with the content. What is placed by itself in it
   (words that are not seen) belongs to it: else it makes the whole page wider. */
.scroll { overflow-x: auto; position: relative; background:
  linear-gradient(to right, var(--ground) 40%, transparent) -2px / 2.5rem 100% no-repeat local,
  linear-gradient(to left, var(--ground) 40%, transparent) calc(100% + 2px) / 2.5rem 100% no-repeat local,
  linear-gradient(to right, var(--shade), transparent) 0 / .6rem 100% no-repeat,
  linear-gradient(to left, var(--shade), transparent) 100% / .6rem 100% no-repeat; }
.scroll:focus-visible { outline: 2px solid var(--plan); outline-offset: 2px; }
/* Words of a drawing shrink with it: below this width they could not be read, and it is scrolled instead. */
.worded svg { min-width: 46rem; }
.said { margin: .3rem 0 0; font-size: .87rem; color: var(--quiet); overflow-wrap: anywhere; }
svg .at { stroke: var(--ink); stroke-width: 2; stroke-opacity: 1; fill-opacity: 1; }
@media (max-width: 40rem) { body { margin: 1.2rem auto; padding: 0 .9rem; } h1 { font-size: 1.25rem; }
  dl.facts { grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .8rem 1rem; }
  td, th { padding-right: .9rem; } .scroll td, .scroll th { white-space: nowrap; } }
footer { margin-top: 3rem; font-size: .82rem; }
@media print { body { margin: 0; max-width: none; } .said { display: none; } }
"""


def style() -> str:
    """The style sheet of reports: all that they have of styles."""
    return css() + _STYLE + words_css("svg")


@cache
def script() -> str:
    """The script that reads out the marks of pictures."""
    return (files("loadmaster.api.report") / "marks.js").read_text("utf-8")


def page(title: str, lead: str, sections: Sequence[str]) -> str:
    """A whole HTML document. ``title`` and ``lead`` are plain text, ``sections`` are HTML."""
    body = "\n".join(sections)
    reads_out = f"<script>{script()}</script>\n" if "<title>" in body else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{style()}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="lead">{escape(lead)}</p>
{body}
<footer>Loadmaster {loadmaster.__version__}</footer>
{reads_out}</body>
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
    """A table of plain text; the columns in ``numbers`` are set to the right, and those that are empty left out."""
    columns = [i for i in range(len(header)) if not rows or any(row[i] for row in rows)]

    def cells(tag: str, row: Sequence[str]) -> str:
        mark = {i: ' class="n"' for i in numbers}
        return "".join(f"<{tag}{mark.get(i, '')}>{escape(row[i])}</{tag}>" for i in columns)

    lines = [f"<tr>{cells('td', row)}</tr>" for row in rows]
    return _scrolled(f"<table><tr>{cells('th', header)}</tr>\n{chr(10).join(lines)}\n</table>", "table")


def keys(items: Sequence[tuple[str, str]]) -> str:
    """A legend: (name or value of a colour, plain text)."""
    # Drawn, because a page may forbid styles in its markup.
    spans = [
        f'<span class="item"><i class="key"><svg viewBox="0 0 1 1"><rect width="1" height="1" fill="{paint(colour)}"/>'
        f"</svg></i>{escape(text)}</span>"
        for colour, text in items
    ]
    return f'<p class="keys">{"".join(spans)}</p>'


def shown(picture: Picture) -> str:
    """Write a picture as HTML: the figure with its heading, caption and legend."""
    heading = f"<h2>{escape(picture.heading)}</h2>\n" if picture.heading else ""
    caption = f"<figcaption>{escape(picture.caption)}</figcaption>" if picture.caption else ""
    legend = keys(picture.legend) if picture.legend else ""
    drawn = picture.drawing.svg()
    if picture.drawing.has_words:
        drawn = _scrolled(drawn, picture.drawing.description, "scroll worded")
    return f"{heading}<figure>{drawn}{caption}</figure>{legend}"


def _scrolled(markup: str, what: str, sort: str = "scroll") -> str:
    """Markup that may be wider than the page: it is scrolled by itself, by keys too."""
    return f'<div class="{sort}" tabindex="0" role="group" aria-label="{escape(what)}">{markup}</div>'
