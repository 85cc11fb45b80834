"""The picture of a search: steps that stay until the next report, and nothing before there is anything to draw."""

from __future__ import annotations

import re

import pytest

from loadmaster.api.report.picture import Picture
from loadmaster.api.report.search import SearchPoint, search_picture


def corners(picture: Picture, colour: str) -> list[tuple[float, float]]:
    """Of the line in that colour, in picture coordinates."""
    (path,) = re.findall(rf'<path d="M([^"]*)" fill="none" stroke="var\(--{colour}\)"', picture.drawing.markup)
    return [(float(x), float(y)) for x, y in (corner.split() for corner in path.split("L"))]


def drawn(*points: tuple[float, float | None, float | None]) -> Picture:
    found = search_picture([SearchPoint(*point) for point in points], "us")
    assert found is not None
    return found


def test_nothing_is_drawn_before_there_is_a_plan_or_a_bound() -> None:
    assert search_picture([], "us") is None
    assert search_picture([SearchPoint(0.0, None, None), SearchPoint(3.0, None, None)], "us") is None


def test_a_plan_counts_until_a_better_one_is_there() -> None:
    picture = drawn((0.0, None, 10.0), (2.0, 30.0, None), (6.0, 20.0, 10.0), (10.0, None, None))
    plan, bound = corners(picture, "plan"), corners(picture, "reference")
    (first, before, after, last) = plan
    assert first[1] == before[1] < after[1] == last[1], "downwards is larger in a picture"
    assert before[0] == after[0]
    # 2, 6 and 10 seconds: equal distances.
    assert after[0] - first[0] == pytest.approx(last[0] - after[0], abs=0.1)
    assert len(bound) == 2 and bound[0][1] == bound[1][1] > last[1]
    assert bound[1][0] == last[0], "both go on to the end"
    assert [words for _, words in picture.legend] == ["best plan found", "proved bound"]


def test_what_is_between_begins_where_both_are_known() -> None:
    picture = drawn((0.0, None, 10.0), (5.0, 30.0, 10.0), (10.0, 30.0, 10.0))
    (area,) = re.findall(r'<path d="M([^"]*)Z" fill="var\(--band\)"', picture.drawing.markup)
    left = min(float(corner.split()[0]) for corner in area.split("L"))
    assert left == corners(picture, "plan")[0][0]


def test_one_of_the_two_is_enough() -> None:
    alone = drawn((1.0, 5.0, None), (2.0, 5.0, None))
    assert [words for _, words in alone.legend] == ["best plan found"] and "band" not in alone.drawing.markup
