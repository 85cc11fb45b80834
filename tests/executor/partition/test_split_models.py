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
from tests.executor.collective.worlds import reports
from tests.executor.partition import step_scenarios
from tests.executor.partition.models import MADE


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
    scenarios = {name: partial(step_scenarios.trains_alike, name, 2, (2,)) for name in MADE}
    scenarios |= {
        "redistributions": partial(step_scenarios.every_redistribution, (2,)),
        "dropout": partial(step_scenarios.drops_alike, (2,)),
        "state": partial(step_scenarios.saves_and_loads, (2,)),
        "compiled": partial(step_scenarios.trains_alike, "recurrent", 1, (2,), backend="inductor"),
        "compiled convolutions": partial(step_scenarios.trains_alike, "convolutional", 1, (2,), backend="inductor"),
    }
    said = reports(scenarios, tmp_path, 2, last=step_scenarios.a_rank_ends)
    assert said == {name: ["", ""] for name in scenarios} | {"last": ["", "nothing"]}


@pytest.mark.slow
def test_models_train_on_a_mesh_as_on_one(tmp_path: Path) -> None:
    """Two axes: every rank traces for itself, so that a few models must do here."""
    scenarios = {name: partial(step_scenarios.trains_alike, name, 2, (2, 2)) for name in ("convolutional", "experts")}
    scenarios["one call"] = partial(step_scenarios.splits_in_one_call, (2, 2))
    scenarios |= {str(sizes): partial(step_scenarios.every_redistribution, sizes) for sizes in ((2, 2), (4,))}
    assert reports(scenarios, tmp_path, 4) == {name: [""] * 4 for name in scenarios}
