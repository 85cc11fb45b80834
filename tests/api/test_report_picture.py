"""Pictures: the same drawing in a page and as a PNG."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.image import imread

from loadmaster.api.report.colours import DARK, LIGHT, css, in_light
from loadmaster.api.report.memory.pictures import fates, over_time, png, residency
from loadmaster.api.report.memory.plan_page import plan_page
from loadmaster.api.report.memory.view import view
from loadmaster.api.report.page import shown
from loadmaster.api.report.picture import Drawing, Picture, png_bytes
from loadmaster.models.kinds import read_problem
from loadmaster.models.memory.presets import chain
from tests.api.cli.plans_by_hand import MEGABYTE, plan_by_hand

Pixels = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
RED, GREEN = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)


def pixels(title: str, *pictures: Picture) -> Pixels:
    found: Pixels = imread(io.BytesIO(png_bytes(title, pictures)))[:, :, :3]
    return found


def box(colour: str, **words: object) -> Picture:
    return Picture(Drawing(960, 40, "a box", f'<rect width="960" height="40" fill="{colour}"/>'), **words)  # type: ignore[arg-type]


def rows_of(found: Pixels, colour: tuple[float, float, float]) -> list[int]:
    """Rows with that colour, from the top."""
    return [int(n) for n in np.flatnonzero((np.abs(found - colour) < 0.02).all(axis=2).any(axis=1))]


def test_pictures_lie_below_each_other_with_their_legends() -> None:
    found = pixels("two", box("#ff0000"), box("#00ff00", legend=[("#ff0000", "red"), ("plan", "the plan")]))
    red, green = rows_of(found, RED), rows_of(found, GREEN)
    first, last = ([n for n in red if (n < min(green)) == before] for before in (True, False))
    assert len(first) == pytest.approx(60, abs=2) and len(green) == pytest.approx(60, abs=2)
    assert max(first) < min(green) <= max(green) < min(last)
    assert rows_of(found, tuple(int(LIGHT["plan"][n : n + 2], 16) / 255 for n in (1, 3, 5))) == last  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["title", "heading", "caption", "legend", "inside"])
def test_words_are_seen_and_mean_no_markup(place: str) -> None:
    """With the package's own font: a container has none."""

    def drawn(words: str) -> Pixels:
        more = {"heading": words} if place == "heading" else {"caption": words} if place == "caption" else {}
        more |= {"legend": [("#00ff00", words)]} if place == "legend" else {}
        if place != "inside":
            return pixels(words if place == "title" else "x", box("#ff0000", **more))
        escaped = words.replace("&", "&amp;").replace("<", "&lt;")
        return pixels("x", Picture(Drawing(960, 40, "", f'<text x="9" y="20">{escaped}</text>')))

    plain = drawn("aa")
    assert np.abs(drawn("gg") - plain).max() > 0.3
    assert drawn("<&>'\"\x1b\0").shape == plain.shape


def test_long_words_are_wrapped_and_long_legends_too() -> None:
    short, long = pixels("word " * 5, box("#ff0000")), pixels("word " * 60, box("#ff0000"))
    assert long.shape[0] > short.shape[0] and long.shape[1] == short.shape[1]
    legend = [("#00ff00", f"rank {n}") for n in range(40)]
    bands = rows_of(pixels("x", box("#ff0000", legend=legend)), GREEN)
    assert sum(b - a > 1 for a, b in pairwise(bands)) == 3


def test_a_page_and_a_png_have_the_same_drawing() -> None:
    document = chain(6, MEGABYTE)
    seen = view(read_problem(document), plan_by_hand(document, 8 * MEGABYTE))
    page = plan_page(seen)
    for picture in (over_time(seen), fates(seen), residency(seen)):
        assert shown(picture) in page
        described = ET.fromstring(picture.drawing.svg()).attrib
        assert described["role"] == "img" and described["aria-label"]
    assert png(seen).startswith(b"\x89PNG")


def test_every_colour_has_a_value_for_dark() -> None:
    assert LIGHT.keys() == DARK.keys()
    assert all(f"--{name}: {value};" in css() for name, value in LIGHT.items())
    assert in_light('fill="var(--plan)"') == f'fill="{LIGHT["plan"]}"'
