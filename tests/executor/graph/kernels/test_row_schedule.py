"""A schedule takes every row and every edge once, rows of like length together."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.executor.graph.kernels import spmm_schedule
from loadmaster.executor.graph.kernels.spmm_schedule import CHUNK_EDGES, SMALL_DEGREE, TINY_DEGREE, schedule_rows

degrees = st.lists(st.one_of(st.integers(0, 60), st.sampled_from((0, 4, 5, 48, 49, 512, 513, 1024, 1500))), max_size=40)


@given(degrees, st.sampled_from((torch.int32, torch.int64)))
def test_every_row_and_every_edge_of_a_split_row_come_once(degree: list[int], dtype: torch.dtype) -> None:
    ptr = torch.tensor([0, *degree]).cumsum(0).to(dtype)
    made = schedule_rows(ptr)
    whole = made.tiny + made.small + made.large
    assert whole + made.split == len(degree)
    if made.order.numel() == 0:
        assert max(made[1:4]) == len(degree) and made.split == 0
        return
    assert made.order.dtype == dtype
    order = made.order.tolist()
    rows, rest = order[: len(degree)], order[len(degree) :]
    assert sorted(rows) == list(range(len(degree)))
    first, rest = rest[: made.split + 1] if made.split else [], rest[made.split + 1 :] if made.split else rest
    chunk_rows, begins, ends = (rest[i * made.chunks : (i + 1) * made.chunks] for i in range(3))
    covered = {row: [] for row in rows[whole:]}
    for i, row in enumerate(rows[whole:]):
        for chunk in range(first[i], first[i + 1]):
            assert chunk_rows[chunk] == row and 0 < ends[chunk] - begins[chunk] <= CHUNK_EDGES
            covered[row] += range(begins[chunk], ends[chunk])
    assert covered == {row: list(range(int(ptr[row]), int(ptr[row + 1]))) for row in rows[whole:]}


@given(degrees)
def test_no_row_is_in_a_launch_for_shorter_ones(degree: list[int]) -> None:
    made = schedule_rows(torch.tensor([0, *degree]).cumsum(0))
    rows = made.order.tolist() or list(range(len(degree)))
    parts = (rows[: made.tiny], rows[made.tiny : made.tiny + made.small], rows[: len(degree) - made.split])
    for part, most in zip(parts, (TINY_DEGREE, SMALL_DEGREE, CHUNK_EDGES), strict=True):
        assert all(degree[row] <= most for row in part)
    assert all(degree[row] > CHUNK_EDGES for row in rows[len(degree) - made.split : len(degree)])


def test_rare_short_rows_join_a_launch_of_longer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    ptr = torch.tensor([0, *[10] * 40, 1]).cumsum(0)
    assert schedule_rows(ptr).counts == [0, 41, 0, 0, 0] and schedule_rows(ptr).order.numel() == 0
    monkeypatch.setattr(spmm_schedule, "RARE", 100)
    assert schedule_rows(ptr).counts == [1, 40, 0, 0, 0]


@pytest.mark.parametrize("block", [1, 2, 16, 32, 64, 128, 256, 512])
def test_tiles_fit_the_registers_of_their_warps(block: int) -> None:
    tiles = pytest.importorskip("loadmaster.executor.graph.kernels.spmm_triton", exc_type=ImportError)
    for most in (tiles.TINY, tiles.SMALL, tiles.LARGE):
        tile = tiles.fit(most, block)
        assert tile.rows * tile.slots * block <= max(512 * tile.warps, block)
        for number in tile:
            assert number & (number - 1) == 0
