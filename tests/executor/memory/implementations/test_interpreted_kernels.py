"""The Triton kernels compute what the PyTorch forms compute: on a CPU, where Triton is installed (its interpreter)."""

from __future__ import annotations

import pytest

from tests.executor.interpreted import MARKS, said_by

CASES = (
    "pack_inside_and_masked_gradient",
    "pool_offsets_and_their_backward",
    "seeded_dropout",
    "batch_norm_apply",
    "layer_norm_apply",
    "norm_input",
    "cross_entropy_rows_and_their_gradients",
    "scaled",
)

pytestmark = MARKS


@pytest.fixture(scope="module")
def said():
    return said_by("tests.executor.memory.implementations.interpreted_kernels")


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_in_the_interpreter(said, name):
    assert said[name] == ""


def test_every_case_is_run(said):
    assert tuple(said) == CASES
