"""What is compiled ahead is found, changes no number, and ends with the fit; what cannot be costs nothing."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache
from torch._subclasses import FakeTensorMode
from torch.nn import functional

from loadmaster.executor import KnobStep, apply
from loadmaster.executor.costs import roofline
from loadmaster.executor.memory.capture import CaptureOptions, capture_step
from loadmaster.executor.memory.fit.ahead import ahead
from loadmaster.executor.memory.fit.ahead.ahead import Ahead
from loadmaster.executor.memory.fit.ahead.helper import Helper
from loadmaster.executor.memory.fit.ahead.job import Job
from loadmaster.executor.memory.fit.fitter import Fitter
from loadmaster.executor.memory.run.apply import PlannedStep
from loadmaster.executor.steps.measure import Measurement
from tests.executor.memory.fit.fakes import fake_trials
from tests.executor.memory.hand_planner import HandPlanner, keep_nothing_peak
from tests.executor.memory.models import mlp_case
from tests.executor.memory.schedules import plan as plan_of
from tests.executor.memory.schedules import schedule


class Rows(nn.Module):
    """ConvNeXt's LayerNorm of images: along their channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x):
        return functional.gelu(self.norm(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


def squared(result, _target):
    return result.square().sum()


@pytest.fixture(scope="module")
def captured():
    """What was noted of a step when it was captured, and the step."""
    own = Ahead()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ahead, "cores", lambda: 2 * ahead.CORES_EACH)
        return own, capture_step(*mlp_case(), CaptureOptions(costs=roofline("cpu")), noted=own.take)


@pytest.fixture
def noted(captured):
    """What was noted of it."""
    return captured[0]


@pytest.fixture
def plan(captured):
    """A plan for it that recomputes."""
    problem = captured[1].problem()
    return HandPlanner(1)(problem.with_budget((keep_nothing_peak(problem) * 5) // 4))


def test_a_helper_is_at_it_until_it_ends(helpers, noted, monkeypatch):
    monkeypatch.setattr(noted, "_convolves", True)
    monkeypatch.setattr(ahead, "HEAD_START_S", 0.0)
    with noted.during_fit(), noted.compiling_here():
        noted.knob(0.5)
        assert noted.is_at(0.5)
        helpers[0].code = 0
        assert not noted.is_at(0.5)
        noted.wait(0.5, "forward")
        assert helpers[0].is_gone
        noted.wait(0.5, "backward")


@pytest.mark.parametrize("why", ["_convolves", "_pads"])
def test_the_knob_is_compiled_ahead_as_a_whole_where_one_half_depends_on_the_other(
    helpers, noted, plan, monkeypatch, why
):
    monkeypatch.setattr(noted, why, True)
    with noted.during_fit(), noted.compiling_here():
        noted.knob(0.5)
        noted.plan(plan)
        assert [(h.job.how, h.job.part) for h in helpers] == [(0.5, "whole"), (plan, "backward")]


@pytest.mark.parametrize(
    ("shape", "dtype", "device", "is_padded"),
    [
        ((4, 50257), torch.float32, "cuda", True),
        ((4, 50304), torch.bfloat16, "cuda", False),  # rows of whole memory transactions
        ((50257,), torch.float32, "cuda", False),  # one row
        ((4, 1023), torch.float32, "cuda", False),  # short ones
        ((4, 50257), torch.float32, "cpu", False),
    ],
)
def test_long_rows_at_odd_addresses_are_padded(shape, dtype, device, is_padded):
    with FakeTensorMode():
        assert ahead.is_padded(torch.empty(shape, dtype=dtype, device=device)) == is_padded


def test_what_waits_for_a_helper_is_pending(helpers, noted):
    with noted.during_fit():
        noted.knob(0.5)
        noted.knob(0.2)
        assert noted.is_pending(0.5) and noted.is_pending(0.2) and not noted.is_pending(0.1)
        for helper in helpers:
            helper.code = 0
        assert not noted.is_pending(0.5) and noted.is_pending(0.2)
        assert {h.job.how for h in helpers} == {0.5, 0.2}, "what waits is begun"
        for helper in helpers:
            helper.code = 0
        assert not noted.is_pending(0.2)


def test_beside_training_all_of_a_plan_is_compiled_ahead_by_one(helpers, noted, plan):
    with noted.during_fit():
        noted.get_ready()
        noted.go_on_beside_training()
        assert [h.is_gone for h in helpers] == [False, True]
        noted.plan(plan)
        assert [h.job.part for h in helpers if h.job] == ["backward"] and noted.is_pending(plan)
        helpers[0].code = 0
        assert noted.is_pending(plan)
        assert [h.job.part for h in helpers if h.job] == ["backward", "forward"]
        helpers[-1].code = 0
        assert not noted.is_pending(plan)
    with noted.during_fit():
        noted.plan(plan)
        assert [h.job.part for h in helpers if h.job and not h.is_gone] == ["backward"], "the next fit is as ever"


def test_no_more_run_than_may(helpers, noted):
    with noted.during_fit():
        noted.get_ready()
        assert [h.job for h in helpers] == [None, None]
        noted.knob(0.5)
        noted.knob(0.5)  # they are at it
        noted.knob(0.2)  # waits
        assert {(h.job.how, h.job.part) for h in helpers} == {(0.5, "backward"), (0.5, "forward")}
        assert noted.is_at(0.5) and not noted.is_at(0.2)
        first = next(h for h in helpers if h.job.part == "backward")
        first.code = 0
        noted.wait(0.5, "backward")
        still = [(h.job.how, h.job.part) for h in helpers if not h.is_gone]
        assert first.is_gone and still == [(0.5, "forward"), (0.2, "backward")]
    assert all(h.is_gone for h in helpers)
    noted.knob(0.5)  # the fit is over
    assert len(helpers) == 3


def test_what_begins_as_late_as_this_process_is_not_waited_for(helpers, noted, plan, monkeypatch):
    monkeypatch.setattr(ahead.time, "perf_counter", lambda: ahead.HEAD_START_S - 1.0)
    with noted.during_fit(), noted.compiling_here():
        noted.plan(plan)
        noted.knob(0.2)
        noted.wait(0.2, "backward")  # nobody has begun it
        noted.wait(0.1, "backward")  # nobody wanted it
        noted.wait(plan, "forward")
        assert [(h.job.how, h.job.part, h.is_gone) for h in helpers] == [
            (plan, "backward", False),
            (plan, "forward", True),
            (0.2, "forward", False),  # there is room for it
        ]


def test_of_a_plan_that_is_compiled_here_at_once_the_backward_graph_is_compiled_ahead(helpers, noted, plan):
    with noted.during_fit():
        noted.plan(plan)
        assert [h.job.part for h in helpers] == ["backward"]


def test_a_plans_backward_graph_is_compiled_from_both_ends(helpers, noted, plan):
    with noted.during_fit():
        noted.plan(plan)
        with noted.compiling_here():
            noted.wait(plan, "forward")
            noted.wait(plan, "backward")
            assert not helpers[0].is_gone, "it is not waited for, and goes on"
        assert helpers[0].is_gone


def test_helpers_stand_still_while_something_is_timed(helpers, noted):
    with noted.during_fit():
        noted.get_ready()
        noted.knob(0.5)
        with noted.standing_still():
            assert [h.signals for h in helpers] == [[signal.SIGSTOP]] * 2
        assert [h.signals for h in helpers] == [[signal.SIGSTOP, signal.SIGCONT]] * 2


def test_what_a_helper_could_not_do_is_said(helpers, noted, caplog):
    with caplog.at_level(logging.INFO, logger="loadmaster"), noted.during_fit():
        noted.knob(0.5)
        next(h for h in helpers if h.job.part == "backward").code = 1
        noted.wait(0.5, "backward")
    assert "compiled here, since a helper could not: no memory" in caplog.text


def test_a_graph_that_cannot_be_sent_is_compiled_here(helpers, caplog):
    graph = torch.fx.Graph()
    given = graph.placeholder("given")
    given.meta["example_value"] = lambda: "not to be pickled"
    graph.output(given)
    own = Ahead()
    with caplog.at_level(logging.INFO, logger="loadmaster"), own.during_fit():
        own.get_ready()
        own.take(torch.fx.GraphModule(torch.nn.Module(), graph))
        own.knob(0.5)
        assert helpers and all(h.is_gone for h in helpers)
    assert "nothing is compiled ahead" in caplog.text


@pytest.mark.parametrize("why", ["cores", "cache", "eager"])
def test_none_run_where_they_are_of_no_use(helpers, monkeypatch, why):
    if why == "cores":
        monkeypatch.setattr(ahead, "cores", lambda: 2 * ahead.CORES_EACH - 1)
    monkeypatch.setattr(ahead, "sent", lambda module: pytest.fail("nobody wants the graph"))
    own = Ahead(wanted=why != "eager")
    with ahead.inductor_config.patch(fx_graph_cache=why != "cache"), own.during_fit():
        own.get_ready()
        own.take(torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph()))
        own.knob(0.5)
        own.wait(0.5, "backward")
    assert not helpers


def test_a_helper_that_hangs_is_left_in_time(helpers, noted, monkeypatch, caplog):
    now = iter(range(1000))
    monkeypatch.setattr(ahead.time, "perf_counter", lambda: float(next(now)))
    monkeypatch.setattr(ahead.time, "sleep", lambda _s: None)
    with caplog.at_level(logging.INFO, logger="loadmaster"), noted.during_fit():
        noted.knob(0.5)
        noted.wait(0.5, "backward")
        assert [h.is_gone for h in helpers if h.job.part == "backward"] == [True]
    assert "a helper takes too long" in caplog.text
    assert next(now) < 2 * ahead.PATIENCE_S


@pytest.mark.parametrize("what", ["begun", "written down", "begun later"])
def test_what_fails_of_it_ends_all_helpers_and_nothing_else(helpers, captured, plan, monkeypatch, caplog, what):
    def fail(*_args):
        raise OSError("no room")

    own = Ahead()
    own._graph, own._settings = captured[0]._graph, captured[0]._settings
    with caplog.at_level(logging.INFO, logger="loadmaster"), own.during_fit():
        if what == "begun":
            monkeypatch.setattr(ahead, "Helper", fail)
        own.get_ready()
        if what == "written down":
            monkeypatch.setattr(Job, "save", fail)
        own.knob(0.5)
        own.plan(plan)
        if what == "begun later":
            monkeypatch.setattr(ahead, "Helper", fail)
            for helper in helpers:
                helper.code = 0
        own.wait(plan, "forward")
        own.wait(0.5, "backward")
        own.knob(0.2)
    assert all(h.is_gone for h in helpers)
    assert "nothing is compiled ahead: OSError: no room" in caplog.text


def test_a_fit_that_fails_leaves_no_helper(helpers, noted):
    with pytest.raises(KeyboardInterrupt), noted.during_fit():
        noted.get_ready()
        noted.knob(0.5)
        raise KeyboardInterrupt
    assert len(helpers) == 2 and all(h.is_gone for h in helpers)


@pytest.mark.slow
def test_a_fit_has_compiled_what_it_tries(helpers, problem, budget, monkeypatch):
    asked, timed, order = [], [], []

    def run_trial(step, *_args, warmed_up, **_kwargs):
        order.append(type(step))
        compiled = step if isinstance(step, KnobStep) else step.planned
        compiled.before("forward")
        compiled.before("backward")
        warmed_up()
        timed.append([h.signals[-1:] for h in helpers if not h.is_gone])
        used_bytes = 2 * budget if isinstance(step, KnobStep) else budget // 2
        return Measurement(used_bytes, 0, 100.0, used_bytes, used_bytes)

    fake_trials(monkeypatch, run_trial)
    monkeypatch.setattr(Ahead, "wait", lambda self, how, half: asked.append((how, half)))
    fitter = Fitter(*mlp_case(), CaptureOptions(costs=roofline("cpu")), repeats=1)
    fitted = fitter.fit(HandPlanner(), budget, tries=1, knob_tries=1)
    assert fitted.plan is not None
    assert order == [PlannedStep, KnobStep], "helpers compile the knob meanwhile"
    jobs = [(h.job.how, h.job.part) for h in helpers if h.job is not None]
    assert jobs and all(job in asked for job in jobs)
    tried = [fitted.plan, *(t.knob for t in fitted.knob_tries)]
    assert all((how, half) in asked for how in tried for half in ("forward", "backward"))
    assert timed and all(latest == [signal.SIGSTOP] for now in timed for latest in now)
    assert all(h.is_gone for h in helpers)


def wait_for(own: Ahead, how) -> None:
    while own.is_pending(how):
        time.sleep(0.05)


@pytest.fixture
def four_at_work(monkeypatch):
    """As many helpers as there are halves, each waited for."""
    monkeypatch.setattr(ahead, "cores", lambda: 4 * ahead.CORES_EACH)
    monkeypatch.setattr(ahead, "MOST", 4)
    monkeypatch.setattr(ahead, "HEAD_START_S", 0.0)
    monkeypatch.setattr(ahead, "PATIENCE_S", float("inf"))


@pytest.mark.slow
@pytest.mark.usefixtures("four_at_work")
def test_what_is_compiled_ahead_is_found_and_is_the_same(noted):
    """The knob's halves; a plan's are below."""
    model, (x, y), loss = mlp_case()
    loss(model(x), y).backward()
    plain = [p.grad.clone() for p in model.parameters()]
    with fresh_cache(), noted.during_fit(), noted.compiling_here():
        noted.knob(0.5)
        at_work = [w.helper for w in noted._wanted]
        for half in ("forward", "backward"):
            noted.wait(0.5, half)
        wait_for(noted, 0.5)
        counters.clear()
        model.zero_grad()
        KnobStep(model, loss, knob=0.5)(x, y).backward()
        for parameter, expected in zip(model.parameters(), plain, strict=True):
            torch.testing.assert_close(parameter.grad, expected)
        assert counters["inductor"]["fxgraph_cache_hit"] >= len(at_work) == 2
        assert counters["inductor"]["fxgraph_cache_miss"] == 0
    assert all(h is not None and h.has_ended() for h in at_work)


@pytest.mark.slow
@pytest.mark.usefixtures("four_at_work")
def test_how_images_lie_is_known_before_the_forward_graph_is_compiled():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), Rows(8), nn.Conv2d(8, 8, 3, groups=8), Rows(8)).double()
    batch = torch.randn(2, 3, 9, 9, dtype=torch.float64)
    own = Ahead()
    step = capture_step(model, (batch, None), squared, CaptureOptions(costs=roofline("cpu")), noted=own.take)
    recomputes = plan_of(step.problem(), schedule(step.problem(), lambda i: i % 2 == 0))
    squared(model(batch), None).backward()
    plain = [p.grad.clone() for p in model.parameters()]
    with fresh_cache(), own.during_fit(), own.compiling_here():
        own.plan(recomputes)
        for half in ("forward", "backward"):
            own.wait(recomputes, half)
        wait_for(own, recomputes)
        counters.clear()
        model.zero_grad()
        apply(recomputes, model, squared)(batch, None).backward()
        assert counters["inductor"]["fxgraph_cache_hit"] >= 2
        assert counters["inductor"]["fxgraph_cache_miss"] == 0
    for parameter, expected in zip(model.parameters(), plain, strict=True):
        torch.testing.assert_close(parameter.grad, expected)


@pytest.mark.slow
def test_a_helper_says_why_it_failed_and_is_gone_when_it_is_ended():
    broken, still = Helper(1), Helper(1)
    still.send(signal.SIGSTOP)
    broken.begin(Path("no such job"))
    broken._process.wait()
    said = broken.end()
    assert said is not None and "no such job" in said
    assert still.end() is None
    for helper in (broken, still):
        assert helper.has_ended()
        with pytest.raises(ProcessLookupError):
            os.killpg(helper._process.pid, 0)
