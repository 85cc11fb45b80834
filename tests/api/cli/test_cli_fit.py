"""``fit``: a real model in a process of its own, planned here by hand until its measured peak keeps the budget."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadmaster import planner
from loadmaster.api.cli import app, executing
from loadmaster.api.cli import fit as command
from loadmaster.api.errors import ServiceError
from loadmaster.errors import LimitReachedError
from loadmaster.models.kinds import check_plan, read_plan, read_problem
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.presets import chain
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.units import show_bytes

pytest.importorskip("torch")

from tests import preloaded
from tests.executor.memory.hand_planner import HandPlanner

FACTORY = """
import torch
def make():
    print("a model may print what it likes: {}")
    layers = [torch.nn.Linear(64, 64) for _ in range(6)]
    model = torch.nn.Sequential(*(m for layer in layers for m in (layer, torch.nn.ReLU())))
    return model, (torch.randn(4096, 64), torch.randn(4096, 64)), torch.nn.functional.mse_loss
"""
ACTIVATION = 4096 * 64 * 4
BUDGET = 9 * ACTIVATION  # 6 results of ReLUs, 2 inputs, gradients: all of it does not fit


@pytest.fixture(autouse=True)
def planning_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HandPlanner:
    (tmp_path / "factory_to_fit.py").write_text(FACTORY)
    (tmp_path / "captured.json").write_text(json.dumps(chain(3, 100)))
    monkeypatch.chdir(tmp_path)
    by_hand = HandPlanner(step=1)

    def plan(problem: MemoryProblem, *_options: Any, **_callbacks: Any) -> MemoryPlan:
        return by_hand(problem)

    monkeypatch.setattr(planner, "plan", plan)
    return by_hand


@pytest.fixture
def quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process is a fork of one that has imported torch."""
    monkeypatch.setattr(executing, "subprocess", preloaded)


def fit(*arguments: str) -> int:
    return app.main(["fit", "factory_to_fit:make", "--backend", "eager", *arguments])


@pytest.mark.slow
def test_a_model_is_planned_run_and_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = {flag: tmp_path / name for flag, name in (("-o", "p.json"), ("--problem", "c.json"), ("--trace", "t.json"))}
    named = [part for flag, path in files.items() for part in (flag, str(path))]
    assert fit("--budget", str(BUDGET), "--optimizer", "adam", "--gradients-held", *named) == 0
    out, err = capfd.readouterr()
    assert "try 1: budget 9.0 MiB kept" in err and "may print" in err and "may print" not in out
    assert "peak, planned" in out and " *" in out
    plan, problem = read_plan(files["-o"]), read_problem(files["--problem"])
    assert plan.budget_bytes == BUDGET
    assert check_plan(problem, plan).peak_bytes <= BUDGET
    assert any(stage.computes for stage in plan.schedule.stages[1:])  # type: ignore[union-attr]
    events = json.loads(files["--trace"].read_text())["traceEvents"]
    measured = [e["args"]["allocated_bytes"] for e in events if e["name"] == "memory" and e["pid"] == 2]
    assert 0 < max(measured) <= BUDGET


@pytest.mark.slow
@pytest.mark.usefixtures("quick_start")
def test_show_finds_the_problem_and_the_measurement_that_fit_wrote(capfd: pytest.CaptureFixture[str]) -> None:
    """The plan is for the corrected problem; the one that was captured stays."""
    before = Path("captured.json").read_text()
    assert fit("--budget", "9MiB", "-o", "plan.json") == 0
    said = capfd.readouterr().err
    assert "problem: plan.problem.json" in said and "measured: plan.measured.json" in said
    assert app.main(["check", "plan.problem.json", "plan.json"]) == 0
    assert app.main(["show", "plan.json", "--html", "plan.html"]) == 0
    measured = json.loads(Path("plan.measured.json").read_text())
    assert ACTIVATION < max(measured["allocated_bytes"]) == measured["peak_bytes"] <= BUDGET
    assert f"line: measured, {show_bytes(measured['peak_bytes'])} at its peak" in Path("plan.html").read_text()
    assert fit("--budget", "90%", "-o", "plan.json", "--problem", "captured.json", "--force") == 0
    assert Path("captured.json").read_text() != before
    assert app.main(["check", "captured.json", "plan.json"]) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("quick_start")
