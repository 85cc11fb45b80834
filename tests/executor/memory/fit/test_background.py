"""Plans are made while the knob is compiled; what is timed is timed alone; what ends a fit ends what runs beside it."""

from __future__ import annotations

import threading
import time

import pytest

import loadmaster
from loadmaster.cancelling import cancelled_by, is_cancelled
from loadmaster.errors import BudgetError, CancelledError, InputError
from loadmaster.executor import KnobStep
from loadmaster.executor.costs import roofline
from loadmaster.executor.memory.capture import CaptureOptions
from loadmaster.executor.memory.fit import phases
from loadmaster.executor.memory.fit.ahead import background
from loadmaster.executor.memory.fit.ahead.background import Background, Work
from loadmaster.executor.memory.fit.fitter import Fitter
from loadmaster.executor.steps.measure import Measurement
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.presets import chain
from tests.executor.memory.fit.fakes import fake_trials
from tests.executor.memory.hand_planner import HandPlanner, keep_nothing_peak
from tests.executor.memory.models import mlp_case

LONG_S = 120  # for a machine with much to do: nothing waits so long unless it is broken


@pytest.fixture
def many_cores(monkeypatch):
    """Enough of them, and no head start."""
    monkeypatch.setattr(background, "cores", lambda: background.LEAST_CORES)
    monkeypatch.setattr(background, "HEAD_START_S", 0.0)


def test_what_is_worked_out_apart_is_there_when_it_is_asked_for():
    let_go = threading.Event()
    work = Work(lambda: let_go.wait(LONG_S) and threading.get_ident(), apart=True)
    assert not work.has_ended()
    let_go.set()
    assert work.result() == work.result() != threading.get_ident()
    assert work.has_ended() and not work.is_pending()

    def broken():
        raise ValueError("no plan today")

    for apart in (True, False):
        with pytest.raises(ValueError, match="no plan today"):
            Work(broken, apart=apart).result()


def test_without_cores_to_spare_it_runs_where_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(background, "cores", lambda: 2)
    ran = []
    work = Background().begin(lambda: ran.append(threading.get_ident()))
    assert not ran and not work.is_pending()
    assert work.result() is None and work.result() is None
    assert ran == [threading.get_ident()] and work.beside_s == 0.0


def until_cancelled():
    deadline = time.monotonic() + LONG_S
    while not is_cancelled():
        assert time.monotonic() < deadline, "nobody cancelled it"
        time.sleep(0.005)
    return "cancelled"


@pytest.mark.usefixtures("many_cores")
def test_what_is_not_wanted_any_more_is_told():
    one = Background()
    first = one.begin(until_cancelled)
    second = one.begin(until_cancelled)  # one at a time
    assert first.result() == "cancelled" and one.is_busy()
    one.end()
    assert second.result() == "cancelled" and not one.is_busy()
    assert not is_cancelled()


def test_planning_ends_where_it_is_cancelled():
    with cancelled_by(lambda: True):
        try:
            plan = loadmaster.plan(chain(60, 1000), budget_bytes="40%", time_limit_s=LONG_S, gap=0.0)
        except CancelledError:
            return
    assert plan.stopped_by == "cancel" or plan.status == "optimal"


class Runs:
    """Trials of steps that nobody runs: what the knob takes, and what plans take as planned."""

    def __init__(self, problem, used_bytes, knob_us):
        self.problem, self.used_bytes, self.knob_us = problem, used_bytes, knob_us
        self.asked, self.compiling = threading.Event(), threading.Event()
        self.takes_long = False
        self.planner: list[str] = []  # what it has come to: asked, answered
        self.when_timed: list[list[str]] = []
        self.knobs: list[float] = []

    def __call__(self, step, *_args, warmed_up, **_kwargs):
        if not isinstance(step, KnobStep):
            warmed_up()
            verdict = check(self.problem, step.plans[0].schedule, 1 << 60)
            return Measurement(verdict.peak_bytes, 0, 100.0, verdict.peak_bytes, verdict.peak_bytes)
        self.knobs.append(step.knob)
        self.compiling.set()
        if self.takes_long:
            assert self.asked.wait(LONG_S)
            time.sleep(2 * phases.SAID_FROM_S)
        warmed_up()
        self.when_timed.append(list(self.planner))
        return Measurement(self.used_bytes, 0, self.knob_us, self.used_bytes, self.used_bytes)

    def slow(self, planner):
        """The planner, which does not answer before the knob is being compiled."""

        def planned(problem):
            self.planner.append("asked")
            self.asked.set()
            assert self.compiling.wait(LONG_S)
            time.sleep(4 * phases.SAID_FROM_S)  # so that what does not wait would be timed now
            try:
                return planner(problem)
            finally:
                self.planner.append("answered")

        return planned


@pytest.fixture
def runs(monkeypatch, problem, budget):
    fake = Runs(problem, budget, 60.0)
    fake_trials(monkeypatch, fake)
    return fake


def fitter(**options):
    return Fitter(*mlp_case(), CaptureOptions(costs=roofline("cpu"), **options), time_tolerance=1e9)


@pytest.mark.usefixtures("many_cores")
def test_the_knob_is_compiled_while_plans_are_made_and_timed_after(runs, budget, capsys):
    runs.takes_long = True
    fitted = fitter(progress=True).fit(runs.slow(HandPlanner(step=1)), budget)
    assert runs.when_timed[0] == ["asked", "answered"]
    assert fitted.knob is not None and len(fitted.tries) == 1
    assert "of it during a compilation" in fitted.report
    assert {"planning", "timing torch.compile's own partition", "timing plans"} <= set(fitted.seconds)
    assert "compiling" in capsys.readouterr().err


def test_with_two_cores_one_comes_after_the_other(runs, budget, monkeypatch):
    monkeypatch.setattr(background, "cores", lambda: 2)
    threads = []

    def planned(problem):
        assert not runs.knobs
        threads.append(threading.current_thread())
        return HandPlanner(step=1)(problem)

    fitted = fitter().fit(planned, budget)
    assert fitted.knob is not None and threads[0] is threading.main_thread()
    assert "during a compilation" not in fitted.report


@pytest.mark.slow
@pytest.mark.usefixtures("many_cores")
def test_plans_alone_are_made_in_the_callers_thread(runs, budget):
    threads = []

    def planned(problem):
        threads.append(threading.current_thread())
        return HandPlanner(step=1)(problem)

    fitter().fit(planned, budget, knob_tries=0)
    assert set(threads) == {threading.main_thread()}


@pytest.mark.slow
@pytest.mark.usefixtures("many_cores")
def test_a_planner_that_breaks_beside_ends_the_fit(runs, budget):
    with pytest.raises(InputError, match="gave no memory plan"):
        fitter().fit(runs.slow(lambda _problem: None), budget)


@pytest.mark.usefixtures("many_cores")
def test_a_proof_that_comes_late_ends_the_search_of_the_knob(runs, problem):
    runs.used_bytes = keep_nothing_peak(problem)
    with pytest.raises(BudgetError, match="no plan fits"):
        fitter().fit(runs.slow(HandPlanner(step=1)), keep_nothing_peak(problem) // 3)
    assert len(runs.knobs) == 1


@pytest.mark.usefixtures("many_cores")
def test_an_interrupt_ends_both(runs, budget, monkeypatch):
    ended = threading.Event()

    def planned(_problem):
        until_cancelled()
        ended.set()
        raise CancelledError("cancelled before a plan was found")

    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    fake_trials(monkeypatch, interrupted)
    with pytest.raises(KeyboardInterrupt):
        fitter().fit(planned, budget)
    assert ended.wait(LONG_S)
