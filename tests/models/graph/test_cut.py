"""How traversals are cut: by rules that hold for all graphs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadmaster.models.graph.cut import LEAST_NUMBERS, SLOT_NUMBERS, ceil_power, cut_of, floor_power
from loadmaster.models.graph.schedule import Tile
from loadmaster.models.graph.spaces import Space

WIDEST = st.integers(1, 2_048)
ROWS = st.integers(1, 10**8)


@given(WIDEST, st.sampled_from(["target", "source_pair", "relation"]), ROWS, ROWS, ROWS, st.sampled_from([1, 4, 8]))
def test_a_program_holds_what_its_threads_have_registers_for(
    widest: int, to: Space, over: int, rows: int, longest: int, warps: int
) -> None:
    cut = cut_of(Tile(warps=warps), widest, to, over, rows, longest)
    at_once = ceil_power(widest) * max(cut.rows * cut.slots, cut.chunk_slots)
    assert at_once <= max(cut.warps * 32 * SLOT_NUMBERS, ceil_power(widest), LEAST_NUMBERS)
    for number in (cut.rows, cut.slots, cut.chunk_slots):
        assert number >= 1 and number == floor_power(number)


@given(WIDEST, ROWS, ROWS, ROWS)
def test_rows_are_cut_where_one_is_longer_than_the_bound(widest: int, over: int, rows: int, longest: int) -> None:
    cut = cut_of(Tile(), widest, "target", over, rows, longest)
    assert cut.bound is None or 0 < cut.bound < longest
    # However long a row is, a program makes no more steps than that of a row that is just not cut.
    longer = cut_of(Tile(), widest, "target", over, rows, 10**9)
    assert longer.bound is not None and (cut.bound or longest) <= longer.bound


def test_few_rows_are_all_cut() -> None:
    assert cut_of(Tile(), 64, "relation", 10**6, 50, 10**5).bound == 0
