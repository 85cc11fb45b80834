"""A picture: a drawing with its heading, caption and legend. Pages show it as HTML; here it becomes a PNG.

Both come from the same SVG. resvg (extra ``solver``) turns it into pixels, with a font that comes with the package, so
that it needs no display and no fonts of the system.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import as_file, files
from itertools import accumulate

from loadmaster.api.report.colours import in_light, paint, words_css

_FONT = "DejaVu Sans"
# Characters that names may have and XML may not.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# Pixels of the PNG for a unit of the drawing.
_ZOOM = 1.5
_MARGIN, _LINE = 20, 17
# Width of a letter of text 12 units high, on average.
_LETTER = 7.0
# Width of a sheet without pictures.
_EMPTY_WIDTH = 480.0
# By a class of its own: in a notebook a style reaches all of the page.
_STYLE = (
    f".loadmaster text {{ fill: var(--quiet); font-family: '{_FONT}', sans-serif; font-size: 12px; }} "
    ".loadmaster .strong { fill: var(--ink); font-weight: bold; } "
    ".loadmaster .title { fill: var(--ink); font-weight: bold; font-size: 15px; } "
    f"{words_css('.loadmaster')}"
)


@dataclass(frozen=True)
class Drawing:
    """SVG markup in a box of its own coordinates; ``description`` is for screen readers."""

    width: float
    height: float
    description: str
    markup: str

    @property
    def has_words(self) -> bool:
        """True if the drawing has words to read, which asks for a certain size."""
        return "<text" in self.markup

    def svg(self) -> str:
        """The drawing as an SVG element of a page."""
        # What is in an image is not read out, and could not be followed.
        role = "group" if "<a " in self.markup else "img"
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="{role}" aria-label="{escape(self.description)}" '
            f'xmlns="http://www.w3.org/2000/svg">\n{self.markup}\n</svg>'
        )


@dataclass(frozen=True)
class Picture:
    """A drawing and the words around it, plain text; ``legend`` is (name or value of a colour, what it stands for)."""

    drawing: Drawing
    heading: str = ""
    caption: str = ""
    legend: Sequence[tuple[str, str]] = ()


def png_bytes(title: str, pictures: Sequence[Picture]) -> bytes:
    """A PNG of pictures below each other, under a title."""
    from resvg_py import svg_to_bytes

    svg = sheet_svg(title, pictures)
    with as_file(files("loadmaster.api.report") / "fonts") as folder:
        return svg_to_bytes(svg_string=svg, zoom=_ZOOM, font_dirs=[str(folder)], font_family=_FONT)


def sheet_svg(title: str, pictures: Sequence[Picture]) -> str:
    """One SVG of all pictures, in the colours of a light page whatever is around it."""
    return _NO_XML.sub("\ufffd", in_light(_sheet(title, pictures)))


def _sheet(title: str, pictures: Sequence[Picture]) -> str:
    width = max((picture.drawing.width for picture in pictures), default=_EMPTY_WIDTH)
    parts: list[str] = []
    y = float(_MARGIN)

    def write(text: str, letters: float, style: str) -> None:
        nonlocal y
        for line in textwrap.wrap(text, int(width / letters)):
            y += _LINE
            parts.append(f'<text x="{_MARGIN}" y="{y}" class="{style}">{escape(line)}</text>')

    if title:
        write(title, 1.4 * _LETTER, "title")
    if not pictures:
        write("There is nothing to draw.", _LETTER, "")
    for picture in pictures:
        drawing = picture.drawing
        y += _LINE
        write(picture.heading, 1.15 * _LETTER, "strong")
        y += _LINE / 2
        parts.append(f'<g transform="translate({_MARGIN} {y})">{drawing.markup}</g>')
        y += drawing.height
        write(picture.caption, _LETTER, "")
        for row in _rows(picture.legend, width):
            y += 1.2 * _LINE
            for x, colour, text in row:
                parts.append(f'<rect x="{_MARGIN + x}" y="{y - 9}" width="10" height="10" fill="{paint(colour)}"/>')
                parts.append(f'<text x="{_MARGIN + x + 15}" y="{y}">{escape(text)}</text>')
    wide, high = width + 2 * _MARGIN, y + _MARGIN
    box = f'class="loadmaster" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}"'
    box += ' xmlns="http://www.w3.org/2000/svg" style="max-width: 100%; height: auto"'
    ground = '<rect width="100%" height="100%" fill="var(--ground)"/>'
    return f"<svg {box}><style>{_STYLE}</style>{ground}{''.join(parts)}</svg>"


def _rows(legend: Sequence[tuple[str, str]], width: float) -> Iterator[list[tuple[float, str, str]]]:
    """The legend in rows no wider than that: (x, colour, text)."""
    left = list(legend)
    while left:
        ends = list(accumulate(_LETTER * len(text) + 35 for _, text in left))
        count = max(1, sum(end <= width for end in ends))
        yield [(x, *item) for x, item in zip([0.0, *ends], left[:count], strict=False)]
        left = left[count:]
