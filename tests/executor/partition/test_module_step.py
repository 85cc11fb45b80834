"""Models split into their modules over gloo: they train as on one device, or are refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.executor.partition import module_scenarios
from tests.executor.worlds import reports


@pytest.mark.slow
def test_modules_train_on_two_ranks_as_on_one(tmp_path: Path) -> None:
    scenarios = {
        "llama": partial(module_scenarios.trains_alike, "llama", [("tensor",)], (2,)),
        "gathers": partial(module_scenarios.gathers_as_planned, (2,)),
        "one call": partial(module_scenarios.splits_in_one_call, (2,)),
        "refused": partial(module_scenarios.refuses, (2,)),
    }
    assert reports(scenarios, tmp_path, 2) == {name: ["", ""] for name in scenarios}


@pytest.mark.slow
def test_modules_train_on_a_mesh_as_on_one(tmp_path: Path) -> None:
    every = [("replicate", "shard"), ("shard", "shard"), ("shard", "tensor"), ("tensor", "replicate")]
    scenarios = {
        "perceptron": partial(module_scenarios.trains_alike, "perceptron", every, (2, 2)),
        "gathered once": partial(module_scenarios.trains_alike, "perceptron", every[:3], (2, 2), once=True),
        "by hand": partial(module_scenarios.methods_train_alike, "perceptron", (2, 2)),
    }
    assert reports(scenarios, tmp_path, 4) == {name: [""] * 4 for name in scenarios}
