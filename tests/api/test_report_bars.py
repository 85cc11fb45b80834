"""Bars with a name and words before them: as long as what they stand for, none over another thing."""

from __future__ import annotations

import re

import pytest

from loadmaster.api.report.bars import labelled_bars
from loadmaster.api.report.page import html_table


@pytest.mark.parametrize("longest", [1, 40, 60, 300])
def test_bars_are_in_proportion_and_within_the_picture(longest: int) -> None:
    rows = [("n" * longest, 30.0, "30.0 us, 4.10 MiB"), ("x", 10.0, "10.0 us"), ("none", 0.0, "0 us")]
    drawing = labelled_bars(rows, "three")
    bars = [
        tuple(map(float, found)) for found in re.findall(r'<rect x="([\d.]+)"[^>]* width="([\d.]+)"', drawing.markup)
    ]
    starts, widths = {x for x, _ in bars}, [width for _, width in bars]
    (start,) = starts
    assert widths[1] == pytest.approx(widths[0] / 3, abs=0.02) and widths[2] == 0
    assert start + widths[0] == pytest.approx(drawing.width, abs=0.02) and widths[0] > 300
    ends = [float(x) for x in re.findall(r'<text x="([\d.]+)"[^>]*text-anchor="end"', drawing.markup)]
    assert len(ends) == 6 and max(ends) < start


def test_a_table_has_no_column_in_which_nothing_stands() -> None:
    html = html_table(["a", "b", "c"], [["1", "", "3"], ["", "", "4"]], numbers=(2,))
    assert re.findall(r"<th[^>]*>(\w)", html) == ["a", "c"]
    assert html.count('class="n"') == 3 and '<td class="n">4</td>' in html
    assert re.findall(r"<th[^>]*>(\w)", html_table(["a", "b"], [])) == ["a", "b"]
