"""What may be faster is tried while the first step trains: it never holds training up for long, and never breaks it."""

from __future__ import annotations

import copy
import gc
import logging
import time

import pytest
import torch

import loadmaster
from loadmaster.errors import CheckFailedError, InputError
from loadmaster.executor import KnobStep, PlannedStep, apply, fit
from loadmaster.executor.costs import roofline
from loadmaster.executor.memory.capture import CaptureOptions
from loadmaster.executor.memory.fit import fitted as outcome
from loadmaster.executor.memory.fit.ahead import ahead
from loadmaster.executor.memory.fit.fitted import TunedStep
from loadmaster.executor.memory.fit.fitter import Fitter
from loadmaster.executor.memory.fit.phases import Phases
from tests.executor.memory.fit.fakes import halves
from tests.executor.memory.hand_planner import HandPlanner, keep_everything_peak, keep_nothing_peak
from tests.executor.memory.models import mlp_case, transformer_case
from tests.executor.worlds import join_alone

WAIT = 1e9  # of training, in seconds: any number of tries is a small part of it


@pytest.fixture
def clock(monkeypatch):
    """Seconds since training began, as tuning sees them."""

    class Clock:
        now_s = 0.0

        def perf_counter(self):
            return self.now_s

    found = Clock()
    monkeypatch.setattr(outcome, "time", found)
    return found


@pytest.fixture
def nothing_compiled(monkeypatch):
    """Steps run as plain PyTorch."""
    for kind in (PlannedStep, KnobStep):
        monkeypatch.setattr(kind, "forward", lambda self, *batch: self.step(*batch))


@pytest.fixture
def ranks():
    """Begins to be one of several ranks; one is enough to be held up by others."""
    yield join_alone
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.fixture
def begun(runs, helpers, budget, clock, nothing_compiled):
    """A fit whose knob is twice as fast as its plan, its model and a batch, while helpers are at the knob."""
    runs.curve = halves(budget)
    model, batch, loss = mlp_case()
    fitted = fit(
        model,
        batch,
        loss,
        budget_bytes=budget,
        planner=HandPlanner(step=1),
        costs=roofline("cpu"),
        time_tolerance=1e9,
    )
    assert runs.plans == 1 and not runs.knobs and not fitted.is_final
    return fitted, batch


def let_end(helpers):
    """All that is being compiled is compiled."""
    for helper in helpers:
        if helper.job is not None:
            helper.code = 0


def train(fitted, batch, clock, helpers, most=10):
    """Until nothing is left to try."""
    for _ in range(most):
        let_end(helpers)
        clock.now_s += WAIT
        fitted.step(*batch).backward()
        if fitted.is_final:
            return
    pytest.fail(f"{most} steps, and still not over")


def test_training_begins_with_the_plan_and_goes_on_with_what_is_faster(begun, runs, helpers, clock):
    fitted, batch = begun
    step = fitted.step
    assert isinstance(step, TunedStep) and isinstance(step.now, PlannedStep) and fitted.knob is None
    assert outcome.MORE in fitted.report and "The plan measured" in fitted.report
    train(fitted, batch, clock, helpers)
    assert isinstance(step.now, KnobStep) and fitted.step is step.now and fitted.knob == 0.5
    assert fitted.plan is None and len(fitted.knob_tries) == len(runs.knobs) and len(fitted.tries) == 1
    assert outcome.MORE not in fitted.report and "activation_memory_budget 0.5" in fitted.report
    assert all(h.is_gone for h in helpers)


def test_a_try_waits_for_its_compilation(begun, runs, helpers, clock):
    fitted, batch = begun
    for _ in range(3):
        clock.now_s += WAIT
        fitted.step(*batch).backward()
    assert not runs.knobs
    let_end(helpers)
    fitted.step(*batch).backward()
    assert len(runs.knobs) == 1


