"""The Triton kernels compute what the PyTorch forms compute: on a CPU, where Triton is installed (its interpreter)."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
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

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton (the triton extra)"),
]


@pytest.fixture(scope="module")
def said():
    program = [sys.executable, "-m", "tests.executor.memory.implementations.interpreted_kernels"]
    ended = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_in_the_interpreter(said, name):
    assert said[name] == ""


def test_every_case_is_run(said):
    assert tuple(said) == CASES
