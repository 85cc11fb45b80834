"""Budgets as people write them, the record of a fitted step, and what is said while it is made."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest
import torch

import loadmaster
from loadmaster.errors import InputError
from loadmaster.executor import apply, capture, capture_block, fit
from loadmaster.executor.costs import roofline
from loadmaster.models.fit_record import load_fit
from loadmaster.models.memory import plain
from tests.executor.memory.hand_planner import HandPlanner
from tests.executor.memory.models import Mlp, mlp_case
from tests.executor.memory.schedules import plan, schedule


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def fitted():
    return fit(*mlp_case(), budget_bytes="300%", planner=HandPlanner(step=1), costs=roofline("cpu"), backend="eager")


@pytest.mark.slow
def test_a_share_is_of_the_peak_with_nothing_planned(fitted):
    problem = capture(*mlp_case(), hardware="cpu", backend="eager")
    assert fitted.plan.budget_bytes == 3 * plain.peak_bytes(problem)


@pytest.mark.slow
def test_the_record_is_there_and_back_and_its_plan_trains(fitted, tmp_path):
    fitted.save(tmp_path / "fit.json")
    record = load_fit(tmp_path / "fit.json")
    assert (record.plan, record.problem, record.chosen) == (fitted.plan, fitted.problem, fitted.chosen)
    assert [t.kept for t in record.tries] == [t.kept for t in fitted.tries]
    assert record.measured.peak_bytes == fitted.measured.peak_bytes
    assert record.measured.step_us == fitted.measured.step_us
    model, inputs, loss = mlp_case()
    step = apply(record.plan, model, loss, backend="eager")
    step(*inputs).backward()
    for shown in (fitted, record, step):
        assert len(repr(shown)) < 300 and "\n" not in repr(shown)
    assert "svg" in fitted._repr_html_()


@pytest.mark.parametrize(
    ("budget", "says"),
    [("6 gigs", "as in 5GiB"), ("6gib", "Write 6GiB"), ("half%", "as 50%"), ("0%", "more than 0%"), (1e9, "5GiB")],
)
def test_a_slip_in_the_budget_is_found_before_anything_is_captured(budget, says):
    def never(*_):
        raise AssertionError("captured first")

    with pytest.raises(InputError, match=says) as caught:
        fit(torch.nn.Linear(2, 2), (never,), never, budget_bytes=budget, planner=never)
    assert caught.value.field == "budget_bytes"


def test_a_block_takes_sizes_and_no_share():
    x = torch.randn(8, 16, requires_grad=True)
    for kept, budget, field in (("50%", "1MiB", "kept_bytes"), ("1 MiB", "50%", "budget_bytes")):
        with pytest.raises(InputError, match="is a share, and there is nothing here to take it of") as caught:
            capture_block(Mlp(), (x,), kept_bytes=kept, budget_bytes=budget, hardware="cpu")
        assert caught.value.field == field


def test_capture_says_what_it_does_where_somebody_looks(monkeypatch):
    terminal, pipe = Terminal(), io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    capture(*mlp_case(), backend="eager")
    said = terminal.getvalue()
    phases = ["tracing the step", "nodes into operators", "adding up bytes and times", "costs of operator"]
    assert all(phase in said for phase in phases)
    assert [said.index(phase) for phase in phases] == sorted(said.index(phase) for phase in phases)
    assert said.endswith("\r\x1b[2K")
    monkeypatch.setattr(sys, "stderr", pipe)
    capture(*mlp_case(), hardware="cpu", backend="eager")
    assert pipe.getvalue() == ""


def test_a_plan_from_another_torch_says_so_first():
    model, (x, *rest), loss = mlp_case()
    problem = capture(model, (x, *rest), loss, hardware="cpu", backend="eager")
    here = torch.__version__.partition("+")[0]
    assert problem.captured_with == {"torch": here}
    assert f"torch {here}" in str(problem.summary())
    made = loadmaster.plan(problem, budget_bytes="200%", method="plain")
    assert made.captured_with == {"torch": here}
    by_hand = plan(problem, schedule(problem, lambda i: True))
    for versions, says in (
        ({"torch": "2.9.1"}, rf"plan\.name: was captured with torch 2\.9\.1, this is {here}, and was made for"),
        ({"torch": here}, r"plan\.name: was made for"),
        (None, r"plan\.name: was made for"),
    ):
        step = apply(replace(by_hand, captured_with=versions), model, loss, backend="eager")
        with pytest.raises(InputError, match=says):
            step(x[:3], *(r[:3] for r in rest))
