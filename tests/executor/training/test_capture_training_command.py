"""``loadmaster capture MODULE:FACTORY training`` writes a problem that all commands take, or says why it cannot."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from loadmaster.api.cli import app
from loadmaster.executor.training import disk_rates
from loadmaster.executor.training.command import main
from loadmaster.models.kinds import load_problem
from loadmaster.models.training.problem import TrainingProblem
from tests.executor.training.whole_steps import on_the_cpu, peak_of

FACTORY = """
import torch
from tests.executor.training.planned_nets import Net

def make():
    return Net(), (torch.zeros(4, 8, dtype=torch.long),)
"""


@pytest.fixture(autouse=True)
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net_factory.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "net_factory", raising=False)


def test_the_problem_goes_through_all_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_the_cpu(monkeypatch)
    flags = ("--optimizer", "adam", "--accumulate", "3", "--clip-grad-norm", "1.0", "--autocast", "bfloat16")
    assert main(["net_factory:make", *flags, "--backend", "eager", "--name", "mine", "-o", "problem.json"]) == 0
    said = capsys.readouterr()
    assert "mine" in said.err and "no plan needs less" in said.err
    problem = load_problem("problem.json")
    assert isinstance(problem, TrainingProblem)
    assert (problem.name, problem.micro_batches, problem.clip_grad_norm) == ("mine", 3, True)
    assert problem.budget_bytes is None
    budget = str(peak_of(problem, 0))
    assert app.main(["plan", "problem.json", "--budget", budget, "--time-limit", "1", "-o", "plan.json"]) == 0
    assert app.main(["check", "problem.json", "plan.json"]) == 0
    assert app.main(["show", "plan.json", "--problem", "problem.json"]) == 0


def test_a_disk_is_measured_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_the_cpu(monkeypatch)
    monkeypatch.setattr(disk_rates, "SAMPLE_BYTES", 50_000)
    flags = ("--backend", "eager", "-o", "problem.json")
    assert main(["net_factory:make", "--disk", str(tmp_path), *flags]) == 0
    problem = load_problem("problem.json")
    assert isinstance(problem, TrainingProblem)
    assert problem.disk is not None and problem.disk.to_gbps > 0 and problem.disk.capacity_bytes
    capsys.readouterr()
    assert main(["net_factory:make", "--disk", str(tmp_path / "none"), *flags]) == 2
    assert "--disk: is no folder" in capsys.readouterr().err


def test_host_memory_is_what_the_user_allows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_the_cpu(monkeypatch)
    flags = ("--backend", "eager", "-o", "problem.json")
    assert main(["net_factory:make", "--host-memory", "1MiB", *flags]) == 0
    problem = load_problem("problem.json")
    assert isinstance(problem, TrainingProblem) and problem.host.capacity_bytes == 1 << 20
    for wrong, says in (("999TiB", "is more than the host has: "), ("much", "is not a size"), ("50%", "is a share")):
        capsys.readouterr()
        assert main(["net_factory:make", "--host-memory", wrong, *flags]) == 2
        said = capsys.readouterr().err
        assert "--host-memory:" in said and says in said and wrong in said


def test_without_cuda_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cpu", "cuda"):
        assert main(["net_factory:make", "--device", device]) == 2
        error = capsys.readouterr().err
        assert "error: --device: cannot be measured: a whole step is planned for a CUDA device" in error
        assert "Run where PyTorch sees a CUDA device" in error
    assert "net_factory" not in sys.modules  # before the model is made
