"""Hot rows read what the table reads, and count what numpy counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.executor.graph import HotRows, hottest, predicted_hit_rate, rows_within, unified
from loadmaster.executor.graph.features.gather import gather_hot_rows

TABLE = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))


def make(hot, table=TABLE, **options):
    return HotRows(unified(table, device="cpu", **options), torch.tensor(hot, dtype=torch.int64))


@settings(max_examples=40, deadline=None)
@given(st.sets(st.integers(0, 8)), st.lists(st.lists(st.integers(-9, 8), max_size=12), min_size=1, max_size=3))
def test_hot_rows_read_the_table_and_count_their_hits(hot, reads):
    rows = make(sorted(hot))
    for index in reads:
        assert torch.equal(rows[torch.tensor(index, dtype=torch.int64)], TABLE[torch.tensor(index, dtype=torch.int64)])
    read = np.concatenate([np.array(index, dtype=np.int64) % 9 for index in reads])
    expected = float(np.isin(read, sorted(hot)).mean()) if read.size else 0.0
    assert rows.hit_rate() == expected
    rows.forget_reads()
    assert rows.hit_rate() == 0.0


def test_any_shape_of_table_and_index():
    for table in (TABLE[:, 0].contiguous(), TABLE[:, :, None].expand(9, 5, 2).contiguous(), TABLE[:, 1:4]):
        index = torch.tensor([[1, 2], [2, 8]], dtype=torch.int32)
        assert torch.equal(make([2, 8], table)[index], table[index])


def test_bytes_on_the_device_are_rows_and_their_map():
    assert make([1, 4]).device_bytes == 2 * 20 + 9 * 4


@given(st.integers(0, 400))
def test_rows_within_a_budget_are_as_many_as_fit(budget_bytes):
    count = rows_within(budget_bytes, TABLE)
    if count:
        assert make(list(range(count))).device_bytes <= budget_bytes
    if count < 9:
        assert make(list(range(count + 1))).device_bytes > budget_bytes


def test_the_measured_hit_rate_is_the_predicted_one():
    """Reads drawn from known frequencies: the rates differ by what chance allows."""
    generator = torch.Generator().manual_seed(0)
    frequency = torch.rand(200, generator=generator).pow(4)
    hot = hottest(frequency, 40)
    rows = HotRows(unified(torch.zeros(200, 1), device="cpu"), hot)
    rows[torch.multinomial(frequency, 40_000, replacement=True, generator=generator)]
    assert rows.hit_rate() == pytest.approx(predicted_hit_rate(frequency, hot), abs=0.02)


def test_hot_rows_are_an_operator_that_compilers_see():
    slots = torch.full((9,), -1, dtype=torch.int32)
    slots[4] = 0
    counts = torch.zeros(2, dtype=torch.int64)
    torch.library.opcheck(gather_hot_rows, (TABLE, TABLE[4:5].clone(), slots, counts, torch.tensor([4, 1])))


@pytest.mark.parametrize(
    ("hot", "match"),
    [
        (torch.tensor([9]), "does not have"),
        (torch.tensor([-1]), "does not have"),
        (torch.tensor([3, 3]), "twice"),
        (torch.tensor([1.0]), "int64 or int32"),
        (torch.tensor([[1]]), "one dimension"),
    ],
)
def test_hot_rows_that_the_table_does_not_have_are_refused(hot, match):
    with pytest.raises(InputError, match=match):
        HotRows(unified(TABLE, device="cpu"), hot)


def test_what_is_no_table_or_index_is_refused():
    with pytest.raises(InputError, match="no unified tensor"):
        HotRows(TABLE, torch.tensor([1]))
    with pytest.raises(InputError, match="one piece"):
        HotRows(unified(TABLE, device="cpu").t(), torch.tensor([1]))
    for debug in (False, True):
        with pytest.raises(InputError, match="9 rows"):
            make([1], debug=debug)[torch.tensor([9])]
    with pytest.raises(InputError, match="no tensor"):
        make([1])[[1]]
    with pytest.raises(InputError, match="int64 or int32"):
        make([1])[torch.tensor([0.5])]
