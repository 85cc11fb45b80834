"""Whole models on shares over gloo: random plans train as one device does, with the collectives that were predicted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT
from tests.executor.partition import step_scenarios
from tests.executor.partition.models import MADE
from tests.executor.worlds import reports


@pytest.mark.slow
def test_the_pages_script_trains_under_torchrun(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "split-over-gpus.md").read_text("utf-8")
    script = re.search(r"```python\n(.*?)```", page, re.S)
    assert script is not None
    # Lines of two ranks on one stream can run into each other.
    told = "open(f'ended{torch.distributed.get_rank()}', 'w').write(f'{loss.item():.3f}')\n"
    (tmp_path / "train.py").write_text(script[1] + told)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = [(tmp_path / f"ended{rank}").read_text() for rank in range(2)]
    assert said[0] == said[1]


@pytest.mark.slow
def test_models_train_on_two_ranks_as_on_one(tmp_path: Path) -> None:
    """On equal ranks, and where one has three times what the other has."""
    unequal = ((3, 1),)
    scenarios = {name: partial(step_scenarios.trains_alike, name, 1, (2,)) for name in MADE}
    for name in ("convolutional", "gpt", "experts"):
        scenarios[f"{name}, unequal"] = partial(step_scenarios.trains_alike, name, 1, unequal)
    scenarios |= {str(of): partial(step_scenarios.every_redistribution, of) for of in ((2,), unequal)}
    scenarios |= {
        "dropout": partial(step_scenarios.drops_alike, (2,)),
        "state": partial(step_scenarios.saves_and_loads, (2,)),
        "state, unequal": partial(step_scenarios.saves_and_loads, (2,), speeds="3,1"),
        "compiled": partial(step_scenarios.trains_alike, "recurrent, two steps", 1, (2,), backend="inductor"),
        "compiled convolutions": partial(step_scenarios.trains_alike, "convolutional", 1, (2,), backend="inductor"),
        "compiled, unequal": partial(step_scenarios.trains_alike, "perceptron", 1, unequal, backend="inductor"),
        "passes": partial(step_scenarios.passes_are_alike, "gpt", 2, ((7, 1),)),
    }
    said = reports(scenarios, tmp_path, 2, last=step_scenarios.a_rank_ends)
    assert said == {name: ["", ""] for name in scenarios} | {"last": ["", "nothing"]}


@pytest.mark.slow
def test_models_train_on_three_unequal_ranks_as_on_one(tmp_path: Path) -> None:
    scenarios = {
        "perceptron": partial(step_scenarios.trains_alike, "perceptron", 2, ((2, 1, 1),)),
        "redistributions": partial(step_scenarios.every_redistribution, ((2, 1, 1),)),
    }
    assert reports(scenarios, tmp_path, 3) == {name: [""] * 3 for name in scenarios}


@pytest.mark.slow
def test_models_train_on_a_mesh_as_on_one(tmp_path: Path) -> None:
    """Two axes: every rank traces for itself, so that a few models must do here."""
    meshes = ((2, 2), ((3, 1), 2))
    names = ("convolutional", "experts")
    scenarios = {f"{n} {of}": partial(step_scenarios.trains_alike, n, 1, of) for n in names for of in meshes}
    scenarios["one call"] = partial(step_scenarios.splits_in_one_call, (2, 2))
    meshes = ((2, 2), (4,), ((2, 1), (1, 3)))
    scenarios |= {str(of): partial(step_scenarios.every_redistribution, of) for of in meshes}
    assert reports(scenarios, tmp_path, 4) == {name: [""] * 4 for name in scenarios}
