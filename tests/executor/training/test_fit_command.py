"""``loadmaster fit`` plans and tries a whole step where the budget asks for it, as ``fit`` in Python does."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from loadmaster import load_plan, load_problem, planner
from loadmaster.api.cli import app
from loadmaster.api.cli import fit as fit_module
from loadmaster.errors import LoadmasterError
from loadmaster.executor import fit_command
from loadmaster.executor.fitting import Fitting
from loadmaster.executor.memory.fit.fitter import Fitter
from loadmaster.executor.steps.factory import report
from loadmaster.executor.training.layers import layers_of
from loadmaster.models.kinds import read_plan, write_problem
from loadmaster.models.training.measurement import read_measurement
from loadmaster.models.training.plan import TrainingPlan
from loadmaster.models.training.problem import TrainingProblem
from tests.executor.training.planned_nets import Net, problem_of
from tests.executor.training.whole_steps import Meters, Planned, on_the_cpu, peak_of

FACTORY = """
import torch
from tests.executor.training.planned_nets import Net

def make():
    torch.manual_seed(0)
    return Net(), (torch.zeros(4, 8, dtype=torch.long),)
"""


@pytest.fixture(autouse=True)
def meters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Meters:
    """Whole steps are planned for the CPU, by hand, in this process."""
    (tmp_path / "whole_factory.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "whole_factory", raising=False)
    by_hand = Planned()
    monkeypatch.setattr(planner, "plan", lambda problem, *_, **__: by_hand(problem))
    monkeypatch.setattr(fit_module, "converse", converse)
    return on_the_cpu(monkeypatch)


class Here:
    """The process that plans, without another process. All goes through JSON, as between both."""

    def __init__(self, receive: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
        self._receive = receive

    def tell(self, message: dict[str, Any]) -> dict[str, Any] | None:
        return self._receive(json.loads(json.dumps(message)))

    def plan(self, problem: Any) -> Any:
        answer = self.tell({"problem": write_problem(problem)})
        assert answer is not None
        return read_plan(answer["plan"])


def converse(function: str, task: Any, receive: Callable[[dict[str, Any]], dict[str, Any] | None]) -> int:
    assert function == "loadmaster.executor.fit_command:main"
    try:
        fit_command.run(Namespace(**json.loads(json.dumps(task))), Here(receive))  # type: ignore[arg-type]
    except LoadmasterError as error:
        return report(error, verbose=False)
    return 0


def fit(*flags: str) -> int:
    return app.main(["fit", "whole_factory:make", "--backend", "eager", *flags])


def tight(micro_batches: int = 1) -> int:
    """A budget under which some of the state must be away."""
    net = Net()
    return peak_of(problem_of(layers_of(net, torch.optim.AdamW(net.parameters())), micro_batches=micro_batches), 1)


def test_a_whole_step_is_planned_tried_and_written(meters: Meters, capsys: pytest.CaptureFixture[str]) -> None:
    meters.peaks = [1, tight() - 7]
    flags = ("--budget", str(tight()), "--optimizer", "adam", "-o", "plan.json", "--trace", "trace.json")
    assert fit(*flags) == 0
    out, err = capsys.readouterr()
    assert "The whole step is planned, since parameters, gradients and optimizer state take" in err
    assert "planning Net (training): layers 5" in err
    assert "try 1: budget" in err and "kept" in err
    assert "groups" in out and "peak, planned" in out and "1 *" in out
    plan, problem = load_plan("plan.json"), load_problem("plan.problem.json")
    assert isinstance(plan, TrainingPlan) and isinstance(problem, TrainingProblem)
    assert problem.budget_bytes == tight()
    measured = read_measurement(json.loads(Path("plan.measured.json").read_text()), plan)
    assert (measured.peak_bytes, measured.step_us) == (tight() - 7, 201.0)
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    assert {1, 2} <= {event["pid"] for event in events}
    assert app.main(["show", "plan.json", "--html", "plan.html"]) == 0


def test_a_step_over_the_budget_is_planned_again(meters: Meters, capsys: pytest.CaptureFixture[str]) -> None:
    budget = tight()
    meters.peaks = [1, budget + 100, 1]
    assert fit("--budget", str(budget), "--optimizer", "adam", "--json") == 0
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert [tried["kept"] for tried in said["tries"]] == [False, True] and said["chosen"] == 1
    assert said["tries"][0]["measured"]["peak_bytes"] == budget + 100
    assert said["plan"]["kind"] == "training" and said["knob_tries"] == []
    assert "try 1: budget" in err and "exceeded by" in err and "try 2: budget" in err


def test_no_plan_that_keeps_the_budget_is_exit_status_3(meters: Meters, capsys: pytest.CaptureFixture[str]) -> None:
    meters.peaks = [tight() + 100]
    assert fit("--budget", str(tight()), "--optimizer", "adam", "--tries", "1") == 3
    err = capsys.readouterr().err
    assert "try 1: budget" in err and f"Ask for at least {tight() + 100} bytes" in err


def test_clipping_and_accumulation_are_part_of_the_step(caplog: pytest.LogCaptureFixture) -> None:
    recipe = ("--optimizer", "adam", "--accumulate", "3", "--clip-grad-norm", "0.5")
    assert fit("--budget", str(tight(3)), *recipe, "--no-verify", "-o", "plan.json") == 0
    problem = load_problem("plan.problem.json")
    assert isinstance(problem, TrainingProblem)
    assert problem.micro_batches == 3 and problem.clip_grad_norm
    assert "--no-verify: not used, for the whole step is planned" in caplog.text


@pytest.mark.parametrize("flags", [("--optimizer", "none"), ("--optimizer", "adam", "--gradients-held")])
def test_without_an_optimizer_or_with_held_gradients_activations_alone_are(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    class AskedError(LoadmasterError):
        exit_status = 77

    def asked(*_: Any, **__: Any) -> None:
        raise AskedError("activations alone")

    monkeypatch.setattr(Fitter, "fit", asked)
    assert fit("--budget", str(tight()), *flags) == 77


def test_the_model_is_made_where_the_flag_says(monkeypatch: pytest.MonkeyPatch) -> None:
    class AskedError(LoadmasterError):
        exit_status = 77

    seen: list[Fitting] = []

    def asked(self: Fitting, *_: Any, **__: Any) -> None:
        seen.append(self)
        raise AskedError("seen")

    monkeypatch.setattr(Fitting, "run", asked)
    assert fit("--budget", "1GiB", "--optimizer", "adam", "--made-on", "meta", "--device", "cpu") == 77
    assert fit("--budget", "1GiB", "--device", "cpu") == 77
    assert [fitting.device for fitting in seen] == [torch.device("cpu"), None]
    assert [next(fitting.model.parameters()).device.type for fitting in seen] == ["meta", "cpu"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--clip-grad-norm", "1.0"), "--clip-grad-norm: needs the optimizer"),
        (("--optimizer", "adam", "--clip-grad-norm", "-1"), "clip_grad_norm: must be positive"),
        (("--optimizer", "adam", "--accumulate", "0"), "accumulate: must be at least 1"),
        (("--made-on", "abacus"), "--made-on: cannot be used here"),
    ],
)
def test_what_cannot_be_done_names_the_flag(
    flags: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit("--budget", "1GiB", *flags) == 2
    assert said in capsys.readouterr().err
