"""Fitting never gives a slower step than torch.compile's own partition under the same budget."""

from __future__ import annotations

import json
import logging
import weakref
from pathlib import Path

import pytest
import torch

from loadmaster.errors import BudgetError, InputError, LimitReachedError
from loadmaster.executor import KnobStep, PlannedStep, fit
from loadmaster.executor.costs import roofline
from loadmaster.executor.memory.capture import CaptureOptions
from loadmaster.executor.memory.fit import fitter as fitting
from loadmaster.executor.memory.fit import trial_runs
from loadmaster.executor.memory.fit.fitter import Fitter
from loadmaster.models.fit_record import load_fit
from tests.executor.memory.fit.fakes import PLAN_US, halves
from tests.executor.memory.hand_planner import HandPlanner, keep_everything_peak, keep_nothing_peak
from tests.executor.memory.models import mlp_case, transformer_case


def fitter(**more):
    return Fitter(*mlp_case(), CaptureOptions(costs=roofline("cpu")), time_tolerance=1e9, **more)


def test_the_knob_is_taken_where_it_is_faster(runs, budget, tmp_path):
    runs.curve = halves(budget)
    fitted = fitter().fit(HandPlanner(step=1), budget)
    assert isinstance(fitted.step, KnobStep) and fitted.knob == fitted.step.knob == 0.5
    assert (fitted.plan, fitted.problem, fitted.chosen) == (None, None, None)
    assert fitted.measured.step_us == 70.0 and fitted.measured.peak_bytes <= budget
    assert runs.knobs == [1.0, 0.5] and runs.plans == len(fitted.tries) == 1
    for said in ("activation_memory_budget 0.5, measured 70.00 us", "it is taken", "The plan measured 100.0 us"):
        assert said in fitted.report
    fitted.save(tmp_path / "fit.json")
    record = load_fit(tmp_path / "fit.json")
    assert record.knob == 0.5 and record.plan is None and record.measured.step_us == 70.0
    assert [t.kept for t in record.knob_tries] == [False, True] and len(record.tries) == 1
    for shown in (fitted, record):
        assert "activation_memory_budget 0.5" in repr(shown) and "3 tries" in repr(shown)
    assert "0.5" in fitted._repr_html_()


@pytest.mark.slow
def test_the_plan_is_taken_where_it_is_faster_and_the_search_ends(runs, budget):
    """At 1 the knob takes longer than the plan, and lower ones take longer still: one compilation says so."""
    runs.curve = halves(budget, us_at_1=190.0)
    fitted = fitter().fit(HandPlanner(step=1), budget)
    assert isinstance(fitted.step, PlannedStep) and fitted.knob is None and fitted.chosen == 0
    assert runs.knobs == [1.0] and runs.plans == 1
    assert "The plan measured 100.0 us" in fitted.report and "own partition took" in fitted.report
    assert "it is taken" in fitted.report


@pytest.mark.slow
def test_two_steps_about_as_fast_are_timed_once_more_in_turns(runs, budget):
    """The plan's trial was held up, the knob's was not: side by side the plan is faster."""
    runs.curve, runs.in_turns = halves(budget), (0.5, 1.0)
    fitted = fitter().fit(HandPlanner(step=1), budget)
    assert isinstance(fitted.step, PlannedStep) and fitted.chosen == 0
    assert "Timed once more, in turns: the plan 50.00 us" in fitted.report and "partition 70.00 us." in fitted.report
    runs.in_turns = "no room"
    fitted = fitter().fit(HandPlanner(step=1), budget + 2)
    assert isinstance(fitted.step, KnobStep) and "in turns" not in fitted.report
    runs.in_turns, runs.plan_us = (0.5, 1.0), 200.0  # no machine does that
    fitted = fitter().fit(HandPlanner(step=1), budget + 1)
    assert isinstance(fitted.step, KnobStep) and "in turns" not in fitted.report


