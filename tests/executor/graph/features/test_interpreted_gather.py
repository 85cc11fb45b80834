"""The gather kernel reads what PyTorch's indexing reads: on a CPU, where Triton is installed (its interpreter)."""

from __future__ import annotations

import pytest

from tests.executor.interpreted import MARKS, said_by

CASES = (
    "rows_of_every_width_and_dtype",
    "narrow_indices_one_row_and_none",
    "tables_that_begin_behind_a_line_or_have_longer_strides",
    "launches_of_other_sizes",
    "rows_out_of_range_give_zeros",
    "hot_rows_and_their_counts",
    "canaries_live",
)

pytestmark = MARKS


@pytest.fixture(scope="module")
def said():
    return said_by("tests.executor.graph.features.interpreted_gather")


@pytest.mark.parametrize("name", CASES)
def test_the_gather_kernel_in_the_interpreter(said, name):
    assert said[name] == ""


def test_every_case_of_the_gather_kernel_is_run(said):
    assert tuple(said) == CASES