@pytest.mark.parametrize("takes_it", [True, False])
def test_what_was_measured_goes_to_the_service_that_planned(
    takes_it: bool, planning_by_hand: HandPlanner, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A service that does not take it is no reason to lose the fit."""
    sent: dict[str, Any] = {}

    def send(plan_id: str, measurement: dict[str, Any]) -> None:
        if not takes_it:
            raise ServiceError("It is of an earlier release.", status=404)
        sent[plan_id] = measurement

    def planned(problem: MemoryProblem, *_: Any) -> tuple[MemoryPlan, str]:
        return planning_by_hand(problem), f"plan_{problem.sha256[:6]}"

    def service(_: object) -> Any:
        handle = lambda plan_id: SimpleNamespace(send_measurement=lambda found: send(plan_id, found))  # noqa: E731
        return contextlib.nullcontext(SimpleNamespace(plan=handle))

    monkeypatch.setattr(executing, "_planned", planned)
    monkeypatch.setattr(command, "connect", service)
    assert fit("--budget", "9MiB", "-o", "plan.json") == 0
    measured = json.loads(Path("plan.measured.json").read_text())
    plan_id = f"plan_{measured['problem_sha256'][:6]}"
    assert sent == ({plan_id: measured} if takes_it else {})
    assert ("its page shows what was measured" if takes_it else "an earlier release") in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("quick_start")
def test_json_has_plan_and_tries(capfd: pytest.CaptureFixture[str]) -> None:
    assert fit("--budget", "9MiB", "--json", "--fragmentation", "1MiB") == 0
    document = json.loads(capfd.readouterr().out)
    chosen = document["tries"][document["chosen"]]
    assert chosen["kept"] and chosen["used_bytes"] == chosen["measured"]["peak_bytes"] + (1 << 20) <= BUDGET
    assert document["plan"]["status"] == "feasible" and "schedule" not in document["plan"]


@pytest.mark.slow
@pytest.mark.usefixtures("quick_start")
def test_fragmentation_can_be_counted_as_measured(capfd: pytest.CaptureFixture[str]) -> None:
    assert fit("--budget", "9MiB", "--json", "--fragmentation", "measured") == 0
    tries = json.loads(capfd.readouterr().out)["tries"]
    assert all(t["used_bytes"] == t["measured"]["reserved_bytes"] for t in tries)


@pytest.mark.usefixtures("quick_start")
@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        pytest.param(["--budget", "2MiB"], 3, "no plan fits 2.0 MiB", marks=pytest.mark.slow),
        (["--budget", "half"], 2, "is not a size"),
        pytest.param(["--budget", "9MiB", "--snapshot", "s.pickle"], 2, "keeps no history", marks=pytest.mark.slow),
        (["--budget", "9MiB", "--tries", "0"], 2, "at least one try"),
        (["--budget", "9MiB", "--knob-tries", "-1"], 2, "is no number of tries"),
        pytest.param(["--budget", "9MiB", "--offload"], 2, "no link to the host", marks=pytest.mark.slow),
        (["--budget", "9MiB", "--trace", "nowhere/t.json"], 2, "does not exist"),
        pytest.param(["--budget", "9MiB", "--device", "abacus"], 2, "--device: cannot", marks=pytest.mark.slow),
        (["--budget", "9MiB", "--time-limit", "0"], 2, "--time-limit: "),
        (["--budget", "9MiB", "-o", "captured.json"], 2, "-o: holds a problem already"),
        (["--budget", "9MiB", "-o", "plan.json", "--problem", "captured.json"], 2, "over it with --force"),
        (["--budget", "9MiB", "--force", "-o", "p.json", "--trace", "p.json"], 2, "--trace: is -o"),
        (["--budget", "9MiB", "--force", "-o", "p.json", "--trace", "p.problem.json"], 2, "--trace: is --problem"),
    ],
)
def test_what_cannot_be_done_is_said(
    arguments: list[str], status: int, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert fit(*arguments) == status
    assert text in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("quick_start")
def test_a_planner_that_gives_up_ends_the_other_process(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def plan(*_arguments: Any, **_callbacks: Any) -> MemoryPlan:
        raise LimitReachedError("the time was up")

    monkeypatch.setattr(planner, "plan", plan)
    assert fit("--budget", "9MiB") == LimitReachedError.exit_status
    assert "the time was up" in capfd.readouterr().err


BREAKING = """
import torch
class Branching(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def forward(self, x):
        y = self.layer(x)
        return y * 2 if y.sum().item() > 0 else y
def make():
    return Branching(), (torch.randn(4096, 64), torch.randn(4096, 64)), torch.nn.functional.mse_loss
"""


@pytest.mark.slow
@pytest.mark.usefixtures("quick_start")
def test_a_model_without_a_plan_runs_under_the_knob(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The one command compiles nothing but torch.compile's own step, and says which line keeps it from a plan."""
    (tmp_path / "factory_that_breaks.py").write_text(BREAKING)
    options = ["--budget", "64MiB", "--json", "-o", "plan.json", "--trace", "t.json"]
    assert app.main(["fit", "factory_that_breaks:make", *options]) == 0
    out, err = capfd.readouterr()
    document = json.loads(out)
    assert document["plan"] is None and document["tries"] == [] and document["chosen"] is None
    assert document["knob_tries"][document["chosen_knob"]]["kept"]
    assert "y.sum().item() > 0" in document["report"] and "planning" not in document["seconds"]
    assert "torch.compile, try 1: budget 64.0 MiB kept" in err and "-o: the step runs no plan" in err
    assert not Path("plan.json").exists()
    assert json.loads(Path("t.json").read_text())["traceEvents"]
    # A step that takes longer than the last time is looked into again; on a busy machine it may: let it have time.
    for kept in Path(os.environ["LOADMASTER_MEASUREMENT_CACHE"]).rglob("*.json"):
        kept.write_text(re.sub(r'"step_us": [0-9.e+]+', '"step_us": 1e12', kept.read_text()))
    assert app.main(["fit", "factory_that_breaks:make", "--budget", "64MiB"]) == 0
    out, err = capfd.readouterr()
    assert "activation_memory_budget 1 *" in out and "the last time, too" in err
    assert app.main(["fit", "factory_that_breaks:make", "--budget", "64MiB", "--knob-tries", "0"]) == 2
    assert "cannot be traced as one graph" in capfd.readouterr().err


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(executing.importlib.util, "find_spec", lambda name: None)
    assert fit("--budget", "9MiB") == 2
    assert "pip install '.[torch]'" in capfd.readouterr().err