def test_tries_are_a_small_part_of_training(begun, runs, helpers, clock, monkeypatch):
    """By hand: a try takes 6 s, which is a tenth of 60; two of them are a tenth of 120, and training was held for 6."""
    fitted, batch = begun
    monkeypatch.setattr(Phases, "each_s", {"compiling plans": 6.0})
    curve = runs.curve

    def takes_long(knob):
        clock.now_s += 6.0
        return curve(knob)

    runs.curve = takes_long
    tried = {}
    for now_s in (0.0, 59.0, 61.0, 70.0, 119.0, 121.0):
        clock.now_s = now_s
        for _half_is_compiled in range(3):
            let_end(helpers)
            fitted.step(*batch).backward()
        tried[now_s] = len(runs.knobs)
    assert tried == {0.0: 0, 59.0: 0, 61.0: 1, 70.0: 1, 119.0: 1, 121.0: 2}


def test_what_is_faster_trains_before_all_is_tried(begun, runs, helpers, clock):
    fitted, batch = begun
    step, seen = fitted.step, []
    while not fitted.is_final:
        let_end(helpers)
        clock.now_s += WAIT
        step(*batch).backward()
        seen.append((fitted.knob, type(step.now), fitted.is_final))
    assert (0.5, KnobStep, False) in seen and seen[-1] == (0.5, KnobStep, True)


@pytest.mark.parametrize("what", ["no_grad", "eval", "autocast", "ranks", "frozen"])
def test_nothing_is_tried_in_another_step_than_the_fitted_one(begun, runs, helpers, clock, ranks, what):
    fitted, batch = begun
    let_end(helpers)
    clock.now_s = WAIT
    model = fitted.step.step.model
    if what == "no_grad":
        with torch.no_grad():
            fitted.step(*batch)
    elif what == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            fitted.step(*batch)
    elif what == "ranks":
        ranks()
        fitted.step(*batch)
    elif what == "eval":
        model.eval()
        fitted.step(*batch)
    else:
        next(model.parameters()).requires_grad_(False)
        fitted.step(*batch)
    assert not runs.knobs and not fitted.is_final


def test_what_breaks_a_try_ends_the_tries_and_not_the_training(begun, runs, helpers, clock, monkeypatch, caplog):
    fitted, batch = begun

    def broken(*_args):
        raise CheckFailedError("the planner's plan breaks its problem")

    monkeypatch.setattr(outcome, "next_try", broken)
    with caplog.at_level(logging.WARNING):
        train(fitted, batch, clock, helpers)
    assert isinstance(fitted.step, PlannedStep) and all(h.is_gone for h in helpers)
    why = "CheckFailedError: the planner's plan breaks its problem"
    assert f"No further tries: {why}." in fitted.report and f"no further tries: {why}" in caplog.text


def test_finish_tries_what_is_left_at_once(begun, runs, helpers):
    fitted, batch = begun
    step = fitted.step
    assert fitted.finish() is fitted and fitted.is_final and fitted.knob == 0.5
    assert isinstance(step.now, KnobStep) and all(h.is_gone for h in helpers)
    knobs = list(runs.knobs)
    step.finish()
    step(*batch).backward()
    assert fitted.finish() is fitted and runs.knobs == knobs


def test_finish_is_refused_in_another_precision(begun, runs):
    fitted, _batch = begun
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InputError, match="autocast on cpu is") as refused:
        fitted.finish()
    assert refused.value.field == "finish" and "under the same torch.autocast" in refused.value.remedy
    assert not runs.knobs and not fitted.is_final


def test_the_model_is_what_it_was_with_any_step(begun, runs, helpers, clock):
    fitted, batch = begun
    step = fitted.step
    names = set(apply(fitted.plan, *mlp_case()[::2]).state_dict())
    assert set(step.state_dict()) == names
    copied = copy.deepcopy(step)
    assert isinstance(copied, PlannedStep) and copied.step.model is not step.step.model
    train(fitted, batch, clock, helpers)
    assert set(step.state_dict()) == names
    assert "TunedStep that runs <KnobStep" in repr(step)