@pytest.mark.slow
def test_a_plan_that_measures_much_more_than_planned_still_loses(runs, budget):
    """Never slower than the knob: whatever is measured, of all that keep the budget the fastest is given."""
    for plan_us in (10.0, 60.0, 200.0):
        runs.plan_us = plan_us
        runs.curve = halves(budget)
        fitted = fitter().fit(HandPlanner(step=1), budget + round(plan_us))  # a budget that nothing is kept of
        kept = [t.measured.step_us for t in (*fitted.tries, *fitted.knob_tries) if t.kept]
        assert fitted.measured.step_us == min(kept)


def test_it_is_kept_and_the_next_call_goes_there_at_once(runs, budget):
    runs.curve = halves(budget)
    fitter().fit(HandPlanner(step=1), budget)
    runs.knobs.clear()

    def never(_problem):
        raise AssertionError("planned again")

    again = fitter()
    fitted = again.fit(never, budget)
    assert runs.knobs == [0.5] and fitted.knob == 0.5 and runs.plans == 1
    assert "captured" not in vars(again) and "the last time, too" in fitted.report
    assert fitted.tries == ()
    # Another budget knows what was measured: only what may win is run.
    runs.knobs.clear()
    third = fitter().fit(HandPlanner(step=1), budget + 1)
    assert runs.knobs == [0.5] and third.knob == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("change", ["slower", "larger"])
def test_what_was_kept_is_not_believed(runs, budget, change):
    runs.curve = halves(budget)
    fitter().fit(HandPlanner(step=1), budget)
    runs.curve = halves(budget, us_at_1=90.0) if change == "slower" else lambda knob: (2 * budget, 70.0)
    runs.knobs.clear()
    planner = HandPlanner(step=1)
    fitted = fitter().fit(planner, budget)
    assert planner.asked and isinstance(fitted.step, PlannedStep) and runs.knobs[0] == 0.5
    assert max(t.measured.step_us for t in fitted.tries) == PLAN_US


@pytest.mark.slow
def test_a_plan_that_won_leaves_no_knob_to_go_to(runs, budget):
    runs.curve = halves(budget, us_at_1=190.0)
    fitter().fit(HandPlanner(step=1), budget)
    runs.knobs.clear()
    fitted = fitter().fit(HandPlanner(step=1), budget)
    assert isinstance(fitted.step, PlannedStep) and runs.knobs == []  # what was measured before rules it out


@pytest.mark.parametrize(
    "content", ["", "[]", '{"probes": [{"knob": 7}]}', '{"knobs": {"%d": [1, 2, 3]}}', '{"correction": {"moves": 0}}']
)
def test_a_broken_file_is_as_good_as_none(runs, budget, content):
    runs.curve = halves(budget)
    one = fitter()
    one._path.parent.mkdir(parents=True)
    one._path.write_text(content.replace("%d", str(budget)))
    assert fitter().fit(HandPlanner(step=1), budget).knob == 0.5
    assert json.loads(one._path.read_text())["knobs"] == {str(budget): [budget, 0.5]}


def test_other_steps_know_nothing_of_it(runs, budget):
    path = fitter()._path
    model, inputs, loss = mlp_case()
    assert Fitter(model, inputs, loss)._path == path
    assert Fitter(model, (inputs[0][:3], *inputs[1:]), loss)._path != path
    assert Fitter(model, inputs, lambda y, t: (y - t).abs().mean())._path != path
    model.eval()
    assert Fitter(model, inputs, loss)._path != path


def test_only_the_knob_keeps_the_budget(runs, problem):
    """A sixth below what any plan takes: close enough to ask."""
    short = round(keep_nothing_peak(problem) / 1.2)
    runs.curve = lambda knob: (round(short * 2 * knob), 90.0 + 40.0 * (1 - knob))
    fitted = fitter().fit(HandPlanner(step=1), short)
    assert fitted.knob == 0.5 and fitted.tries == ()
    assert "There is no plan: budget_bytes: no plan fits" in fitted.report


