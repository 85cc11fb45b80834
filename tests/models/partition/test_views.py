"""Views and what a split of them is on the tensor: examples by hand. What a share looks like is tried with torch."""

from __future__ import annotations

import pytest

from loadmaster.models.partition.tdl.formula import Formula
from loadmaster.models.partition.tdl.through_views import through_views
from loadmaster.models.partition.views import Cut, ShapeView


@pytest.mark.parametrize(
    ("view", "cut", "found"),
    [
        (ShapeView((4, 6)), Cut(1), (1, 1, 0)),
        (ShapeView((4, 6, 10)).reshaped((24, 10)), Cut(0), (0, 1, 4)),
        (ShapeView((4, 6, 10)).reshaped((24, 10)), Cut(0, 4), (1, 1, 6)),
        (ShapeView((24, 10)).reshaped((4, 6, 10)), Cut(0), (0, 1, 4)),
        (ShapeView((24, 10)).reshaped((4, 6, 10)), Cut(1), (0, 4, 6)),
        (ShapeView((2, 3, 24)).reshaped((2, 3, 4, 6)).permuted((0, 2, 1, 3)), Cut(1), (2, 1, 4)),
        (ShapeView((2, 1, 5)).expanded((2, 7, 5)), Cut(1), (-1, 1, 7)),
        (ShapeView((8, 6)).sliced(1, 0, 3), Cut(0), (0, 1, 8)),
    ],
)
def test_a_split_of_a_view_is_one_of_the_tensor(view: ShapeView, cut: Cut, found: tuple[int, int, int]) -> None:
    traced = view.traced(cut)
    assert traced == Cut(*found)


def test_what_is_sliced_cannot_be_split_along_the_slice() -> None:
    assert ShapeView((8, 6)).sliced(1, 0, 3).traced(Cut(1)) is None


def test_shapes_whose_dimensions_do_not_fit_have_no_view() -> None:
    assert ShapeView((4, 6)).reshaped((6, 4)) is None
    reshaped = ShapeView((4, 6)).reshaped((2, 12))
    assert reshaped is not None
    assert reshaped.shape == (2, 12)


def test_two_transpositions_are_none() -> None:
    assert ShapeView((3, 4)).permuted((1, 0)).permuted((1, 0)).is_identity
    assert not ShapeView((4, 4)).permuted((1, 0)).is_identity


def test_rows_are_split_along_the_batch_and_along_the_sequence() -> None:
    rows, result = ShapeView((4, 6, 10)).reshaped((24, 10)), ShapeView((4, 6, 8)).reshaped((24, 8))
    assert rows is not None
    assert result is not None
    formula = Formula(("mk", "kn"), ("mn",))
    seen = through_views(formula.strategies, [rows, ShapeView((8, 10)).permuted((1, 0)), result])
    found = {s.strategy.name: (*(need.part for need in s.strategy.inputs), *s.strategy.outputs) for s in seen}
    assert found == {
        "m": ("S0", "R", "S0"),
        "m.4": ("S1", "R", "S1"),
        "n": ("R", "S0", "S2"),
        "k": ("S2", "S1", "P"),
    }
    assert [s.strategy.shares_divide for s in seen] == [4, 6, 8, 10]


def test_heads_are_split_into_no_more_shares_than_there_are() -> None:
    heads = ShapeView((2, 3, 24)).reshaped((2, 3, 4, 6))
    assert heads is not None
    seen = through_views(Formula(("abcd",), ("abcd",)).strategies, [heads, ShapeView((2, 3, 4, 6))])
    by_name = {s.strategy.name: s.strategy for s in seen}
    assert by_name["c"].inputs[0].part == "S2"
    assert by_name["c"].shares_divide == 4
    assert "d" not in by_name  # a part of every head is no share of the tensor
