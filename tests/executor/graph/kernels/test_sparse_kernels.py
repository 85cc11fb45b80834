"""The Triton kernels of g-SpMM and g-SDDMM compute what the plain PyTorch forms do, in Triton's interpreter."""

from __future__ import annotations

import pytest

from tests.executor.interpreted import MARKS, said_by

CASES = (
    "sums_of_every_message",
    "every_reduction",
    "ties_infinities_and_nan_under_max_and_min",
    "winners_decide_which_edges_count",
    "edges_values_of_every_shape",
    "softmax_and_its_gradient",
    "a_graph_without_edges",
)

pytestmark = MARKS


@pytest.fixture(scope="module")
def said():
    return said_by("tests.executor.graph.kernels.interpreted_sparse_kernels")


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_in_the_interpreter(said, name):
    assert said[name] == ""


def test_every_case_is_run(said):
    assert tuple(said) == CASES