def test_a_budget_far_below_every_plan_costs_no_compilation(runs, problem):
    with pytest.raises(BudgetError, match="no plan fits"):
        fitter().fit(HandPlanner(step=1), keep_nothing_peak(problem) // 3)
    assert runs.knobs == []


def test_where_nothing_keeps_it_the_error_says_what_both_take(runs, problem):
    short = round(keep_nothing_peak(problem) / 1.1)
    runs.curve = lambda knob: (round(short * (1.5 + knob)), 100.0)
    with pytest.raises(BudgetError, match=r"no plan fits .*torch.compile's own partition took .* at least\.") as found:
        fitter().fit(HandPlanner(step=1), short)
    assert found.value.needed_bytes == keep_nothing_peak(problem)


def test_a_planner_without_a_plan_in_time_leaves_the_knob(runs, budget):
    def late(_problem):
        raise LimitReachedError("the time was up")

    runs.curve = halves(budget)
    fitted = fitter().fit(late, budget)
    assert fitted.knob == 0.5 and "There is no plan: the time was up" in fitted.report


@pytest.mark.slow
@pytest.mark.parametrize("fails", [KnobStep, PlannedStep])
def test_a_side_that_cannot_be_compiled_leaves_the_other(runs, budget, fails, caplog):
    runs.curve = halves(budget)
    runs.raises[fails] = RuntimeError("no compiler found\nin a hundred lines")
    with caplog.at_level(logging.WARNING):
        fitted = fitter().fit(HandPlanner(step=1), budget)
    assert isinstance(fitted.step, KnobStep if fails is PlannedStep else PlannedStep)
    assert "RuntimeError: no compiler found" in fitted.report
    assert any("no compiler found" in r.message for r in caplog.records) == (fails is PlannedStep)
    runs.raises[KnobStep if fails is PlannedStep else PlannedStep] = RuntimeError("nor for this one")
    with pytest.raises(RuntimeError, match=r"no compiler found|nor for this one"):
        fitter().fit(HandPlanner(step=1), budget + 1)


def test_what_a_failed_plan_held_is_free_when_others_are_measured(runs, budget, monkeypatch):
    held = []

    def fails(*_arguments):
        activation = torch.empty(1)
        held.append(weakref.ref(activation))
        raise RuntimeError("operands of two types")

    monkeypatch.setattr(trial_runs.TrialRuns, "planned", fails)
    runs.curve = halves(budget)
    fitted = fitter().fit(HandPlanner(step=1), budget)
    assert fitted.knob == 0.5 and "RuntimeError: operands of two types" in fitted.report
    assert [one() for one in held] == [None]


class Branching(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        if y.sum().item() > 0:
            y = y * 2
        return y


def test_a_model_that_breaks_the_graph_runs_under_the_knob(runs, caplog):
    model, x = Branching(), torch.randn(8, 4)
    runs.curve = halves(1 << 20)
    arguments = (model, (x, x), torch.nn.functional.mse_loss)
    with caplog.at_level(logging.WARNING):
        fitted = fit(*arguments, budget_bytes="1MiB", planner=HandPlanner())
    assert fitted.knob == 0.5 and fitted.plan is None
    for said in ("There is no plan", "cannot be traced as one graph at", "y.sum().item() > 0", Path(__file__).name):
        assert said in fitted.report
    assert any("y.sum().item() > 0" in r.message for r in caplog.records)
    # Refused where it does not help: a share of what nobody knows, plans alone, and a budget that it does not keep.
    for refused in ({"budget_bytes": "50%"}, {"budget_bytes": "1MiB", "knob_tries": 0}, {"budget_bytes": "1KiB"}):
        with pytest.raises(InputError, match="cannot be traced as one graph") as found:
            fit(*arguments, planner=HandPlanner(), **refused)
    assert "own partition took" in str(found.value)


def test_a_model_that_capture_does_not_understand_runs_under_the_knob(runs, budget, monkeypatch):
    def broken(*_arguments, **_named):
        raise KeyError("an operator that nobody foresaw")

    monkeypatch.setattr(fitting, "capture_step", broken)
    runs.curve = halves(budget)
    fitted = fitter().fit(HandPlanner(), budget)
    assert fitted.knob == 0.5 and "There is no plan: KeyError: 'an operator that nobody foresaw'" in fitted.report
    with pytest.raises(KeyError, match="nobody foresaw"):
        fitter().fit(HandPlanner(), budget // 8)


@pytest.mark.slow
def test_what_plans_taught_spares_the_next_run_a_trial(runs, problem):
    """By hand: what keeps everything fills the budget, and a hundredth of it is held that no problem knows."""
    budget = keep_everything_peak(problem)
    runs.hidden_bytes = hidden = budget // 100
    runs.curve = lambda knob: (2 * budget, 1000.0)
    model, inputs, loss = mlp_case()
    first, second = (
        Fitter(model, inputs, loss, time_tolerance=1e9).fit(HandPlanner(step=1), budget).tries for _ in range(2)
    )
    assert [t.correction.resident_bytes for t in (*first, *second)] == [0, hidden, hidden]
    assert [t.kept for t in (*first, *second)] == [False, True, True]


@pytest.mark.slow
def test_plans_alone(runs, budget):
    runs.curve = halves(budget)
    fitted = fitter().fit(HandPlanner(step=1), budget, knob_tries=0)
    assert isinstance(fitted.step, PlannedStep) and runs.knobs == [] and fitted.knob_tries == ()
    with pytest.raises(InputError, match="knob_tries: is no number"):
        fitter().fit(HandPlanner(), budget, knob_tries=-1)


def test_the_seconds_are_told_and_known_the_next_time(runs, budget, capsys):
    runs.curve = halves(budget)
    fitted = fit(*mlp_case(), budget_bytes=budget, planner=HandPlanner(step=1), costs=roofline("cpu"), progress=True)
    sides = {"compiling plans", "compiling torch.compile's own partition"}
    assert set(fitted.seconds) == {"capturing", "adding up costs", "planning", *sides}
    assert "capturing" in fitted.report and "planning" in fitted.report
    capsys.readouterr()
    fit(*mlp_case(), budget_bytes=budget, planner=HandPlanner(step=1), costs=roofline("cpu"), progress=True)
    assert "s the last time)" in capsys.readouterr().err


@pytest.mark.gpu
def test_on_cuda_the_budget_of_the_knob_is_kept_and_found_again():
    with torch.device("cuda"):
        model, inputs, loss = transformer_case(dtype=torch.float32, batch=64, tokens=128, layers=4)
    model, inputs = model.cuda(), tuple(t.cuda() for t in inputs)
    peaks = {k: trial_runs.run_trial(s, s.step, inputs) for k in (1.0, 0.5) if (s := KnobStep(model, loss, knob=k))}
    budget = min(found.peak_bytes for found in peaks.values())
    for _ in range(2):
        fitted = fit(model, inputs, loss, budget_bytes=budget, planner=HandPlanner(step=8))
        kept = [t.measured.step_us for t in (*fitted.tries, *fitted.knob_tries) if t.kept]
        assert fitted.measured.peak_bytes <= budget and fitted.measured.step_us == min(kept)
        torch.cuda.reset_peak_memory_stats()
        fitted.step(*inputs).backward()
        model.zero_grad(set_to_none=True)
        assert torch.cuda.max_memory_allocated() <= budget


@pytest.mark.slow
def test_real_steps_compiled_and_measured():
    """Whatever the clock says: the budget is kept, nothing that kept it was faster, and gradients are right."""
    model, inputs, loss = transformer_case(dtype=torch.float32, batch=4, tokens=32, layers=1)
    expected = torch.autograd.grad(
        model(*inputs) if loss is None else loss(model(inputs[0]), inputs[1]), [*model.parameters()]
    )
    problem = Fitter(model, inputs, loss, CaptureOptions(costs=roofline("cpu"))).capture().captured.problem()
    budget = (keep_everything_peak(problem) * 3 + keep_nothing_peak(problem)) // 4
    fitted = fit(model, inputs, loss, budget_bytes=budget, planner=HandPlanner(step=1), tries=2, knob_tries=3)
    assert fitted.measured.peak_bytes <= budget
    kept = [t.measured.step_us for t in (*fitted.tries, *fitted.knob_tries) if t.kept]
    assert fitted.measured.step_us == min(kept) and fitted.knob_tries
    fitted.step(*inputs).backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-5)