def test_helpers_end_with_the_step(runs, helpers, budget, nothing_compiled):
    runs.curve = halves(budget)
    fitter = Fitter(*mlp_case(), CaptureOptions(costs=roofline("cpu")), time_tolerance=1e9)
    fitted = fitter.fit(HandPlanner(step=1), budget, tune_while_training=True)
    assert not fitted.is_final and not all(h.is_gone for h in helpers)
    del fitted
    gc.collect()
    assert all(h.is_gone for h in helpers)


def test_another_budget_ends_the_tries_of_the_one_before(runs, helpers, budget, clock, nothing_compiled):
    runs.curve = halves(budget)
    fitter = Fitter(*mlp_case(), CaptureOptions(costs=roofline("cpu")), time_tolerance=1e9)
    first = fitter.fit(HandPlanner(step=1), budget, tune_while_training=True)
    assert not first.is_final
    held = first.step
    second = fitter.fit(HandPlanner(step=1), budget + 1)
    assert second.is_final
    knobs = list(runs.knobs)
    held(*mlp_case()[1]).backward()
    assert first.is_final and isinstance(first.step, PlannedStep) and runs.knobs == knobs
    assert "No further tries: another budget is fitted." in first.report


@pytest.mark.parametrize(
    "why", ["asked", "mode", "ranks", pytest.param("plans alone", marks=pytest.mark.slow), "cores", "nothing left"]
)
def test_all_is_tried_first(runs, helpers, budget, monkeypatch, ranks, why):
    runs.curve = halves(budget)
    more = {}
    if why == "asked":
        more = {"tune_while_training": False}
    elif why == "mode":
        more = {"mode": "reduce-overhead"}
    elif why == "ranks":
        ranks()
    elif why == "plans alone":
        more = {"knob_tries": 0}
    elif why == "cores":
        monkeypatch.setattr(ahead, "cores", lambda: 2 * ahead.CORES_EACH - 1)
    else:
        runs.curve = halves(budget, us_at_1=0.0, slope_us=0.0)
        runs.plan_us = 0.0
    fitted = fit(
        *mlp_case(),
        budget_bytes=budget,
        planner=HandPlanner(step=1),
        costs=roofline("cpu"),
        time_tolerance=1e9,
        **more,
    )
    assert fitted.is_final and outcome.MORE not in fitted.report
    assert fitted.finish() is fitted


@pytest.mark.slow
def test_real_steps_have_the_gradients_of_plain_pytorch_all_along(monkeypatch):
    monkeypatch.setattr(ahead, "cores", lambda: 2 * ahead.CORES_EACH)
    monkeypatch.setattr(outcome, "MOST_SHARE", WAIT)
    model, inputs, loss = transformer_case(dtype=torch.float32, batch=4, tokens=32, layers=1)
    expected = torch.autograd.grad(
        model(*inputs) if loss is None else loss(model(inputs[0]), inputs[1]), [*model.parameters()]
    )
    problem = Fitter(model, inputs, loss, CaptureOptions(costs=roofline("cpu"))).capture().captured.problem()
    budget = (keep_everything_peak(problem) * 3 + keep_nothing_peak(problem)) // 4
    fitted = fit(model, inputs, loss, budget_bytes=budget, planner=loadmaster.plan, knob_tries=1)
    steps = 0
    while not fitted.is_final or not steps:
        model.zero_grad()
        fitted.step(*inputs).backward()
        time.sleep(0.05)  # helpers need the processor
        steps += 1
        if steps < 5 or fitted.is_final:
            for parameter, wanted in zip(model.parameters(), expected, strict=True):
                torch.testing.assert_close(parameter.grad, wanted, rtol=1e-4, atol=1e-5)
    assert fitted.measured.peak_bytes <= budget
