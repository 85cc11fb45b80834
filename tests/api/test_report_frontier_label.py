"""The line of the baseline in the picture of a frontier has its label where the curve is not."""

from __future__ import annotations

import pytest

from loadmaster.api.report.extras import Extras
from loadmaster.api.report.frontier import Point, points_picture


@pytest.mark.parametrize(("baseline", "anchor"), [(100.0, "start"), (300.0, "end")])
def test_the_label_is_where_the_curve_is_farther_from_the_line(baseline: float, anchor: str) -> None:
    points = [Point(1 << 30, 290.0, 200.0, 0.3), Point(2 << 30, 150.0, 140.0, 0.1), Point(3 << 30, 101.0, 100.0, 0.01)]
    picture = points_picture(points, ("budget", "bytes"), "us", Extras(baseline=("with enough of it", baseline)))
    (label,) = [line for line in picture.drawing.markup.splitlines() if "with enough of it" in line]
    assert f'text-anchor="{anchor}"' in label
