"""Nothing below the executor imports torch: not the door, not a whole solve, not the processes it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Stands where torch is looked for first, in every process that is started: whoever imports it leaves a mark.
TRAP = """
import os
open(os.environ["TORCH_TRAP"], "a").write("imported\\n")
raise ImportError("torch was imported below the executor")
"""

DOORS = """
import importlib, sys
for name in ("loadmaster", "loadmaster.api", "loadmaster.api.client", "loadmaster.api.cli.app",
             "loadmaster.api.server.app", "loadmaster.api.worker.worker", "loadmaster.planner"):
    importlib.import_module(name)
assert "torch" not in sys.modules
"""

SOLVE = """
import sys
from loadmaster.models.kinds import read_problem
from loadmaster.models.memory.presets import chain
from loadmaster.planner import PlanOptions, plan

if __name__ == "__main__":
    problem = read_problem(chain(6, 1000))
    found = plan(problem, PlanOptions(budget_bytes=6000, time_limit_s=30.0))
    assert found.status == "optimal", found.status
    assert found.check["ok"]
    assert "torch" not in sys.modules
"""


def run_trapped(program: str, folder: Path) -> None:
    (folder / "torch.py").write_text(TRAP)
    (folder / "program.py").write_text(program)
    mark = folder / "mark"
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "TORCH_TRAP": str(mark)}
    done = subprocess.run(
        [sys.executable, str(folder / "program.py")], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert not mark.exists()


@pytest.mark.slow
def test_the_doors_open_without_torch(tmp_path: Path) -> None:
    run_trapped(DOORS, tmp_path)


def test_a_full_solve_runs_without_torch(tmp_path: Path) -> None:
    run_trapped(SOLVE, tmp_path)
