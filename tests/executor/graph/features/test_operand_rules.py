"""Where operators on unified tensors compute: every row of the table, and random operands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.executor.graph.features.unified_tensor import Placement, expect_affinity, placement

ON_GPU = Placement("gpu", "gpu")


@pytest.mark.parametrize(
    ("affinities", "cuda", "cpu", "expected"),
    [
        (["gpu"], 0, 0, ON_GPU),
        (["gpu"], 1, 0, ON_GPU),
        (["gpu"], 0, 1, Placement("host", "gpu")),
        (["gpu", "host"], 0, 0, ON_GPU),
        (["host", "gpu"], 0, 2, Placement("host", "gpu")),
        (["host"], 0, 0, Placement("host", "host")),
        (["host"], 0, 3, Placement("host", "host")),
        (["host"], 2, 0, Placement("gpu", "host")),
        (["host", "host"], 0, 0, Placement("host", "host")),
    ],
)
def test_operands_decide_where_an_operator_computes(affinities, cuda, cpu, expected):
    assert placement(affinities, cuda, cpu) == expected


@given(st.lists(st.sampled_from(["gpu", "host"]), min_size=1, max_size=4), st.integers(0, 3), st.integers(0, 3))
def test_a_processor_never_computes_with_cuda_tensors_nor_a_gpu_with_ordinary_host_memory(affinities, cuda, cpu):
    if cuda and cpu:
        with pytest.raises(InputError, match="no device that reads them all"):
            placement(affinities, cuda, cpu)
        return
    found = placement(affinities, cuda, cpu)
    assert found.computes_on == "gpu" or not cuda
    assert found.computes_on == "host" or not cpu
    assert found == placement(affinities[::-1], cuda, cpu)


def test_an_unknown_affinity_is_refused():
    with pytest.raises(InputError, match="affinity"):
        expect_affinity("cuda")
