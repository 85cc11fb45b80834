"""Recipes of training on shares over gloo: clipping, saving, resuming, averaging end where one device ends."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from tests.executor.partition import recipe_scenarios as recipes
from tests.executor.partition.recipe_scenarios import with_graph, with_modules
from tests.executor.worlds import reports

DOUBLE, SINGLE = torch.float64, torch.float32


@pytest.mark.slow
def test_ranks_train_as_one_device_and_resume_on_any_mesh(tmp_path: Path) -> None:
    """Two ranks, then four, which go on from what the two saved, then one device, which goes on from each."""
    two, unequal = with_graph(DOUBLE, (2,)), with_graph(DOUBLE, ((3, 1),))
    scenarios = {
        "single precision": partial(recipes.trains_alike, with_graph(SINGLE, (2,)), SINGLE),
        "unequal": partial(recipes.trains_alike, unequal, DOUBLE),
        "saved": partial(recipes.saves, two, tmp_path / "by two"),
        "plain state": partial(recipes.resumes_plainly, unequal, tmp_path / "plain"),
        "averages": partial(recipes.averages, unequal),
        "frozen": partial(recipes.unfreezing_is_refused, two),
        "checkpoints": partial(recipes.checkpoints_are_kept, (2,)),
        "checkpoints of modules": partial(recipes.checkpoints_of_modules_are_kept, (2,), ("shard",)),
        "dropout": partial(recipes.drops_alike_again, (2,)),
        "modes": partial(recipes.has_one_mode, (2,)),
        "optimizers": partial(recipes.updates_rightly, two, recipes.RIGHT),
        "optimizers, unequal": partial(recipes.updates_rightly, unequal, recipes.RIGHT - {"Muon"}),
    }
    assert reports(scenarios, _folder(tmp_path, "2"), 2) == {name: ["", ""] for name in scenarios}

    even, unequal = with_graph(DOUBLE, (2, 2)), with_graph(DOUBLE, ((3, 1), 2))
    roles = [("shard", "tensor"), ("replicate", "shard"), ("tensor", "tensor")]
    modules = {of: with_modules(DOUBLE, (2, 2), of) for of in roles}
    scenarios = {
        "even": partial(recipes.trains_alike, even, DOUBLE),
        "resumed, unequal": partial(recipes.resumes, unequal, tmp_path / "by two"),
        "saved, unequal": partial(recipes.saves, unequal, tmp_path / "by four"),
        "resumed in a row": partial(recipes.resumes, with_graph(DOUBLE, (4,)), tmp_path / "by four"),
        "optimizers": partial(recipes.updates_rightly, even, recipes.RIGHT),
        **{f"modules, {of}": partial(recipes.trains_alike, made, DOUBLE) for of, made in modules.items()},
        "modules, resumed": partial(recipes.resumes, modules["shard", "tensor"], tmp_path / "by four"),
        "modules, saved": partial(recipes.saves, modules["shard", "tensor"], tmp_path / "by modules"),
    }
    assert reports(scenarios, _folder(tmp_path, "4"), 4) == {name: [""] * 4 for name in scenarios}

    for by in ("two", "four", "modules"):
        recipes.resumes_on_one_device(tmp_path / f"by {by}")


def _folder(within: Path, name: str) -> Path:
    (within / name).mkdir()
    return within / name
