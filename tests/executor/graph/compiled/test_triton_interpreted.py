"""Generated kernels compute what plain PyTorch computes: on a CPU, where Triton is installed (its interpreter)."""

from __future__ import annotations

import pytest

from tests.executor.interpreted import MARKS, said_by

CASES = (
    "layers_of_the_library_with_their_gradients",
    "random_layers_orders_and_schedules",
    "one_kernel_on_several_graphs",
    "long_rows_in_chunks",
    "traversals_of_every_reduction",
    "great_scores_stay_finite",
    "maps_of_every_operator",
    "weights_longer_than_a_program",
    "products_in_parts",
    "products_with_more_made_from_them",
    "offsets_of_64_bits",
    "shorter_numbers",
    "graphs_without_edges",
)

pytestmark = MARKS


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    kernels = str(tmp_path_factory.mktemp("kernels"))
    return said_by("tests.executor.graph.compiled.triton_interpreted", timeout_s=400, LOADMASTER_KERNEL_CACHE=kernels)


@pytest.mark.parametrize("name", CASES)
def test_a_generated_kernel_in_the_interpreter(said, name):
    assert said[name] == ""


def test_every_case_is_run(said):
    assert tuple(said) == CASES
